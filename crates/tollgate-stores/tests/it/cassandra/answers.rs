//! Every answer is that of the pure functions.

use tollgate_testkit::central::{CentralSubject, skew, together};
use tollgate_testkit::conformance;
use tollgate_testkit::stores::cassandra::patient;

use crate::cassandra::exclusive;

#[tokio::test]
async fn cassandra_conforms() {
    let Some((server, _exclusive)) = exclusive("conformance of Cassandra").await else { return };
    conformance::check(&CentralSubject::new(patient(&server.url("conformance")).await, 12)).await;
}

#[tokio::test]
async fn clock_skew_admits_no_more_than_documented() {
    let Some((server, _exclusive)) = exclusive("clocks that differ on Cassandra").await else { return };
    skew::check(&patient(&server.url("skew")).await).await;
}

#[tokio::test]
async fn a_clock_that_was_ahead_denies_no_longer_than_its_limit() {
    let Some((server, _exclusive)) = exclusive("a clock that was ahead on Cassandra").await else { return };
    let store = patient(&server.url("ahead")).await;
    skew::check_far_ahead(&store).await;
    skew::check_lowered(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denied_hits_do_not_drain_the_shared_limit() {
    let Some((server, _exclusive)) = exclusive("several limits on Cassandra").await else { return };
    together::check(&patient(&server.url("several")).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_hit_that_lost_a_race_is_counted_once() {
    let Some((server, _exclusive)) = exclusive("denied hits that count on Cassandra").await else { return };
    let url = server.url("counted");
    together::check_counted(&[patient(&url).await, patient(&url).await]).await;
}
