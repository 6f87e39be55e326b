//! A store of any kind, chosen by its address: one line of configuration.
//!
//! `now` is the node's time. Redis decides in its server's own time and does not look at it.

// Not every driver looks at everything it is given.
#![cfg_attr(not(feature = "memcached"), allow(unused_variables))]

use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;
use tollgate::store::DeniedHits;
use tollgate::store::central::CentralCounterStore;
use tollgate::{Limit, Time};

use crate::counters::breaker::ServerHealth;
#[cfg(feature = "cassandra")]
use crate::counters::cassandra::{self, CassandraAddress, CassandraSetup, CassandraStore};
#[cfg(feature = "memcached")]
use crate::counters::memcached::{self, MemcachedAddress, MemcachedSetup, MemcachedStore};
use crate::counters::name::Naming;
#[cfg(feature = "redis")]
use crate::counters::redis::{self, RedisAddress, RedisSetup, RedisStore};
use crate::counters::{CentralCharge, CentralOutcome, CentralReceipt, CounterId, StoreError};

/// Where counters are kept.
#[derive(Clone, Debug)]
pub enum CentralAddress {
    #[cfg(feature = "redis")]
    Redis(RedisAddress),
    #[cfg(feature = "memcached")]
    Memcached(MemcachedAddress),
    #[cfg(feature = "cassandra")]
    Cassandra(CassandraAddress),
}

/// Why an address is rejected. It never shows a password.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CentralAddressError {
    #[error(
        "unknown store '{0}': use memory, redis://, redis+sentinel://, redis+cluster://, memcached://, cassandra:// or scylla://"
    )]
    Unknown(String),
    #[error("{0}")]
    Invalid(String),
}

impl FromStr for CentralAddress {
    type Err = CentralAddressError;

    fn from_str(address: &str) -> Result<CentralAddress, CentralAddressError> {
        let scheme = address.split("://").next().unwrap_or_default();
        let scheme = if scheme == address { "" } else { scheme };
        #[cfg(feature = "redis")]
        if scheme == "redis"
            || scheme == "rediss"
            || scheme.starts_with("redis+")
            || scheme.starts_with("rediss+")
        {
            return address.parse().map(CentralAddress::Redis).map_err(invalid);
        }
        #[cfg(feature = "memcached")]
        if scheme == "memcached" {
            return address.parse().map(CentralAddress::Memcached).map_err(invalid);
        }
        #[cfg(feature = "cassandra")]
        if matches!(scheme, "cassandra" | "scylla") {
            return address.parse().map(CentralAddress::Cassandra).map_err(invalid);
        }
        // What has no scheme may be anything, a password too.
        Err(CentralAddressError::Unknown(if scheme.is_empty() {
            "…".to_owned()
        } else {
            scheme.to_owned()
        }))
    }
}

fn invalid(error: impl ToString) -> CentralAddressError {
    CentralAddressError::Invalid(error.to_string())
}

impl CentralAddress {
    /// Whether such a store keeps a limit exactly; if not, why.
    pub fn check(&self, limit: &Limit, denied: DeniedHits) -> Result<(), String> {
        match self {
            #[cfg(feature = "redis")]
            CentralAddress::Redis(_) => redis::check_limit(limit).map_err(|refused| refused.to_string()),
            #[cfg(feature = "memcached")]
            CentralAddress::Memcached(_) => {
                memcached::check_limit(limit, denied).map_err(|refused| refused.to_string())
            }
            #[cfg(feature = "cassandra")]
            CentralAddress::Cassandra(_) => {
                cassandra::check_limit(limit).map_err(|refused| refused.to_string())
            }
        }
    }

    /// How long a decision may take, if nothing else is said.
    pub fn default_deadline(&self) -> Duration {
        match self {
            #[cfg(feature = "redis")]
            CentralAddress::Redis(_) => RedisSetup::DEADLINE,
            #[cfg(feature = "memcached")]
            CentralAddress::Memcached(_) => MemcachedSetup::DEADLINE,
            #[cfg(feature = "cassandra")]
            CentralAddress::Cassandra(_) => CassandraSetup::DEADLINE,
        }
    }
}

/// Counters on servers. A server that is down now may come up later.
#[derive(Clone)]
pub enum CentralStore {
    #[cfg(feature = "redis")]
    Redis(RedisStore),
    #[cfg(feature = "memcached")]
    Memcached(MemcachedStore),
    #[cfg(feature = "cassandra")]
    Cassandra(CassandraStore),
}

