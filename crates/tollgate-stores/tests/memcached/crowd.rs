//! Many at once on one key: never above the limit, hardly below it.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tollgate::Shape;
use tollgate_stores::counters::StoreError;

use crate::central::{SHAPES, crowd, hit, limit, own};
use crate::servers::SOON;
use crate::servers::memcached::Memcached;
use crate::stores::{patient, usual};

#[test]
fn two_four_and_eight_processes_share_one_limit() {
    let Some(server) = Memcached::start("processes on one key of memcached") else { return };
    for processes in [2, 4, 8] {
        crowd::check("crowd::one_of_the_processes", &server.url(), processes);
    }
}

/// Not a test of its own: what the processes of the one above run.
#[tokio::test]
async fn one_of_the_processes() {
    let Some(order) = crowd::order() else { return };
    let store = usual(order.split(' ').next().unwrap_or_default());
    crowd::hammer(store, &order).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_never_both_get_the_last_token() {
    let Some(server) = Memcached::start("the last token on memcached") else { return };
    let nodes = [patient(&server.url()), patient(&server.url())];
    for shape in SHAPES {
        // Who is denied may have stood in the way of another; never the other way round.
        let passed = crowd::race(&nodes, shape).await;
        assert!((1..=20).contains(&passed), "{passed} of 20 pass, {shape:?}");
    }
}

/// A counter that somebody else writes all the time: the tries run out, and that is said and counted.
#[tokio::test(flavor = "multi_thread")]
async fn tries_run_out_when_others_are_always_faster() {
    let Some(server) = Memcached::start("contention on memcached") else { return };
    let store = patient(&server.url());
    let charge = own("busy", "user:1", limit("1000000/d", Shape::GCRA));
    hit(&store, &charge).await.expect("it is charged");
    let (key, over) = (server.keys().pop().expect("one key"), Arc::new(AtomicBool::new(false)));
    let writer = std::thread::spawn({
        let (over, mut stream) = (over.clone(), server.connect());
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
    assert!(contended > 0, "somebody else was always faster");
    assert_eq!(store.contended(), contended);
    let start = Instant::now();
    while hit(&store, &charge).await.is_err() {
        assert!(start.elapsed() < SOON, "it is charged again");
    }
}
