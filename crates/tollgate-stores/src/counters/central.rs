//! A central store of any backend, chosen by the scheme of its address.
//!
//! `now` is the node's time. Redis ignores it and decides by the server's clock.

// Not every driver uses every parameter.
#![cfg_attr(not(feature = "memcached"), allow(unused_variables))]

use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;
use tokio::runtime::Handle;
use tollgate::Time;
use tollgate::internal::Limit;
use tollgate::internal::store::central::CentralCounterStore;
use tollgate::internal::store::{Charge, ChargeReceipt, DeniedHits};
use tollgate::internal::track::Delta;
use tollgate::internal::track::central::{CentralTrackStore, SharedTrack};

use crate::counters::breaker::ServerHealth;
#[cfg(feature = "cassandra")]
use crate::counters::cassandra::{self, CassandraAddress, CassandraSetup, CassandraStore};
#[cfg(feature = "memcached")]
use crate::counters::memcached::{self, MemcachedAddress, MemcachedSetup, MemcachedStore};
use crate::counters::name::Naming;
#[cfg(feature = "redis")]
use crate::counters::redis::{self, RedisAddress, RedisSetup, RedisStore};
use crate::counters::{CentralCounter, CentralOutcome, CounterId, StoreError};
use crate::server_time::ClockReading;

/// The address of a central store.
#[derive(Clone, Debug)]
pub enum CentralAddress {
    #[cfg(feature = "redis")]
    Redis(RedisAddress),
    #[cfg(feature = "memcached")]
    Memcached(MemcachedAddress),
    #[cfg(feature = "cassandra")]
    Cassandra(CassandraAddress),
}

/// Why an address is rejected. Never contains a password.
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
        // Text without a scheme may be anything, even a password: do not repeat it.
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
    /// Whether the files of passwords that it names can be read. Those of certificates are read when it is opened.
    pub fn check_files(&self) -> Result<(), String> {
        match self {
            #[cfg(feature = "redis")]
            CentralAddress::Redis(address) => address.check_files(),
            #[cfg(feature = "memcached")]
            CentralAddress::Memcached(_) => Ok(()),
            #[cfg(feature = "cassandra")]
            CentralAddress::Cassandra(_) => Ok(()),
        }
    }

    /// Whether the backend can represent a limit exactly; if not, why.
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

    /// The clocks of the servers, each with its name in messages: of all with Memcached, of one elsewhere. Must be
    /// called inside a tokio runtime.
    pub async fn server_times(&self, deadline: Duration) -> Vec<(String, Result<ClockReading, String>)> {
        match self {
            #[cfg(feature = "redis")]
            CentralAddress::Redis(address) => {
                let name = "the server".to_owned();
                let time = redis::server_time(address, &name, deadline).await;
                vec![(name, time)]
            }
            #[cfg(feature = "memcached")]
            CentralAddress::Memcached(address) => memcached::server_times(address, deadline).await,
            #[cfg(feature = "cassandra")]
            CentralAddress::Cassandra(address) => {
                vec![("the cluster".to_owned(), cassandra::server_time(address, deadline).await)]
            }
        }
    }

    /// The default deadline of a decision.
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

/// Counters on servers. A server that is unreachable now may become available later.
#[derive(Clone)]
pub enum CentralStore {
    #[cfg(feature = "redis")]
    Redis(RedisStore),
    #[cfg(feature = "memcached")]
    Memcached(MemcachedStore),
    #[cfg(feature = "cassandra")]
    Cassandra(CassandraStore),
}

/// Evaluates `$call` on the store of any backend.
macro_rules! with_store {
    ($self:expr, |$store:ident| $call:expr) => {
        match $self {
            #[cfg(feature = "redis")]
            CentralStore::Redis($store) => $call,
            #[cfg(feature = "memcached")]
            CentralStore::Memcached($store) => $call,
            #[cfg(feature = "cassandra")]
            CentralStore::Cassandra($store) => $call,
        }
    };
}

impl CentralCounterStore for CentralStore {
    async fn charge(&self, charges: &[Charge], now: Time) -> CentralOutcome {
        with_store!(self, |store| store.charge(charges, now).await)
    }

    async fn peek(&self, charges: &[Charge], now: Time) -> CentralOutcome {
        with_store!(self, |store| store.peek(charges, now).await)
    }

    async fn reset(&self, counter: &CentralCounter, now: Time) -> Result<bool, StoreError> {
        with_store!(self, |store| store.reset(counter, now).await)
    }
}

impl CentralStore {
    /// Connects in the background. Must be called inside a tokio runtime.
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

    /// Refunds the charges of a receipt, as far as they have not expired.
    pub async fn refund(&self, receipt: ChargeReceipt, now: Time) -> Result<(), StoreError> {
        self.settle(receipt, 0, now).await
    }

    /// Corrects the hit's cost after the fact: the difference is refunded, or added as debt.
    pub async fn settle(&self, receipt: ChargeReceipt, real_cost: u64, now: Time) -> Result<(), StoreError> {
        with_store!(self, |store| store.settle(receipt, real_cost, now).await)
    }

    /// As [`settle`](Self::settle), in the background on `runtime`. A charge that cannot be corrected remains.
    pub fn settle_detached(&self, runtime: &Handle, receipt: ChargeReceipt, real_cost: u64, now: Time) {
        let store = self.clone();
        runtime.spawn(async move {
            if let Err(error) = store.settle(receipt, real_cost, now).await {
                tracing::debug!(%error, "a charge could not be corrected");
            }
        });
    }

    /// Returns once the store is usable, or the error at the end of `within`.
    pub async fn ready(&self, within: Duration) -> Result<(), StoreError> {
        with_store!(self, |store| store.ready(within).await)
    }

    /// The state of every server.
    pub fn health(&self) -> Vec<ServerHealth> {
        with_store!(self, |store| store.health())
    }

    /// Charges that failed because every attempt ended in a CAS conflict.
    pub fn contended(&self) -> u64 {
        with_store!(self, |store| store.contended())
    }
}

impl CentralTrackStore for CentralStore {
    async fn add_track(&self, delta: &Delta) -> Result<(), StoreError> {
        with_store!(self, |store| store.add_track(delta).await)
    }

    async fn read_track(&self, counter: &CounterId, writer: u64) -> Result<SharedTrack, StoreError> {
        with_store!(self, |store| store.read_track(counter, writer).await)
    }

    async fn forget_track(&self, counter: &CounterId) -> Result<(), StoreError> {
        with_store!(self, |store| store.forget_track(counter).await)
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
