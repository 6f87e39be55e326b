//! The conformance suite: one list of scenarios, run against every store.
//!
//! A scenario is a set of seeded random histories: charges, peeks, settlements, resets and changed limits of one
//! or several rules, at instants of the suite's choosing. Every answer of the store must be the answer of the
//! pure functions (`reference`), in the store's own unit of time. A failure names scenario, seed and step.

use std::time::Duration;

use tollgate::Time;
use tollgate::internal::Limit;
use tollgate::internal::algorithm::Admission;
use tollgate::internal::store::{Charge, KeyPart, LimitOutcome, Sensitivity};
use tollgate_stores::counters::{CounterId, StoreError};

mod draw;
mod history;
pub mod reference;

pub use draw::{Draw, Family};
use history::History;
use reference::Reference;

/// The parts of a key, `ip:::1+user:42`. Emails and API keys are sensitive.
pub fn key_parts(key: &str) -> Vec<KeyPart> {
    let part = |text: &str| {
        let (name, value) = text.split_once(':').expect("name:value");
        let sensitivity = match name {
            "email" | "api_key" => Sensitivity::Sensitive,
            _ => Sensitivity::Public,
        };
        KeyPart { name: name.into(), value: value.into(), sensitivity }
    };
    key.split('+').map(part).collect()
}

/// A store as the suite uses it: every operation has a given time.
#[allow(async_fn_in_trait)]
pub trait Subject {
    type Receipt;

    /// The unit in which it counts time. Instants are whole numbers of it, waits are rounded up to it.
    fn unit(&self) -> Duration;

    /// Whether the store supports such a limit: limits that validation rejects are not tried.
    fn takes(&self, limit: &Limit) -> bool;

    /// Whether it counts denied hits under such a limit.
    fn counts_denied(&self, _limit: &Limit) -> bool {
        true
    }

    /// How many histories a scenario has here.
    fn histories(&self) -> u64 {
        12
    }

    async fn charge(&self, charges: &[Charge], now: Time) -> ChargeAnswer<Self::Receipt>;
    async fn peek(&self, charges: &[Charge], now: Time) -> ChargeAnswer<Self::Receipt>;
    async fn settle(&self, receipt: Self::Receipt, real_cost: u64, now: Time);
    /// Forgets a counter.
    async fn reset(&self, counter: &CounterId, limit: &Limit);
}

/// What a store has answered.
#[derive(Debug)]
pub struct ChargeAnswer<R> {
    pub admitted: bool,
    pub parts: Vec<Result<LimitOutcome, StoreError>>,
    pub receipt: Option<R>,
}

pub struct Scenario {
    pub name: &'static str,
    /// What the rules count by, one of these each.
    pub families: &'static [Family],
    pub rules: usize,
    pub kind: HistoryKind,
}

/// How a history goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HistoryKind {
    /// Any operation may be next, at any time.
    Eventful,
    /// Many hits, close together: states grow long.
    Busy,
}

const fn alone(name: &'static str, families: &'static [Family]) -> Scenario {
    Scenario { name, families, rules: 1, kind: HistoryKind::Eventful }
}

const LOGS: &[Family] =
    &[Family::SlidingLog, Family::SlidingCompact, Family::TieredWindow, Family::Concurrency];

pub const SCENARIOS: [Scenario; 17] = [
    alone("gcra", &[Family::Gcra]),
    alone("token bucket", &[Family::TokenBucket]),
    alone("token bucket with ticks", &[Family::TokenBucketTick]),
    alone("token bucket by the calendar", &[Family::TokenBucketCalendar]),
    alone("leaky bucket that holds", &[Family::LeakyHold]),
    alone("leaky bucket without delay", &[Family::LeakyAtOnce]),
    alone("aligned window", &[Family::FixedAligned]),
    alone("window from the first hit", &[Family::FixedFirstHit]),
    alone("sliding log", &[Family::SlidingLog]),
    alone("sliding window, compacted", &[Family::SlidingCompact]),
    alone("sliding counter", &[Family::SlidingCounter]),
    alone("tiered window", &[Family::TieredWindow]),
    alone("concurrency", &[Family::Concurrency]),
    alone("cell", &[Family::Cell]),
    Scenario { name: "long logs", families: LOGS, rules: 1, kind: HistoryKind::Busy },
    Scenario {
        name: "several rules of one kind",
        families: &[Family::Gcra],
        rules: 3,
        kind: HistoryKind::Eventful,
    },
    Scenario {
        name: "several rules of every kind",
        families: &Family::ALL,
        rules: 5,
        kind: HistoryKind::Eventful,
    },
];

/// Runs the whole list against a store.
pub async fn check(subject: &impl Subject) {
    for scenario in &SCENARIOS {
        check_scenario(subject, scenario).await;
    }
}

pub async fn check_scenario<S: Subject>(subject: &S, scenario: &Scenario) {
    for seed in 0..subject.histories() {
        if let Some(history) = History::draw(scenario, seed, subject) {
            history.run(subject, &mut Reference::new(subject.unit())).await;
        }
    }
}

/// A duration in whole units, rounded up.
pub fn round_up(span: Duration, unit: Duration) -> Duration {
    let units = span.as_nanos().div_ceil(unit.as_nanos()) * unit.as_nanos();
    Duration::from_nanos(u64::try_from(units).unwrap_or(u64::MAX))
}

pub fn round_admission(admission: Admission, unit: Duration) -> Admission {
    match admission {
        Admission::Allow { delay } => Admission::Allow { delay: round_up(delay, unit) },
        Admission::Deny { retry_after } => Admission::Deny { retry_after: round_up(retry_after, unit) },
        Admission::Never => Admission::Never,
    }
}
