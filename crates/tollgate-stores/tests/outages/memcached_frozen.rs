//! Servers that stand still, die and come back.

use std::fs;
use std::time::{Duration, Instant};

use tollgate::internal::limit::Shape;
use tollgate_stores::counters::StoreError;
use tollgate_stores::counters::memcached::{MemcachedSetup, MemcachedStore};
use tollgate_testkit::central::load::{Load, check_answered_in_time};
use tollgate_testkit::central::{FIXED, Store, hit, left, limit, now, own};
use tollgate_testkit::servers::memcached::Memcached;
use tollgate_testkit::stores::memcached::{patient, usual};
use tollgate_testkit::{SOON, eventually};

use crate::ALONE;

const CALLERS: usize = 32;

/// Returns when the process does not run any more.
fn freeze(server: &Memcached) {
    server.process.signal("STOP");
    let stat = format!("/proc/{}/stat", server.process.id());
    let stopped = |text: String| text.split(") ").last().is_some_and(|rest| rest.starts_with('T'));
    eventually("the server stands still", || fs::read_to_string(&stat).is_ok_and(stopped));
}

/// Returns once the store answers, many times in a row.
async fn answers_again(store: &MemcachedStore, within: Duration) {
    let start = Instant::now();
    let mut answered = 0;
    let charge = own("again", "user:1", limit("1000000/h", FIXED));
    while answered < 50 {
        answered = if hit(store, &charge).await.is_ok() { answered + 1 } else { 0 };
        tokio::task::yield_now().await;
        assert!(start.elapsed() < within, "strict decisions are back within {within:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_does_not_delay_other_keys() {
    let _alone = ALONE.lock().await;
    let Some(server) = Memcached::start("a frozen memcached") else { return };
    let store = usual(&server.url());
    store.ready(SOON).await.expect("it answers");
    let shapes = [Shape::GCRA, FIXED];
    let loads =
        shapes.map(|shape| Load::start(&store, &own("l", "user:1", limit("100000/h", shape)), CALLERS));
    tokio::time::sleep(Duration::from_millis(300)).await;
    freeze(&server);
    let frozen = Instant::now();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    for load in loads {
        let seen = load.stop().await;
        check_answered_in_time(&seen, MemcachedSetup::DEADLINE);
        // Once the breaker is open no caller waits.
        let open = seen.iter().filter(|seen| seen.sent_at > frozen + Duration::from_millis(300));
        let waited = open.clone().filter(|seen| seen.took > Duration::from_millis(10)).count();
        assert!(open.clone().all(|seen| matches!(seen.error, Some(StoreError::Unreachable { .. }))));
        assert!(waited * 100 <= open.count(), "{waited} waited"); // the machine is busy at times
    }
    let health = &store.health()[0];
    assert!(health.refused > 0 && health.opened == 1, "{health:?}");
    server.process.signal("CONT");
    answers_again(&store, Duration::from_secs(2)).await;
    assert_eq!(store.trouble(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_server_takes_only_its_own_keys_with_it() {
    let _alone = ALONE.lock().await;
    let what = "a dead memcached of two";
    let (Some(mut one), Some(two)) = (Memcached::start(what), Memcached::start(what)) else { return };
    let store = usual(&format!("memcached://127.0.0.1:{},127.0.0.1:{}", one.port, two.port));
    store.ready(SOON).await.expect("they answer");
    let user = |n: usize| own("login", &format!("user:{n}"), limit("5/h", Shape::GCRA));
    for n in 0..40 {
        hit(&store, &user(n)).await.expect("it is charged");
    }
    let on_one = |n: usize| one.keys().iter().any(|key| key.contains(&format!("{{user:{n}}}")));
    let dead: Vec<_> = (0..40).filter(|n| on_one(*n)).collect();
    assert!((5..=35).contains(&dead.len()), "{} of 40 are on the first", dead.len());
    one.process.kill();
    for n in 0..40 {
        let answer = hit(&store, &user(n)).await;
        assert_eq!(answer.is_err(), dead.contains(&n), "user {n}: {answer:?}");
    }
    // An available limit decides, beside one that is not available.
    let living = (0..40).find(|n| !dead.contains(n)).expect("some are left");
    let charges = [user(dead[0]), user(living)];
    let both = store.charge(&charges, now()).await;
    assert!(
        both.admitted && both.limits[0].error().is_some() && both.limits[1].outcome().is_some(),
        "{both:?}"
    );
    assert_eq!(both.receipt(&charges).map(|receipt| receipt.items().len()), Some(1));
}

#[tokio::test]
async fn a_server_that_was_restarted_is_used_again() {
    let _alone = ALONE.lock().await;
    let Some(mut server) = Memcached::start("a restarted memcached") else { return };
    let store = usual(&server.url());
    store.ready(SOON).await.expect("it answers");
    let charge = own("login", "user:1", limit("5/h", Shape::GCRA));
    hit(&store, &charge).await.expect("it is charged");
    server.restart();
    answers_again(&store, SOON).await;
    assert_eq!(left(&store, &charge).await, 5, "a memcached that starts knows nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_closed_for_being_idle_is_no_outage() {
    let _alone = ALONE.lock().await;
    let idle = ["-o", "idle_timeout=1"];
    let Some(server) = Memcached::start_with("idle connections to memcached", &idle) else { return };
    let store = patient(&server.url());
    store.ready(SOON).await.expect("it answers");
    let kicked = || {
        let kicks = server.command("stats", "END").into_iter().find(|line| line.contains("idle_kicks"));
        kicks.is_some_and(|line| !line.ends_with(" 0"))
    };
    eventually("the server closes the connection", kicked);
    // Only the request in flight when the connection closed is lost.
    let charge = own("idle", "user:1", limit("5/h", FIXED));
    if hit(&store, &charge).await.is_err() {
        hit(&store, &charge).await.expect("it is charged");
    }
    assert_eq!(store.health()[0].opened, 0);
}
