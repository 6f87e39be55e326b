//! Central stores with a given time: one interface for tests.

use std::cell::Cell;
use std::future::Future;
use std::time::Duration;

use tollgate::internal::limit::{Levels, WindowStart};
use tollgate::internal::store::{Charge, ChargeReceipt, CounterKey, DeniedHits, LimitOutcome};
use tollgate::internal::{Limit, Shape};
use tollgate::{Clock, Time};
use tollgate_stores::counters::{CentralCounter, CentralOutcome, CounterId, LimitResult, StoreError};

use crate::conformance::{ChargeAnswer, Subject, key_parts};

pub mod contention;
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

    fn charge(&self, charges: &[Charge], now: Time) -> impl Future<Output = CentralOutcome> + Send;
    fn peek(&self, charges: &[Charge], now: Time) -> impl Future<Output = CentralOutcome> + Send;
    fn settle(
        &self,
        receipt: ChargeReceipt,
        real_cost: u64,
        now: Time,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
    fn reset(
        &self,
        counter: &CentralCounter,
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
pub fn own(rule: &str, key: &str, limit: Limit) -> Charge {
    charge(rule, CounterKey::owned(key_parts(key), 0), limit)
}

/// One unit of a limit that all clients share.
pub fn shared(rule: &str, limit: Limit) -> Charge {
    charge(rule, CounterKey::shared(Vec::new()), limit)
}

fn charge(rule: &str, key: CounterKey, limit: Limit) -> Charge {
    let id = CounterId { domain: "default".into(), rule: rule.into(), key };
    Charge::central(CentralCounter { id, limit })
}

/// The one part of a request with one limit, now.
pub async fn hit(store: &impl Store, charge: &Charge) -> Result<LimitOutcome, StoreError> {
    answer_of(store.charge(std::slice::from_ref(charge), now()).await.limits.swap_remove(0))
}

/// The answer to a charge, or why there is none.
pub fn answer_of(result: LimitResult) -> Result<LimitOutcome, StoreError> {
    match result {
        LimitResult::Answered(outcome) => Ok(outcome),
        LimitResult::Skipped => panic!("a store decides every charge"),
        LimitResult::Failed(error) => Err(error),
    }
}

/// What is left of a limit now.
pub async fn left(store: &impl Store, charge: &Charge) -> u64 {
    let part = store.peek(std::slice::from_ref(charge), now()).await.limits.swap_remove(0);
    answer_of(part).expect("it answers").decision.left
}

/// A store under the conformance suite.
pub struct CentralSubject<S> {
    store: S,
    histories: u64,
    /// The time of the last operation: a reset happens then.
    at: Cell<Time>,
}

impl<S: Store> CentralSubject<S> {
    pub fn new(store: S, histories: u64) -> CentralSubject<S> {
        CentralSubject { store, histories, at: Cell::default() }
    }
}

impl<S: Store> Subject for CentralSubject<S> {
    type Receipt = ChargeReceipt;

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

    async fn charge(&self, charges: &[Charge], now: Time) -> ChargeAnswer<ChargeReceipt> {
        self.at.set(now);
        answer(charges, self.store.charge(charges, now).await)
    }

    async fn peek(&self, charges: &[Charge], now: Time) -> ChargeAnswer<ChargeReceipt> {
        answer(charges, self.store.peek(charges, now).await)
    }

    async fn settle(&self, receipt: ChargeReceipt, real_cost: u64, now: Time) {
        self.at.set(now);
        self.store.settle(receipt, real_cost, now).await.expect("it is settled");
    }

    async fn reset(&self, counter: &CounterId, limit: &Limit) {
        let counter = CentralCounter { id: counter.clone(), limit: *limit };
        self.store.reset(&counter, self.at.get()).await.expect("it is reset");
    }
}

fn answer(charges: &[Charge], outcome: CentralOutcome) -> ChargeAnswer<ChargeReceipt> {
    let receipt = outcome.receipt(charges);
    let parts = outcome.limits.into_iter().map(answer_of).collect();
    ChargeAnswer { admitted: outcome.admitted, parts, receipt }
}
