//! Every answer is that of the pure functions.

use crate::central::Told;
use crate::conformance;
use crate::servers::memcached::Memcached;
use crate::stores::patient;

#[tokio::test]
async fn two_memcacheds_conform() {
    let what = "conformance of memcached";
    let (Some(one), Some(two)) = (Memcached::start(what), Memcached::start(what)) else { return };
    let url = format!("memcached://127.0.0.1:{},127.0.0.1:{}", one.port, two.port);
    conformance::check(&Told::new(patient(&url), 40)).await;
    assert!(!one.keys().is_empty() && !two.keys().is_empty(), "both keep a share");
}
