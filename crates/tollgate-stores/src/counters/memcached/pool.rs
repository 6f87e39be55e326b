//! The servers of an installation: which one has a counter, and under which key.
//!
//! All counters of one owner are on one server. The keys of an unreachable server do not move: they follow
//! `on_store_error` of their rule, and no other key is affected.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::digest::{SHA256, digest};
use tokio::time::{Instant, sleep};

use super::address::MemcachedAddress;
use super::ring::HashRing;
use super::server::MemcachedServer;
use super::wire::{MAX_KEY_BYTES, MemcachedCommand};
use crate::counters::breaker::ServerHealth;
use crate::counters::name::{Naming, hash_tag};
use crate::counters::{CentralCounter, CounterId, StoreError};

/// Room for the suffix of a counter's name: a level and a number.
const SUFFIX_BYTES: usize = 24;
const MAX_NAME_BYTES: usize = MAX_KEY_BYTES - SUFFIX_BYTES;
/// A higher TTL would be interpreted as a date.
const MAX_RELATIVE_TTL_SECS: u64 = 30 * 86_400;
/// Between two checks whether a server is connected.
const READY_POLL: Duration = Duration::from_millis(10);
/// The latest date that the server can represent.
const MAX_EXPIRY_SECS: u64 = i32::MAX as u64;

#[derive(Debug)]
pub struct MemcachedPool {
    servers: Vec<MemcachedServer>,
    ring: HashRing,
    naming: Naming,
    slack: Duration,
}

impl MemcachedPool {
    pub fn connect(address: &MemcachedAddress, naming: Naming, slack: Duration) -> MemcachedPool {
        let MemcachedAddress { servers, credentials } = address;
        let ring = HashRing::new(servers);
        let servers =
            servers.iter().map(|server| MemcachedServer::connect(server, credentials.clone())).collect();
        MemcachedPool { servers, ring, naming, slack }
    }

    /// The name of a counter, shortened to fit a key.
    pub fn name(&self, counter: &CentralCounter) -> String {
        shortened(self.naming.name(&counter.id, &counter.limit))
    }

    /// The name of a tracked key's record.
    pub fn track_name(&self, counter: &CounterId) -> String {
        shortened(self.naming.track_name(counter))
    }

    /// The server that has the counter of this name.
    pub fn server(&self, name: &str) -> &MemcachedServer {
        &self.servers[self.ring.server_of(hash_tag(name))]
    }

    /// Returns once all servers reply, or why one does not.
    pub async fn ready(&self, deadline: Instant) -> Result<(), StoreError> {
        for server in &self.servers {
            let hello = || MemcachedCommand::Get { key: "tollgate".to_owned() };
            while let Err(error) = server.execute_one(hello(), deadline).await {
                if Instant::now() >= deadline {
                    return Err(error);
                }
                sleep(READY_POLL).await;
            }
        }
        Ok(())
    }

    pub fn health(&self) -> Vec<ServerHealth> {
        self.servers.iter().map(MemcachedServer::health).collect()
    }

    /// A lifetime as the protocol's TTL: in seconds, or as a date. The server's clock ticks once a second, so the TTL
    /// is at least one second.
    pub fn ttl(&self, lifetime: Duration) -> u32 {
        let lifetime = lifetime.saturating_add(self.slack);
        let seconds = lifetime.as_secs() + u64::from(lifetime.subsec_nanos() > 0);
        if seconds <= MAX_RELATIVE_TTL_SECS {
            return seconds.max(1) as u32;
        }
        let today = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        match today.saturating_add(seconds) {
            date if date <= MAX_EXPIRY_SECS => date as u32,
            _ => 0, // no expiry: a shorter TTL would lose counts
        }
    }
}

fn shortened(name: String) -> String {
    if name.len() <= MAX_NAME_BYTES {
        return name;
    }
    format!("tg1:{{#{}}}#{}", short_hash(hash_tag(&name)), short_hash(&name))
}

fn short_hash(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}
