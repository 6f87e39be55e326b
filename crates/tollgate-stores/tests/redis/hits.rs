//! Charges as a request makes them, and stores to make them on.

#![allow(dead_code)] // each set of tests uses its part

use std::time::Duration;

use tollgate::limit::WindowStart;
use tollgate::store::{DeniedHits, Part, Weight};
use tollgate::{Limit, Shape};
use tollgate_stores::counters::redis::{RedisSetup, RedisStore};
use tollgate_stores::counters::{CentralCharge, Counter, StoreError};

use crate::servers::SOON;

pub const FIXED: Shape = Shape::FixedWindow { start: WindowStart::Aligned };

pub fn limit(rate: &str, shape: Shape) -> Limit {
    Limit::new(rate.parse().expect("a rate"), shape).expect("a valid limit")
}

/// One unit of a user's own limit.
pub fn own(rule: &str, user: &str, limit: Limit) -> CentralCharge {
    charge(rule, user, Some(user), limit)
}

/// One unit of a limit that everybody shares.
pub fn shared(rule: &str, limit: Limit) -> CentralCharge {
    charge(rule, "", None, limit)
}

fn charge(rule: &str, key: &str, owner: Option<&str>, limit: Limit) -> CentralCharge {
    let counter = Counter {
        domain: "default".into(),
        rule: rule.into(),
        key: key.into(),
        owner: owner.map(Into::into),
    };
    let (weight, denied) = (Weight::Enforced, DeniedHits::Free);
    CentralCharge { counter, limit, cost: 1, unit_cost: 1, weight, denied }
}

/// A store that gives up as late as a busy machine needs.
pub fn patient(url: &str) -> RedisStore {
    open(url, Duration::from_secs(5))
}

/// A store as it is by default.
pub fn usual(url: &str) -> RedisStore {
    open(url, RedisSetup::DEADLINE)
}

fn open(url: &str, deadline: Duration) -> RedisStore {
    let address = url.parse().unwrap_or_else(|error| panic!("{url}: {error}"));
    RedisStore::open(RedisSetup { deadline, ..RedisSetup::new(address) }).expect("it opens")
}

/// A patient store that answers.
pub async fn ready(url: &str) -> RedisStore {
    let store = patient(url);
    store.ready(SOON).await.expect("it answers");
    store
}

/// The one part of a request with one limit.
pub async fn hit(store: &RedisStore, charge: &CentralCharge) -> Result<Part, StoreError> {
    store.charge(std::slice::from_ref(charge)).await.parts.swap_remove(0)
}

/// What is left of a limit.
pub async fn left(store: &RedisStore, charge: &CentralCharge) -> u64 {
    let part = store.peek(std::slice::from_ref(charge)).await.parts.swap_remove(0);
    part.expect("it answers").decision.left
}
