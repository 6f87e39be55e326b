//! Many at once on one key: never above the limit, hardly below it.

use tollgate::Shape;

use crate::central::{FIXED, crowd, left, limit, now, own};
use crate::stores::{initialise, patient, usual};
use crate::turn;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_four_and_eight_processes_share_one_limit() {
    let Some((server, _turn)) = turn("processes on one key of Cassandra").await else { return };
    let url = server.url("crowd");
    initialise(&url).await;
    for processes in [2, 4, 8] {
        let url = url.clone();
        let check = move || crowd::check("crowd::one_of_the_processes", &url, processes);
        tokio::task::spawn_blocking(check).await.expect("the limit holds");
    }
}

/// Not a test of its own: what the processes of the one above run.
#[tokio::test]
async fn one_of_the_processes() {
    let Some(order) = crowd::order() else { return };
    let store = usual(order.split(' ').next().unwrap_or_default());
    crowd::hammer(store, &order).await;
}

/// Of many who ask at the same instant exactly as many pass as the limit says, whatever counts them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_never_both_get_the_last_token() {
    let Some((server, _turn)) = turn("the last token on Cassandra").await else { return };
    let url = server.url("last_token");
    let nodes = [patient(&url).await, patient(&url).await];
    let tiers = Shape::TieredWindow { levels: tollgate::limit::Levels::SMH };
    for shape in [Shape::GCRA, FIXED, Shape::SlidingCounter, Shape::SlidingLog, tiers] {
        let charge = own("last", "user:1", limit("20/d", shape));
        let at = now();
        let asked = (0..60).map(|n| {
            let (node, charge) = (nodes[n % 2].clone(), charge.clone());
            tokio::spawn(async move { node.charge(&[charge], at).await })
        });
        let mut passed = 0;
        for asked in asked.collect::<Vec<_>>() {
            let outcome = asked.await.expect("it ends");
            assert!(outcome.parts[0].is_ok(), "{:?}", outcome.parts[0]);
            passed += u64::from(outcome.admitted);
        }
        assert_eq!((passed, left(&nodes[0], &charge).await), (20, 0), "{shape:?}");
    }
}
