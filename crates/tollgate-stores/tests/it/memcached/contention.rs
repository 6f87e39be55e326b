//! Concurrent charges of one key: never above the limit, hardly below it.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use tollgate::internal::Shape;
use tollgate::internal::limit::Levels;
use tollgate::internal::store::Charge;
use tollgate_stores::counters::StoreError;
use tollgate_testkit::SOON;
use tollgate_testkit::central::{FIXED, SHAPES, contention, hit, limit, now, own};
use tollgate_testkit::servers::memcached::Memcached;
use tollgate_testkit::stores::memcached::{patient, usual};

/// The body of each child process.
const PROCESS: &str = concat!(module_path!(), "::one_of_the_processes");

#[test]
fn two_four_and_eight_processes_share_one_limit() {
    let Some(server) = Memcached::start("processes on one key of memcached") else { return };
    for processes in [2, 4, 8] {
        contention::check(PROCESS, &server.url(), processes);
    }
}

#[tokio::test]
#[ignore = "a process of the test above"]
async fn one_of_the_processes() {
    contention::run_child(usual).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_never_both_get_the_last_token() {
    let Some(server) = Memcached::start("the last token on memcached") else { return };
    let nodes = [patient(&server.url()), patient(&server.url())];
    for shape in SHAPES {
        // A denied caller may have made another one fail; never the other way round.
        let passed = contention::race(&nodes, shape).await;
        assert!((1..=20).contains(&passed), "{passed} of 20 pass, {shape:?}");
    }
}

/// Eight callers requested the whole limit, again and again; 499 of 500 hits of another caller were denied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denied_callers_do_not_starve_a_caller_whose_cost_fits() {
    let Some(server) = Memcached::start("starvation on memcached") else { return };
    let nodes = [patient(&server.url()), patient(&server.url())];
    for shape in [FIXED, Shape::SlidingCounter, Shape::TieredWindow { levels: Levels::SMH }] {
        let fits = own("starved", "user:1", limit("500/d", shape));
        let at = now();
        assert!(nodes[0].charge(std::slice::from_ref(&fits), at).await.admitted);
        let denied = Arc::new(AtomicU64::new(0));
        let over = Arc::new(AtomicBool::new(false));
        let callers: Vec<_> = (0..8)
            .map(|n| {
                let node = nodes[n % 2].clone();
                let denied = denied.clone();
                let over = over.clone();
                let charge = Charge { cost: 500, ..fits.clone() };
                tokio::spawn(async move {
                    while !over.load(Ordering::Relaxed) {
                        assert!(!node.charge(std::slice::from_ref(&charge), at).await.admitted);
                        denied.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        while denied.load(Ordering::Relaxed) < 16 {
            tokio::task::yield_now().await;
        }
        let mut passed = 0;
        for _ in 0..499 {
            passed += u64::from(nodes[0].charge(std::slice::from_ref(&fits), at).await.admitted);
        }
        over.store(true, Ordering::Relaxed);
        for caller in callers {
            caller.await.expect("it ends");
        }
        assert!(passed >= 450, "{passed} of 499 pass, {shape:?}");
    }
}

/// A counter that is rewritten all the time: the retries run out, which is reported and counted.
#[tokio::test(flavor = "multi_thread")]
async fn retries_are_bounded_under_contention() {
    let Some(server) = Memcached::start("contention on memcached") else { return };
    let store = patient(&server.url());
    let charge = own("busy", "user:1", limit("1000000/d", Shape::GCRA));
    hit(&store, &charge).await.expect("it is charged");
    let key = server.keys().pop().expect("one key");
    let over = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let over = over.clone();
        let mut stream = server.connect();
        let value = server.value(&key);
        let set = [format!("ms {key} {} q T600\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
        move || {
            while !over.load(Ordering::Relaxed) {
                stream.write_all(&set.repeat(20)).expect("it is written");
            }
        }
    });
    let mut contended = 0;
    for _ in 0..2000 {
        match hit(&store, &charge).await {
            Err(StoreError::Contended { .. }) => contended += 1,
            answer => assert!(answer.is_ok(), "{answer:?}"),
        }
        if contended > 0 {
            break;
        }
    }
    over.store(true, Ordering::Relaxed);
    writer.join().expect("it ends");
    assert!(contended > 0, "every attempt conflicted");
    assert_eq!(store.contended(), contended);
    let start = Instant::now();
    while hit(&store, &charge).await.is_err() {
        assert!(start.elapsed() < SOON, "it is charged again");
    }
}
