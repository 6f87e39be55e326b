//! Stores for the tests.

use std::time::Duration;

use tollgate::Time;
use tollgate::internal::Limit;
use tollgate::internal::store::{Charge, ChargeReceipt, DeniedHits};
use tollgate_stores::counters::memcached::{self, MemcachedSetup, MemcachedStore};
use tollgate_stores::counters::{CentralCounter, CentralOutcome, StoreError};

use crate::central::Store;

impl Store for MemcachedStore {
    fn refusal(limit: &Limit, denied: DeniedHits) -> Option<String> {
        memcached::check_limit(limit, denied).err().map(|refused| refused.to_string())
    }

    call_store!(store => store);
}

/// A store as it is by default.
pub fn usual(url: &str) -> MemcachedStore {
    MemcachedStore::open(setup(url))
}

/// A store whose deadline and lifetimes are not what is tested.
pub fn patient(url: &str) -> MemcachedStore {
    let deadline = Duration::from_secs(20);
    let slack = Duration::from_secs(3600);
    MemcachedStore::open(MemcachedSetup { deadline, slack, ..setup(url) })
}

fn setup(url: &str) -> MemcachedSetup {
    MemcachedSetup::new(url.parse().unwrap_or_else(|error| panic!("{url}: {error}")))
}
