//! No key outlives the moment it can last count by more than the store's stated slack, and none is gone before.
//!
//! One counter of every algorithm is charged, charged again some seconds later, given back, overdrawn and moved to
//! another limit. After every step the lifetimes on the server are compared with the pure function's answer to "when
//! does this state equal never seen".

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::sleep;
use tollgate::Time;
use tollgate::internal::algorithm::Algorithm as _;
use tollgate::internal::limit::{Levels, Refill, Release, WindowStart};
use tollgate::internal::store::{Charge, ChargeReceipt};
use tollgate::internal::time::Unit;
use tollgate::internal::{Limit, Shape};

use super::{FIXED, Store, limit, now, own};
use crate::conformance::reference::{Reference, Settleable};

/// Between the first charge and the second: longer than any slack, so that a lifetime that is not shortened shows.
const PAUSE: Duration = Duration::from_secs(7);

/// A key on the server, and how long it will live; `None` is for ever.
pub type ExpiringKey = (String, Option<Duration>);

/// How a store keeps its keys.
#[derive(Clone, Copy)]
pub struct Keeping {
    /// What it should do.
    pub slack: Duration,
    /// Shapes kept as numbers per window or bucket: one that is given back whole is a zero until its window ends.
    pub numbers: fn(&Shape) -> bool,
}

/// Checks all algorithms on a store; `keys` reads what is on its server.
pub async fn check<S: Store>(store: &S, keeping: Keeping, keys: impl AsyncFn() -> Vec<ExpiringKey>) {
    let mut cases: Vec<Case> =
        limits().into_iter().enumerate().map(|(n, limits)| Case::new(n, limits)).collect();
    let mut run = Run { store, keeping, keys, reference: Reference::new(S::UNIT) };
    for case in &mut cases {
        run.charge(case, 0, 2).await;
    }
    run.compare(&mut cases, "charged").await;
    sleep(PAUSE).await;
    for case in &mut cases {
        run.charge(case, 0, 1).await;
    }
    run.compare(&mut cases, "charged again").await;
    for case in &mut cases {
        run.settle(case, 0).await;
    }
    run.compare(&mut cases, "given back").await;
    for case in &mut cases {
        run.charge(case, 1, 1).await;
    }
    run.compare(&mut cases, "under another limit").await;
    for case in &mut cases {
        run.settle(case, 7).await;
    }
    run.compare(&mut cases, "overdrawn").await;
}

/// Every algorithm, under one limit and then another.
fn limits() -> Vec<[Limit; 2]> {
    let bucket = |refill| Shape::TokenBucket { burst: None, refill };
    let leaky = |release| Shape::LeakyBucket { burst: Some(9), release };
    let tiers = |units: &[Unit]| Shape::TieredWindow { levels: Levels::new(units).expect("valid levels") };
    let second = Duration::from_secs(1);
    let shapes = [
        ("h", Shape::GCRA),
        ("month", Shape::GCRA),
        ("h", bucket(Refill::Continuous)),
        ("h", bucket(Refill::Tick(second))),
        ("d", bucket(Refill::Calendar)),
        ("m", leaky(Release::Hold { max_wait: None, after: 3 })),
        ("m", leaky(Release::AtOnce)),
        ("d", FIXED),
        ("month", FIXED),
        ("h", Shape::FixedWindow { start: WindowStart::FirstHit }),
        ("m", Shape::SlidingLog),
        ("d", Shape::SlidingLog),
        ("m", Shape::SlidingCompact { resolution: second }),
        ("d", Shape::SlidingCompact { resolution: second * 60 }),
        ("m", Shape::SlidingCounter),
        ("d", Shape::SlidingCounter),
        ("d", tiers(&[Unit::Second, Unit::Minute, Unit::Hour])),
        ("10m", tiers(&[Unit::Second, Unit::Minute, Unit::Hour])),
        ("d", tiers(&[Unit::Hour])),
        ("m", Shape::Concurrency),
    ];
    let of = |count: u64, period: &str, shape| limit(&format!("{count}/{period}"), shape);
    shapes.iter().map(|(period, shape)| [of(10, period, *shape), of(50, period, *shape)]).collect()
}

struct Case {
    rule: String,
    limits: [Limit; 2],
    charge: Charge,
    latest: Option<(ChargeReceipt, Vec<Settleable>)>,
    /// How long the server took with all steps: the times of settlements and writes are not known better.
    blur: Duration,
    /// The latest moment at which any state of it could count.
    last_counts: Time,
}

impl Case {
    fn new(n: usize, limits: [Limit; 2]) -> Case {
        let rule = format!("expiry-{n:02}");
        let charge = own(&rule, "user:1", limits[0]);
        Case { rule, limits, charge, latest: None, blur: Duration::ZERO, last_counts: Time::EPOCH }
    }
}

struct Run<'s, S, K> {
    store: &'s S,
    keeping: Keeping,
    keys: K,
    reference: Reference,
}

impl<S: Store, K: AsyncFn() -> Vec<ExpiringKey>> Run<'_, S, K> {
    async fn charge(&mut self, case: &mut Case, n: usize, cost: u64) {
        case.charge = Charge { cost, ..own(&case.rule, "user:1", case.limits[n]) };
        let before = now();
        let outcome = self.store.charge(std::slice::from_ref(&case.charge), before).await;
        case.blur += now().since(before);
        let part = outcome.limits[0].outcome().expect("it answers");
        let grant = part.grant.unwrap_or_else(|| panic!("{} {:?} is charged", case.rule, case.limits[n]));
        let expected = self.reference.charge(std::slice::from_ref(&case.charge), grant.at);
        case.latest = outcome.receipt(std::slice::from_ref(&case.charge)).zip(Some(expected.items));
    }

    async fn settle(&mut self, case: &mut Case, real_cost: u64) {
        let (receipt, items) = case.latest.take().expect("a charge to settle");
        let before = now();
        self.store.settle(receipt, real_cost, before).await.expect("it is settled");
        case.blur += now().since(before);
        self.reference.settle(&items, real_cost, before);
    }

    async fn compare(&self, cases: &mut [Case], step: &str) {
        let before = now();
        let mut found: HashMap<String, Vec<ExpiringKey>> = HashMap::new();
        for key in (self.keys)().await {
            let rule = key.0.split(':').find(|part| part.starts_with("expiry-")).expect("a key of ours");
            found.entry(rule.to_owned()).or_default().push(key);
        }
        let after = now();
        for case in cases {
            let limit = case.charge.counter().limit;
            let keys = found.remove(&case.rule).unwrap_or_default();
            let quota = self.reference.quota(&limit);
            let fresh_at = quota.expires_at(&self.reference.state(&case.charge.counter().id, &limit, before));
            case.last_counts = case.last_counts.max(fresh_at);
            let kept_until = if (self.keeping.numbers)(&limit.shape()) { case.last_counts } else { fresh_at };
            let bound = kept_until.max(before) + self.keeping.slack + case.blur;
            let what =
                format!("{step}: {} {limit}, fresh {:?} after {:?}", limit.shape().name(), fresh_at, before);
            let mut latest = Time::EPOCH;
            for (key, lives) in &keys {
                let lives = lives.unwrap_or_else(|| panic!("{what}: {key} never expires"));
                assert!(
                    before + lives <= bound,
                    "{what}: {key} lives {lives:?}, {:?} too long",
                    (before + lives).since(bound)
                );
                latest = latest.max(after + lives);
            }
            assert!(latest + case.blur >= fresh_at, "{what}: it is gone too early: {keys:?}");
        }
        assert!(found.is_empty(), "{found:?}");
    }
}
