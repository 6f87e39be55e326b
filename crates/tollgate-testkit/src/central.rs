//! Central stores that are told the time, as tests see them: one way to ask all of them.

use std::cell::Cell;
use std::future::Future;
use std::time::Duration;

use tollgate::limit::{Levels, WindowStart};
use tollgate::store::{CounterKey, DeniedHits, Enforcement, LimitOutcome};
use tollgate::{Clock, Limit, Shape, Time};
use tollgate_stores::counters::{CentralCharge, CentralOutcome, CentralReceipt, CounterId, StoreError};

use crate::conformance::{Answer, Subject, key_parts};

pub mod crowd;
pub mod expiry;
pub mod load;
pub mod refunds;
pub mod skew;
pub mod strange;
pub mod together;

/// One of every way in which a store may keep a limit.
pub const SHAPES: [Shape; 5] = [
    Shape::GCRA,
    FIXED,
    Shape::SlidingCounter,
    Shape::SlidingLog,
    Shape::TieredWindow { levels: Levels::SMH },
];
pub const FIXED: Shape = Shape::FixedWindow { start: WindowStart::Aligned };

pub trait Store: Clone + Send + Sync + 'static {
    /// The unit in which it counts time.
    const UNIT: Duration = Duration::from_nanos(1);

    /// Why the store cannot keep such a limit, if it cannot.
    fn refusal(limit: &Limit, denied: DeniedHits) -> Option<String>;

    fn charge(&self, charges: &[CentralCharge], now: Time) -> impl Future<Output = CentralOutcome> + Send;
    fn peek(&self, charges: &[CentralCharge], now: Time) -> impl Future<Output = CentralOutcome> + Send;
    fn settle(
        &self,
        receipt: CentralReceipt,
        real_cost: u64,
        now: Time,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
    fn reset(
        &self,
        counter: &CounterId,
        limit: &Limit,
        now: Time,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Why no request is sent to a server, if there is one like that.
    fn trouble(&self) -> Option<String>;
}

pub fn now() -> Time {
    Clock::new().now()
}

pub fn limit(rate: &str, shape: Shape) -> Limit {
    Limit::new(rate.parse().expect("a rate"), shape).expect("a valid limit")
}

/// One unit of a client's own limit; the first part of the key is the owner.
pub fn own(rule: &str, key: &str, limit: Limit) -> CentralCharge {
    charge(rule, CounterKey::owned(key_parts(key), 0), limit)
}

/// One unit of a limit that all clients share.
pub fn shared(rule: &str, limit: Limit) -> CentralCharge {
    charge(rule, CounterKey::shared(Vec::new()), limit)
}

fn charge(rule: &str, key: CounterKey, limit: Limit) -> CentralCharge {
    let counter = CounterId { domain: "default".into(), rule: rule.into(), key };
    let (weight, denied) = (Enforcement::Enforced, DeniedHits::Free);
    CentralCharge { counter, limit, cost: 1, unit_cost: 1, enforcement: weight, denied_hits: denied }
}

/// The one part of a request with one limit, now.
pub async fn hit(store: &impl Store, charge: &CentralCharge) -> Result<LimitOutcome, StoreError> {
    store.charge(std::slice::from_ref(charge), now()).await.limits.swap_remove(0)
}

/// What is left of a limit now.
pub async fn left(store: &impl Store, charge: &CentralCharge) -> u64 {
    let part = store.peek(std::slice::from_ref(charge), now()).await.limits.swap_remove(0);
    part.expect("it answers").decision.left
}

/// A store under the conformance suite.
pub struct Told<S> {
    store: S,
    histories: u64,
    /// When it was last told something: a reset happens then.
    at: Cell<Time>,
}

impl<S: Store> Told<S> {
    pub fn new(store: S, histories: u64) -> Told<S> {
        Told { store, histories, at: Cell::default() }
    }
}

impl<S: Store> Subject for Told<S> {
    type Receipt = CentralReceipt;

    fn unit(&self) -> Duration {
        S::UNIT
    }

    fn takes(&self, limit: &Limit) -> bool {
        S::refusal(limit, DeniedHits::Free).is_none()
    }

    fn counts_denied(&self, limit: &Limit) -> bool {
        S::refusal(limit, DeniedHits::Counted).is_none()
    }

    fn histories(&self) -> u64 {
        self.histories
    }

    async fn charge(&self, charges: &[CentralCharge], now: Time) -> Answer<CentralReceipt> {
        self.at.set(now);
        answer(self.store.charge(charges, now).await)
    }

    async fn peek(&self, charges: &[CentralCharge], now: Time) -> Answer<CentralReceipt> {
        answer(self.store.peek(charges, now).await)
    }

    async fn settle(&self, receipt: CentralReceipt, real_cost: u64, now: Time) {
        self.at.set(now);
        self.store.settle(receipt, real_cost, now).await.expect("it is settled");
    }

    async fn reset(&self, counter: &CounterId, limit: &Limit) {
        self.store.reset(counter, limit, self.at.get()).await.expect("it is reset");
    }
}

fn answer(outcome: CentralOutcome) -> Answer<CentralReceipt> {
    Answer { admitted: outcome.admitted, parts: outcome.limits, receipt: outcome.receipt }
}
