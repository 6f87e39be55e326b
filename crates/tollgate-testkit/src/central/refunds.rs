//! Refunds while clocks go back.

use std::time::Duration;

use tollgate::Time;
use tollgate::internal::Shape;
use tollgate::internal::limit::{Levels, WindowStart};

use super::{FIXED, Store, answer_of, limit, now, own};

const SHAPES: [Shape; 7] = [
    Shape::GCRA,
    FIXED,
    Shape::FixedWindow { start: WindowStart::FirstHit },
    Shape::SlidingCounter,
    Shape::SlidingLog,
    Shape::TieredWindow { levels: Levels::SMH },
    Shape::Concurrency,
];

/// A charge at the start of a day; one by a clock that is still in the day before; both are given back then.
pub async fn check(store: &impl Store) {
    for (n, shape) in SHAPES.into_iter().enumerate() {
        let charge = [own(&format!("back-{n}"), "user:1", limit("10/d", shape))];
        let after = Time::from_secs((now().secs() / 86_400 + 1) * 86_400);
        let before = after - Duration::from_millis(1);
        let ahead = store.charge(&charge, after).await;
        let behind = store.charge(&charge, before).await;
        assert!(ahead.admitted && behind.admitted, "{shape:?}");
        for charged in [behind, ahead] {
            let receipt = charged.receipt(&charge).expect("it was charged");
            store.settle(receipt, 0, before).await.expect("it is given back");
        }
        let part = answer_of(store.peek(&charge, after).await.limits.swap_remove(0)).expect("it answers");
        assert_eq!(part.decision.left, 10, "{shape:?}");
    }
}
