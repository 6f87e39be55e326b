//! The servers together: which one keeps a counter, and what it is called there.
//!
//! All counters of one owner are kept by one server. A server that is down keeps its keys: they follow
//! the rule's failure mode, and nobody else's keys move.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::digest::{SHA256, digest};
use tokio::time::{Instant, sleep};
use tollgate::Limit;

use super::address::MemcachedAddress;
use super::ring::Ring;
use super::server::Server;
use super::wire::{Command, MAX_KEY_BYTES};
use crate::counters::breaker::ServerHealth;
use crate::counters::name::{Naming, tag};
use crate::counters::{Counter, StoreError};

/// What a key may add to its counter's name: a level and a number.
const SUFFIX_BYTES: usize = 24;
const MAX_NAME_BYTES: usize = MAX_KEY_BYTES - SUFFIX_BYTES;
/// A lifetime above this would be taken for a date.
const LONGEST_RELATIVE: u64 = 30 * 86_400;
/// Between two questions whether a server is there.
const READY_POLL: Duration = Duration::from_millis(10);
/// The last date the server understands.
const LAST_DATE: u64 = i32::MAX as u64;

#[derive(Debug)]
pub struct Fleet {
    servers: Vec<Server>,
    ring: Ring,
    naming: Naming,
    slack: Duration,
}

impl Fleet {
    pub fn connect(address: &MemcachedAddress, naming: Naming, slack: Duration) -> Fleet {
        let MemcachedAddress { servers, login } = address;
        let ring = Ring::new(servers);
        let servers = servers.iter().map(|server| Server::connect(server, login.clone())).collect();
        Fleet { servers, ring, naming, slack }
    }

    /// What a counter is called, short enough for a key.
    pub fn name(&self, counter: &Counter, limit: &Limit) -> String {
        shortened(self.naming.name(counter, limit))
    }

    /// What the record of a tracked key is called.
    pub fn track_name(&self, counter: &Counter) -> String {
        shortened(self.naming.track_name(counter))
    }

    /// The server that keeps the counter of this name.
    pub fn server(&self, name: &str) -> &Server {
        &self.servers[self.ring.server_of(tag(name))]
    }

    /// Returns once all servers answer; else why one does not.
    pub async fn ready(&self, deadline: Instant) -> Result<(), StoreError> {
        for server in &self.servers {
            let hello = || Command::Get { key: "tollgate".to_owned() };
            while let Err(error) = server.ask_one(hello(), deadline).await {
                if Instant::now() >= deadline {
                    return Err(error);
                }
                sleep(READY_POLL).await;
            }
        }
        Ok(())
    }

    pub fn health(&self) -> Vec<ServerHealth> {
        self.servers.iter().map(Server::health).collect()
    }

    /// How the server is told a lifetime: in seconds, or as a date. Its clock ticks once a second, so a
    /// second more is needed at least.
    pub fn ttl(&self, lifetime: Duration) -> u32 {
        let lifetime = lifetime.saturating_add(self.slack);
        let seconds = lifetime.as_secs() + u64::from(lifetime.subsec_nanos() > 0);
        if seconds <= LONGEST_RELATIVE {
            return seconds.max(1) as u32;
        }
        let today = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        match today.saturating_add(seconds) {
            date if date <= LAST_DATE => date as u32,
            _ => 0, // for ever: a shorter life would forget what counts
        }
    }
}

fn shortened(name: String) -> String {
    if name.len() <= MAX_NAME_BYTES {
        return name;
    }
    format!("tg1:{{#{}}}#{}", short_hash(tag(&name)), short_hash(&name))
}

fn short_hash(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}
