//! Many at once on one key: never above the limit, hardly below it.

use crate::central::{SHAPES, crowd};
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_never_both_get_the_last_token() {
    let Some((server, _turn)) = turn("the last token on Cassandra").await else { return };
    let url = server.url("last_token");
    let nodes = [patient(&url).await, patient(&url).await];
    for shape in SHAPES {
        assert_eq!(crowd::race(&nodes, shape).await, 20, "{shape:?}");
    }
}
