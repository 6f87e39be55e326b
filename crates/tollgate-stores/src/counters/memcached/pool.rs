//! The servers together: which one keeps a counter, and what it is called there.
//!
//! All counters of one owner are kept by one server. A server that is down keeps its keys: they follow
//! the rule's failure mode, and nobody else's keys move.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::digest::{SHA256, digest};
use tokio::time::{Instant, sleep};
use tollgate::Limit;

use super::address::MemcachedAddress;
use super::ring::HashRing;
use super::server::MemcachedServer;
use super::wire::{MAX_KEY_BYTES, MemcachedCommand};
use crate::counters::breaker::ServerHealth;
use crate::counters::name::{Naming, hash_tag};
use crate::counters::{CounterId, StoreError};

/// What a key may add to its counter's name: a level and a number.
const SUFFIX_BYTES: usize = 24;
const MAX_NAME_BYTES: usize = MAX_KEY_BYTES - SUFFIX_BYTES;
/// A lifetime above this would be taken for a date.
const MAX_RELATIVE_TTL_SECS: u64 = 30 * 86_400;
/// Between two questions whether a server is there.
const READY_POLL: Duration = Duration::from_millis(10);
/// The last date the server understands.
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

    /// What a counter is called, short enough for a key.
    pub fn name(&self, counter: &CounterId, limit: &Limit) -> String {
        shortened(self.naming.name(counter, limit))
    }

    /// What the record of a tracked key is called.
    pub fn track_name(&self, counter: &CounterId) -> String {
        shortened(self.naming.track_name(counter))
    }

    /// The server that keeps the counter of this name.
    pub fn server(&self, name: &str) -> &MemcachedServer {
        &self.servers[self.ring.server_of(hash_tag(name))]
    }

    /// Returns once all servers answer; else why one does not.
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

    /// How the server is told a lifetime: in seconds, or as a date. Its clock ticks once a second, so a
    /// second more is needed at least.
    pub fn ttl(&self, lifetime: Duration) -> u32 {
        let lifetime = lifetime.saturating_add(self.slack);
        let seconds = lifetime.as_secs() + u64::from(lifetime.subsec_nanos() > 0);
        if seconds <= MAX_RELATIVE_TTL_SECS {
            return seconds.max(1) as u32;
        }
        let today = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        match today.saturating_add(seconds) {
            date if date <= MAX_EXPIRY_SECS => date as u32,
            _ => 0, // for ever: a shorter life would forget what counts
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
