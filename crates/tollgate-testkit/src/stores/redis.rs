//! Stores for the tests.

use std::ops::Deref;
use std::time::Duration;

use tollgate::Time;
use tollgate::internal::Limit;
use tollgate::internal::store::{Charge, ChargeReceipt, DeniedHits};
use tollgate_stores::counters::redis::{self, RedisSetup, RedisStore};
use tollgate_stores::counters::{CentralCounter, CentralOutcome, StoreError};

use crate::SOON;
use crate::central::Store;

/// A store that uses the server's clock, whatever time is given.
#[derive(Clone)]
pub struct ServerTime(pub RedisStore);

/// A store that uses the given time.
#[derive(Clone)]
pub struct GivenTime(pub RedisStore);

impl Deref for ServerTime {
    type Target = RedisStore;

    fn deref(&self) -> &RedisStore {
        &self.0
    }
}

impl Store for ServerTime {
    const UNIT: Duration = redis::TIME_UNIT;

    fn refusal(limit: &Limit, denied: DeniedHits) -> Option<String> {
        GivenTime::refusal(limit, denied)
    }

    call_store!(store => store.0);
}

impl Store for GivenTime {
    const UNIT: Duration = redis::TIME_UNIT;

    fn refusal(limit: &Limit, _denied: DeniedHits) -> Option<String> {
        redis::check_limit(limit).err().map(|refused| refused.to_string())
    }

    call_store!(store => store.0.by_node_clock());
}

/// A store as it is by default.
pub fn usual(url: &str) -> ServerTime {
    open(url, RedisSetup::DEADLINE)
}

/// A store that gives up as late as a busy machine needs.
pub fn patient(url: &str) -> ServerTime {
    open(url, Duration::from_secs(5))
}

fn open(url: &str, deadline: Duration) -> ServerTime {
    let address = url.parse().unwrap_or_else(|error| panic!("{url}: {error}"));
    ServerTime(RedisStore::open(RedisSetup { deadline, ..RedisSetup::new(address) }).expect("it opens"))
}

/// A patient store that answers.
pub async fn ready(url: &str) -> ServerTime {
    let store = patient(url);
    store.ready(SOON).await.expect("it answers");
    store
}