/// Calls `$call` on the store, whatever it is; `$redis` where Redis is asked differently.
macro_rules! ask {
    ($self:expr, |$store:ident| $call:expr, redis: $redis:expr) => {
        match $self {
            #[cfg(feature = "redis")]
            CentralStore::Redis($store) => $redis,
            #[cfg(feature = "memcached")]
            CentralStore::Memcached($store) => $call,
            #[cfg(feature = "cassandra")]
            CentralStore::Cassandra($store) => $call,
        }
    };
}

mod track;

impl CentralCounterStore for CentralStore {
    async fn charge(&self, charges: &[CentralCharge], now: Time) -> CentralOutcome {
        ask!(self, |store| store.charge(charges, now).await, redis: store.charge(charges).await)
    }

    async fn peek(&self, charges: &[CentralCharge], now: Time) -> CentralOutcome {
        ask!(self, |store| store.peek(charges, now).await, redis: store.peek(charges).await)
    }

    async fn reset(&self, counter: &CounterId, limit: &Limit, now: Time) -> Result<bool, StoreError> {
        match self {
            #[cfg(feature = "redis")]
            CentralStore::Redis(store) => store.reset(counter, limit).await,
            #[cfg(feature = "memcached")]
            CentralStore::Memcached(store) => store.reset(counter, limit, now).await,
            #[cfg(feature = "cassandra")]
            CentralStore::Cassandra(store) => store.reset(counter, limit).await,
        }
    }
}

impl CentralStore {
    /// Connects in the background. It must be called inside a tokio runtime.
    pub fn open(address: CentralAddress, naming: Naming, deadline: Duration) -> Result<CentralStore, String> {
        match address {
            #[cfg(feature = "redis")]
            CentralAddress::Redis(address) => {
                RedisStore::open(RedisSetup { address, naming, deadline }).map(CentralStore::Redis)
            }
            #[cfg(feature = "memcached")]
            CentralAddress::Memcached(address) => {
                let setup = MemcachedSetup { naming, deadline, ..MemcachedSetup::new(address) };
                Ok(CentralStore::Memcached(MemcachedStore::open(setup)))
            }
            #[cfg(feature = "cassandra")]
            CentralAddress::Cassandra(address) => {
                let setup = CassandraSetup { naming, deadline, ..CassandraSetup::new(address) };
                Ok(CentralStore::Cassandra(CassandraStore::open(setup)))
            }
        }
    }

    /// Gives the charges of a receipt back, as far as time has not.
    pub async fn refund(&self, receipt: CentralReceipt, now: Time) -> Result<(), StoreError> {
        self.settle(receipt, 0, now).await
    }

    /// Corrects the hit's cost after the fact: the difference is given back, or owed.
    pub async fn settle(&self, receipt: CentralReceipt, real_cost: u64, now: Time) -> Result<(), StoreError> {
        ask!(self, |store| store.settle(receipt, real_cost, now).await, redis: store.settle(receipt, real_cost).await)
    }

    /// Returns once a server answers; an error says why none does.
    pub async fn ready(&self, within: Duration) -> Result<(), StoreError> {
        ask!(self, |store| store.ready(within).await, redis: store.ready(within).await)
    }

    /// How every server is doing.
    pub fn health(&self) -> Vec<ServerHealth> {
        ask!(self, |store| store.health(), redis: store.health())
    }

    /// Charges that had no answer because others changed the same counter each time they were tried.
    pub fn contended(&self) -> u64 {
        ask!(self, |store| store.contended(), redis: {
            let _ = store;
            0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_store_and_a_bad_one_what_is_wrong() {
        let message = |address: &str| address.parse::<CentralAddress>().expect_err(address).to_string();
        assert!(message("mysql://u:hunter2@host").starts_with("unknown store 'mysql'"));
        assert!(message("hunter2@host").starts_with("unknown store '…'"));
        #[cfg(feature = "redis")]
        {
            assert!(matches!("redis+cluster://a,b".parse(), Ok(CentralAddress::Redis(_))));
            assert!(message("redis://u:hunter2@host:99999").contains("port '99999'"));
        }
        #[cfg(feature = "memcached")]
        assert!(matches!("memcached://a,b".parse(), Ok(CentralAddress::Memcached(_))));
        #[cfg(feature = "cassandra")]
        for address in ["cassandra://a,b/keyspace", "scylla://a,b/keyspace?tablets=off"] {
            assert!(matches!(address.parse(), Ok(CentralAddress::Cassandra(_))));
        }
    }
}
