//! A server that stands still, and answers that come too late.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tollgate::internal::Shape;
use tollgate_stores::counters::StoreError;
use tollgate_stores::counters::cassandra::{CassandraSetup, CassandraStore};
use tollgate_testkit::central::load::{Load, check_answered_in_time};
use tollgate_testkit::central::{Store, hit, left, limit, own};
use tollgate_testkit::servers::cassandra::Cassandra;
use tollgate_testkit::stores::cassandra::{initialise, patient, setup, usual};
use tollgate_testkit::{SOON, eventually};

use crate::cassandra::exclusive;
use crate::cassandra::relay::{Arrives, Delayed};

/// Returns when the process does not run any more.
fn freeze(server: &Cassandra) {
    server.process.signal("STOP");
    let stat = format!("/proc/{}/stat", server.process.id());
    let stopped = |text: String| text.split(") ").last().is_some_and(|rest| rest.starts_with('T'));
    eventually("the server stands still", || fs::read_to_string(&stat).is_ok_and(stopped));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_does_not_delay_other_keys() {
    let Some((server, _exclusive)) = exclusive("a frozen Cassandra").await else { return };
    let url = server.url("frozen");
    initialise(&url).await;
    let store = usual(&url);
    store.ready(SOON).await.expect("it answers");
    let load = Load::start(&store, &own("load", "user:1", limit("100000/h", Shape::GCRA)), 32);
    tokio::time::sleep(Duration::from_millis(500)).await;
    freeze(&server);
    let frozen = Instant::now();
    tokio::time::sleep(Duration::from_millis(3000)).await;
    let seen = load.stop().await;
    check_answered_in_time(&seen, CassandraSetup::DEADLINE);
    let open = seen.iter().filter(|seen| seen.sent_at > frozen + Duration::from_millis(1500));
    assert!(open.clone().all(|seen| matches!(seen.error, Some(StoreError::Unreachable { .. }))));
    let waited = open.clone().filter(|seen| seen.took > Duration::from_millis(10)).count();
    assert!(waited * 100 <= open.count(), "{waited} waited"); // the machine is busy at times
    assert!(store.trouble().is_some());
    server.process.signal("CONT");
    let thawed = Instant::now();
    let charge = own("again", "user:1", limit("100000/h", Shape::GCRA));
    let mut answered = 0;
    while answered < 20 {
        answered = if hit(&store, &charge).await.is_ok() { answered + 1 } else { 0 };
        tokio::task::yield_now().await;
        assert!(thawed.elapsed() < SOON, "it is back");
    }
}

/// The answer to a transaction comes too late: a serial read finds out that it was done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_timeout_a_serial_read_determines_the_outcome() {
    let Some((server, _exclusive)) = exclusive("late answers of Cassandra").await else { return };
    let direct = patient(&server.url("late")).await;
    let slow = Delayed::start(server.port);
    let store = usual(&format!("cassandra://cassandra:cassandra@127.0.0.1:{}/late", slow.port));
    store.ready(SOON).await.expect("it answers");
    let charge = own("late", "user:1", limit("100/d", Shape::GCRA));
    hit(&store, &charge).await.expect("it is charged");
    let mut found_out = 0;
    for _ in 0..10 {
        // Answers to the read come at once; those to the transaction only after it was given up.
        slow.hold_after(1, CassandraSetup::DEADLINE.mul_f64(0.75));
        let before = left(&direct, &charge).await;
        let answer = hit(&store, &charge).await;
        let after = left(&direct, &charge).await;
        match answer {
            Ok(part) => {
                assert!(part.grant.is_some());
                assert_eq!(before - after, 1, "charged once, neither lost nor twice");
                found_out += 1;
            }
            Err(error) => assert!(before - after <= 1, "{error}"),
        }
    }
    assert!(found_out > 0, "some were found out about");
    assert_eq!(slow.held.load(Ordering::Relaxed), 10, "answers were held back");
}

/// One transaction of a key is in flight at a time; all waiters share the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_for_one_key_share_a_transaction() {
    let Some((server, _exclusive)) = exclusive("combined charges on Cassandra").await else { return };
    patient(&server.url("combined")).await;
    let between = Delayed::start(server.port);
    let store =
        patient(&format!("cassandra://cassandra:cassandra@127.0.0.1:{}/combined", between.port)).await;
    let charge = own("combined", "user:1", limit("1000/d", Shape::GCRA));
    hit(&store, &charge).await.expect("it is charged");
    let before = between.passed.load(Ordering::Relaxed);
    let sent_at = (0..200).map(|_| {
        let store = store.clone();
        let charge = charge.clone();
        tokio::spawn(async move { hit(&store, &charge).await })
    });
    for sent_at in sent_at.collect::<Vec<_>>() {
        sent_at.await.expect("it ends").expect("it is charged");
    }
    let answers = between.passed.load(Ordering::Relaxed) - before;
    assert!(answers <= 40, "200 charges took {answers} answers");
    assert_eq!(left(&store, &charge).await, 799);
}

/// A transaction is lost on its way, looked up as not done, and arrives after all before it is tried again: the second
/// try read its result and charged once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_arrives_late_and_is_sent_again_counts_once() {
    let Some((server, _exclusive)) = exclusive("late transactions of Cassandra").await else { return };
    let direct = patient(&server.url("twice")).await;
    let between = Delayed::start(server.port);
    let url = format!("cassandra://cassandra:cassandra@127.0.0.1:{}/twice", between.port);
    let store = CassandraStore::open(CassandraSetup { deadline: Duration::from_secs(6), ..setup(&url) });
    store.ready(SOON).await.expect("it answers");
    let charge = own("twice", "user:1", limit("100/d", Shape::GCRA));
    hit(&store, &charge).await.expect("it is charged");
    for arrives in [Arrives::AfterLookUp, Arrives::AfterSecondSend] {
        let before = left(&direct, &charge).await;
        between.hold_request_after(1, arrives);
        let part = hit(&store, &charge).await.expect("it is found out about");
        assert!(part.grant.is_some());
        eventually("the first one has arrived", || between.is_passed_on());
        assert_eq!(before - left(&direct, &charge).await, 1, "{arrives:?}");
    }
}
