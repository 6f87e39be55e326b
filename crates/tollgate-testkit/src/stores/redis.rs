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
pub struct ToldTime(pub RedisStore);

impl Deref for ServerTime {
    type Target = RedisStore;

    fn deref(&self) -> &RedisStore {
        &self.0
    }
}

impl Store for ServerTime {
    const UNIT: Duration = redis::TIME_UNIT;

    fn refusal(limit: &Limit, denied: DeniedHits) -> Option<String> {
        ToldTime::refusal(limit, denied)
    }

    async fn charge(&self, charges: &[Charge], now: Time) -> CentralOutcome {
        self.0.charge(charges, now).await
    }

    async fn peek(&self, charges: &[Charge], now: Time) -> CentralOutcome {
        self.0.peek(charges, now).await
    }

    async fn settle(&self, receipt: ChargeReceipt, real_cost: u64, now: Time) -> Result<(), StoreError> {
        self.0.settle(receipt, real_cost, now).await
    }

    async fn reset(&self, counter: &CentralCounter, now: Time) -> Result<bool, StoreError> {
        self.0.reset(counter, now).await
    }

    fn trouble(&self) -> Option<String> {
        self.health().into_iter().find_map(|server| server.trouble)
    }
}

impl Store for ToldTime {
    const UNIT: Duration = redis::TIME_UNIT;

    fn refusal(limit: &Limit, _denied: DeniedHits) -> Option<String> {
        redis::check_limit(limit).err().map(|refused| refused.to_string())
    }

    async fn charge(&self, charges: &[Charge], now: Time) -> CentralOutcome {
        self.0.by_node_clock().charge(charges, now).await
    }

    async fn peek(&self, charges: &[Charge], now: Time) -> CentralOutcome {
        self.0.by_node_clock().peek(charges, now).await
    }

    async fn settle(&self, receipt: ChargeReceipt, real_cost: u64, now: Time) -> Result<(), StoreError> {
        self.0.by_node_clock().settle(receipt, real_cost, now).await
    }

    async fn reset(&self, counter: &CentralCounter, now: Time) -> Result<bool, StoreError> {
        self.0.reset(counter, now).await
    }

    fn trouble(&self) -> Option<String> {
        ServerTime(self.0.clone()).trouble()
    }
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
