//! A server that is stopped (SIGSTOP) and goes on later (SIGCONT).

use std::fs;
use std::time::{Duration, Instant};

use tollgate::internal::limit::Shape;
use tollgate_stores::counters::StoreError;
use tollgate_stores::counters::name::Naming;
use tollgate_stores::counters::redis::RedisSetup;
use tollgate_testkit::central::load::{Load, ObservedCharge, check_answered_in_time};
use tollgate_testkit::central::{FIXED, hit, left, limit, own};
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::stores::redis::{patient, usual};
use tollgate_testkit::{SOON, eventually};

use crate::ALONE;

const CALLERS: usize = 32;
/// Commands that the server's log keeps, more than a test sends after the server resumes.
const LOGGED: &str = "20000";

/// Returns when the process does not run any more.
pub fn freeze(server: &Redis) {
    server.process.signal("STOP");
    let stat = format!("/proc/{}/stat", server.process.id());
    eventually("the server stands still", || {
        fs::read_to_string(&stat)
            .is_ok_and(|text| text.split(") ").last().is_some_and(|rest| rest.starts_with('T')))
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_delays_no_other_key_and_charges_nothing_when_it_resumes() {
    let _alone = ALONE.lock().await;
    let Some(server) = Redis::start(Make::Redis, "a frozen Redis") else { return };
    for (setting, value) in [("slowlog-log-slower-than", "0"), ("slowlog-max-len", LOGGED)] {
        assert_eq!(server.command(&["CONFIG", "SET", setting, value]), "+OK\r\n");
    }
    let store = usual(&server.url());
    store.ready(SOON).await.expect("it answers");
    let before = Load::start(&store, &own("before", "user:1", limit("100000/h", FIXED)), CALLERS);
    tokio::time::sleep(Duration::from_millis(300)).await;
    freeze(&server);
    // All requests for this key go to a frozen server.
    let charge = own("frozen", "user:1", limit("100000/h", FIXED));
    let frozen = Load::start(&store, &charge, CALLERS);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let before = before.stop().await;
    let frozen = frozen.stop().await;

    check_answered_in_time(&before, RedisSetup::DEADLINE);
    check_answered_in_time(&frozen, RedisSetup::DEADLINE);
    assert!(frozen.iter().all(|seen| seen.error.is_some()));
    // Once the breaker is open no caller waits; each failure is counted.
    let at_open: Vec<_> = before.iter().chain(&frozen).filter(|seen| seen.open).collect();
    assert!(at_open.len() > 1000, "the breaker opens soon: {} were refused", at_open.len());
    let waited = at_open.iter().filter(|seen| seen.took > Duration::from_millis(10)).count();
    assert!(waited * 200 <= at_open.len(), "{waited} of {} waited", at_open.len()); // the machine is busy at times
    let was_refused = |seen: &&ObservedCharge| matches!(seen.error, Some(StoreError::Unreachable { .. }));
    let refused = before.iter().chain(&frozen).filter(was_refused).count() as u64;
    let health = &store.health()[0];
    assert!(
        health.refused >= at_open.len() as u64 && health.refused <= refused,
        "{} of {refused}",
        health.refused
    );
    assert_eq!(health.opened, 1);

    let thawed = Instant::now();
    server.process.signal("CONT");
    let strict = own("strict", "user:1", limit("5/h", FIXED));
    let mut answered = 0;
    while answered < 50 {
        answered = if hit(&store, &strict).await.is_ok() { answered + 1 } else { 0 };
        assert!(thawed.elapsed() < Duration::from_secs(2), "strict decisions are back within two seconds");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let name = Naming::Plain.name(&charge.counter().id, &charge.counter().limit);
    let log = server.command(&["SLOWLOG", "GET", LOGGED]);
    assert!(log.contains(&name), "the server has read some of the frozen calls");
    let patient = patient(&server.url());
    patient.ready(SOON).await.expect("it answers");
    assert_eq!(left(&patient, &charge).await, 100_000, "and they charge nothing");
    assert!(store.health()[0].trouble.is_none());
}

/// Busy errors do not wait either: the requests in flight are bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_at_a_frozen_server_is_bounded() {
    let _alone = ALONE.lock().await;
    let Some(server) = Redis::start(Make::Redis, "a flood at a frozen Redis") else { return };
    let store = patient(&server.url());
    store.ready(SOON).await.expect("it answers");
    freeze(&server);
    let charge = own("flood", "user:1", limit("5/h", Shape::GCRA));
    let flood: Vec<_> = (0..10_000)
        .map(|_| {
            let store = store.clone();
            let charge = charge.clone();
            tokio::spawn(async move { hit(&store, &charge).await })
        })
        .collect();
    let mut busy = 0;
    for request in flood {
        match request.await.expect("it ends") {
            Err(StoreError::Busy { .. }) => busy += 1,
            Err(_) => {}
            Ok(_) => panic!("the server is stopped"),
        }
    }
    assert!((1000..10_000).contains(&busy), "{busy} were answered at once");
    server.process.signal("CONT");
    store.ready(SOON).await.expect("it is back");
    // A store that returns gradually does not serve every request yet.
    let other = patient(&server.url());
    other.ready(SOON).await.expect("it answers");
    assert_eq!(left(&other, &charge).await, 5);
}
