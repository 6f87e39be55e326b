//! Concurrent charges of one key: never above the limit, hardly below it.

use tollgate_testkit::central::{SHAPES, contention};
use tollgate_testkit::stores::cassandra::{initialise, patient, usual};

use crate::cassandra::exclusive;

/// The body of each child process.
const PROCESS: &str = concat!(module_path!(), "::one_of_the_processes");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_four_and_eight_processes_share_one_limit() {
    let Some((server, _exclusive)) = exclusive("processes on one key of Cassandra").await else { return };
    let url = server.url("contention");
    initialise(&url).await;
    for processes in [2, 4, 8] {
        let url = url.clone();
        let check = move || contention::check(PROCESS, &url, processes);
        tokio::task::spawn_blocking(check).await.expect("the limit holds");
    }
}

#[tokio::test]
#[ignore = "a process of the test above"]
async fn one_of_the_processes() {
    contention::run_child(usual).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_never_both_get_the_last_token() {
    let Some((server, _exclusive)) = exclusive("the last token on Cassandra").await else { return };
    let url = server.url("last_token");
    let nodes = [patient(&url).await, patient(&url).await];
    for shape in SHAPES {
        assert_eq!(contention::race(&nodes, shape).await, 20, "{shape:?}");
    }
}
