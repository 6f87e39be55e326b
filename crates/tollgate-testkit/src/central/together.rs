//! Requests with several limits: all are charged, or none.

use std::time::{Duration, Instant};

use tollgate::Time;
use tollgate::internal::Shape;
use tollgate::internal::limit::Levels;
use tollgate::internal::store::{Charge, DeniedHits};

use super::{FIXED, Store, answer_of, left, limit, now, own, shared};
use crate::SOON;

/// How many of sixty requests at once pass.
async fn passed(store: &impl Store, charges: &[Charge]) -> u64 {
    passed_at(std::slice::from_ref(store), |_| charges.to_vec(), 60, now()).await
}

/// How many of several requests at once pass, on several nodes by turns.
async fn passed_at(
    nodes: &[impl Store],
    charges: impl Fn(usize) -> Vec<Charge>,
    count: usize,
    at: Time,
) -> u64 {
    let tasks = (0..count).map(|n| {
        let store = nodes[n % nodes.len()].clone();
        let charges = charges(n);
        tokio::spawn(async move {
            let outcome = store.charge(&charges, at).await;
            let receipt = outcome.receipt(&charges);
            (outcome, receipt)
        })
    });
    let mut passed = 0;
    for tasks in tasks.collect::<Vec<_>>() {
        let (outcome, receipt) = tasks.await.expect("it ends");
        assert!(outcome.limits.iter().all(|limit| limit.outcome().is_some()), "{:?}", outcome.limits);
        assert_eq!(receipt.is_some(), outcome.admitted, "a denied request is charged nothing");
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

/// A denied hit drains a limit that counts denials once, also if another request took the last token between its look
/// and its charge, or another node changed the value that it was to be written to. A window keeps the latest attempts, so
/// when the first ones expire it shows how many were counted.
pub async fn check_counted<S: Store>(nodes: &[S]) {
    let store = &nodes[0];
    const LATER: Duration = Duration::from_secs(600);
    const EXPIRED: Duration = Duration::from_secs(3_700);
    let shapes = [Shape::SlidingLog, Shape::TieredWindow { levels: Levels::SMH }];
    for (n, shape) in shapes.into_iter().enumerate() {
        let sixty = limit("60/h", shape);
        if S::refusal(&sixty, DeniedHits::Counted).is_some() {
            continue;
        }
        let user = format!("user:{n}");
        let counted = |charge| Charge { denied_hits: DeniedHits::Counted, ..charge };
        let mine = counted(own("counted", &user, sixty));
        let all = counted(shared(&format!("counted-all-{n}"), sixty));
        let plenty = shared(&format!("plenty-{n}"), limit("9000/d", FIXED));
        let each = |request: usize| own("each", &format!("user:{n}-{request}"), limit("5/d", FIXED));
        let start = now();
        // With the limit of one client, and with one that all clients share: twenty more are free, thirty come.
        let requests: [(&Charge, &dyn Fn(usize) -> Charge); 2] =
            [(&mine, &|_| plenty.clone()), (&all, &each)];
        for (tested, other) in requests {
            let first = Charge { cost: 40, ..tested.clone() };
            assert!(store.charge(&[first], start).await.admitted);
            let charges = |request| vec![tested.clone(), other(request)];
            assert_eq!(passed_at(nodes, charges, 30, start + LATER).await, 20, "{shape:?}");
            let part = store.peek(std::slice::from_ref(tested), start + EXPIRED).await.limits.swap_remove(0);
            let left = answer_of(part).expect("it answers").decision.left;
            assert_eq!(left, 30, "{shape:?}: twenty passed, ten were denied");
        }
        comes_to(store, &plenty, 9_000 - 20).await;
    }
}
