//! Every answer is that of the pure functions.

use tollgate_testkit::central::{CentralSubject, refunds, skew, together};
use tollgate_testkit::conformance;
use tollgate_testkit::servers::memcached::Memcached;
use tollgate_testkit::stores::memcached::patient;

#[tokio::test]
async fn two_memcacheds_conform() {
    let what = "conformance of memcached";
    let (Some(one), Some(two)) = (Memcached::start(what), Memcached::start(what)) else { return };
    let url = format!("memcached://127.0.0.1:{},127.0.0.1:{}", one.port, two.port);
    conformance::check(&CentralSubject::new(patient(&url), 40)).await;
    assert!(!one.keys().is_empty() && !two.keys().is_empty(), "both keep a share");
}

#[tokio::test]
async fn clock_skew_admits_no_more_than_documented() {
    let Some(server) = Memcached::start("clocks that differ on memcached") else { return };
    skew::check(&patient(&server.url())).await;
}

#[tokio::test]
async fn a_clock_that_was_ahead_denies_no_longer_than_its_limit() {
    let Some(server) = Memcached::start("a clock that was ahead on memcached") else { return };
    skew::check_far_ahead(&patient(&server.url())).await;
    skew::check_lowered(&patient(&server.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denied_hits_do_not_drain_the_shared_limit() {
    let what = "several limits on memcached";
    let (Some(one), Some(two)) = (Memcached::start(what), Memcached::start(what)) else { return };
    together::check(&patient(&format!("memcached://127.0.0.1:{},127.0.0.1:{}", one.port, two.port))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_hit_that_lost_a_race_is_counted_once() {
    let what = "denied hits that count on memcached";
    let (Some(one), Some(two)) = (Memcached::start(what), Memcached::start(what)) else { return };
    let url = format!("memcached://127.0.0.1:{},127.0.0.1:{}", one.port, two.port);
    together::check_counted(&[patient(&url), patient(&url)]).await;
}

#[tokio::test]
async fn refunds_are_not_lost_when_clocks_go_back() {
    let Some(server) = Memcached::start("refunds on memcached") else { return };
    refunds::check(&patient(&server.url())).await;
}
