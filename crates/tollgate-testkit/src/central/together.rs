//! Requests with several limits: all are charged, or none.

use std::time::Instant;

use tollgate::Shape;
use tollgate::store::Charge;

use super::{FIXED, Store, left, limit, now, own, shared};
use crate::SOON;

/// How many of sixty requests at once pass.
async fn passed(store: &impl Store, charges: &[Charge]) -> u64 {
    let at = now();
    let asked = (0..60).map(|_| {
        let store = store.clone();
        let charges = charges.to_vec();
        tokio::spawn(async move {
            let outcome = store.charge(&charges, at).await;
            let receipt = outcome.receipt(&charges);
            (outcome, receipt)
        })
    });
    let mut passed = 0;
    for asked in asked.collect::<Vec<_>>() {
        let (outcome, receipt) = asked.await.expect("it ends");
        assert!(outcome.limits.iter().all(|limit| limit.outcome().is_some()), "{:?}", outcome.limits);
        assert_eq!(receipt.is_some(), outcome.admitted, "who is denied is charged nothing");
        passed += u64::from(outcome.admitted);
    }
    passed
}

/// What was taken for a moment is given back in the end.
async fn comes_to(store: &impl Store, charge: &Charge, due: u64) {
    let start = Instant::now();
    while left(store, charge).await != due {
        assert!(start.elapsed() < SOON, "{} of {due} are left", left(store, charge).await);
    }
}

/// A flood that its own limit denies does not drain what others share; one that the shared limit denies keeps
/// what is its own.
pub async fn check(store: &impl Store) {
    for (n, shape) in [Shape::GCRA, FIXED].into_iter().enumerate() {
        let user = format!("user:{n}");
        let mine = own("mine", &user, limit("5/d", Shape::GCRA));
        let all = shared(&format!("all-{n}"), limit("900/d", shape));
        assert_eq!(passed(store, &[mine.clone(), all.clone()]).await, 5, "{shape:?}");
        comes_to(store, &mine, 0).await;
        comes_to(store, &all, 895).await;

        let mine = own("many", &user, limit("100/d", shape));
        let all = shared(&format!("few-{n}"), limit("3/d", Shape::GCRA));
        assert_eq!(passed(store, &[mine.clone(), all.clone()]).await, 3, "{shape:?}");
        comes_to(store, &mine, 97).await;
        comes_to(store, &all, 0).await;
    }
}
