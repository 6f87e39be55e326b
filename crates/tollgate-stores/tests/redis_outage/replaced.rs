//! A primary that dies (SIGKILL) and is replaced by its replica.

use std::time::{Duration, Instant};

use tollgate::Shape;
use tollgate_stores::counters::name::Naming;
use tollgate_stores::counters::redis::RedisSetup;

use crate::ALONE;
use crate::central::load::{Load, Seen, check_answered_in_time};
use crate::central::{hit, limit, own};
use crate::servers::SOON;
use crate::servers::cluster::RedisCluster;
use crate::servers::sentinel::SentinelGroup;
use crate::stores::usual;

const RATE: u64 = 20;
const BURST: u64 = 20;
const CALLERS: usize = 8;

/// Never more than the limit and one burst, which the replica may not have heard of.
fn check_admitted(seen: &[Seen]) {
    let times: Vec<_> = seen.iter().filter_map(|seen| seen.admitted).collect();
    let (first, last) = (times.iter().min().expect("some pass"), times.iter().max().expect("some pass"));
    let allowed = BURST + RATE * (last - first) / 1_000_000;
    assert!(times.len() as u64 <= allowed + BURST, "{} of {allowed} and a burst", times.len());
}

/// When the first strict decision came after `since`.
fn first_answer(seen: &[Seen], since: Instant) -> Duration {
    let after = seen.iter().find(|seen| seen.asked > since && seen.error.is_none()).expect("it comes back");
    after.asked - since
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_primary_of_a_cluster_stalls_nobody_and_its_replica_takes_over() {
    let _alone = ALONE.lock().await;
    let Some(mut servers) = RedisCluster::start("a dead primary of Redis Cluster") else { return };
    let store = usual(&servers.url());
    store.ready(SOON).await.expect("it answers");
    let charge = |user: usize| own("login", &format!("user:{user}"), limit("20/s", Shape::GCRA));
    let primary = |user| servers.primary_of(&Naming::Plain.name(&charge(user).counter, &charge(user).limit));
    let dies = primary(0);
    let other = (1..).find(|user| primary(*user) != dies).expect("another server");
    let (mine, others) =
        (Load::start(&store, &charge(0), CALLERS), Load::start(&store, &charge(other), CALLERS));
    tokio::time::sleep(Duration::from_millis(500)).await;
    let died = Instant::now();
    servers.servers[dies].process.kill();
    tokio::task::block_in_place(|| servers.wait_for_takeover(dies));
    let taken_over = Instant::now();
    while hit(&store, &charge(0)).await.is_err() {
        assert!(taken_over.elapsed() < Duration::from_secs(5), "the replica is found");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (mine, others) = (mine.stop().await, others.stop().await);
    check_answered_in_time(&mine, RedisSetup::DEADLINE);
    check_answered_in_time(&others, RedisSetup::DEADLINE);
    check_admitted(&mine);
    check_admitted(&others);
    let down = mine.iter().filter(|seen| seen.asked > died && seen.error.is_some()).count();
    assert!(down > 0, "somebody saw it");
    // Who is kept elsewhere hardly notices: the cluster itself may refuse while a part of it is missing.
    let answered = |seen: &[Seen]| seen.iter().filter(|seen| seen.error.is_none()).count() * 100 / seen.len();
    assert!(answered(&others) > answered(&mine), "{} % and {} %", answered(&others), answered(&mine));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_name_the_next_primary() {
    let _alone = ALONE.lock().await;
    let Some(mut group) = SentinelGroup::start("a dead primary of Redis Sentinel") else { return };
    let store = usual(&group.url());
    store.ready(SOON).await.expect("it answers");
    let charge = own("login", "user:1", limit("20/s", Shape::GCRA));
    let load = Load::start(&store, &charge, CALLERS);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (died, old) = (Instant::now(), group.servers[0].port);
    group.servers[0].process.kill();
    tokio::task::block_in_place(|| group.wait_for_other_primary(old));
    let replaced = Instant::now();
    while hit(&store, &charge).await.is_err() {
        assert!(replaced.elapsed() < Duration::from_secs(5), "the next primary is found");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let seen = load.stop().await;
    check_answered_in_time(&seen, RedisSetup::DEADLINE);
    check_admitted(&seen);
    assert!(first_answer(&seen, died) > Duration::ZERO);
}
