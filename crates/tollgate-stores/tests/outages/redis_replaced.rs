//! A primary that dies (SIGKILL) and is replaced by its replica.
//!
//! The time that the servers themselves need for that is theirs: what is asserted is counted from the moment at which
//! the replica was a primary.

use std::time::{Duration, Instant};

use tollgate::internal::Shape;
use tollgate::internal::store::Charge;
use tollgate_stores::counters::StoreError;
use tollgate_stores::counters::name::Naming;
use tollgate_stores::counters::redis::RedisSetup;
use tollgate_testkit::SOON;
use tollgate_testkit::central::load::{Load, ObservedCharge, check_answered_in_time};
use tollgate_testkit::central::{hit, limit, now, own, shared};
use tollgate_testkit::servers::cluster::RedisCluster;
use tollgate_testkit::servers::sentinel::SentinelGroup;
use tollgate_testkit::stores::redis::{patient, usual};

use crate::ALONE;
use crate::redis_frozen::freeze;

const RATE: u64 = 20;
const BURST: u64 = 20;
const CALLERS: usize = 8;
/// Between two requests of a caller.
const PAUSE: Duration = Duration::from_millis(40);
/// How long after the promotion requests may still fail.
const FOUND_WITHIN: Duration = Duration::from_millis(500);

/// Never more than the limit and one burst, which may not have been replicated.
fn check_admitted(seen: &[ObservedCharge]) {
    let times: Vec<_> = seen.iter().filter_map(|seen| seen.admitted).collect();
    let first = times.iter().min().expect("some pass");
    let last = times.iter().max().expect("some pass");
    let allowed = BURST + RATE * (last - first) / 1_000_000;
    assert!(times.len() as u64 <= allowed + BURST, "{} of {allowed} and a burst", times.len());
}

/// At most what a steady load sends in `FOUND_WITHIN` fails after the promotion, and something did before. Counted,
/// not timed: a machine that stands still sends nothing meanwhile.
fn check_found_soon(seen: &[ObservedCharge], died: Instant, promoted: Instant) {
    let failed =
        |since: Instant| seen.iter().filter(|seen| seen.sent_at > since && seen.error.is_some()).count();
    assert!(failed(died) > 0, "some requests failed");
    let last = seen.iter().rev().find(|seen| seen.error.is_some()).expect("one failed");
    let last = (last.sent_at.saturating_duration_since(promoted), &last.error);
    let most = CALLERS * (FOUND_WITHIN.as_millis() / PAUSE.as_millis()) as usize;
    assert!(
        failed(promoted) <= most,
        "{} failed after the promotion, {most} at most; the last {last:?}",
        failed(promoted)
    );
}

/// Charges until the promoted server answers.
async fn wait_until_found(store: &impl tollgate_testkit::central::Store, charge: &Charge) {
    let start = Instant::now();
    while hit(store, charge).await.is_err() {
        assert!(start.elapsed() < SOON, "the promoted server is never found");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn login(user: usize) -> Charge {
    own("login", &format!("user:{user}"), limit("20/s", Shape::GCRA))
}

/// A user or a shared rule on server `n`, or on any other than that.
fn charge_on(
    servers: &RedisCluster,
    wanted: impl Fn(usize) -> bool,
    make: impl Fn(usize) -> Charge,
) -> Charge {
    let on = |charge: &Charge| {
        servers.primary_of(&Naming::Plain.name(&charge.counter().id, &charge.counter().limit))
    };
    (0..).map(make).find(|charge| wanted(on(charge))).expect("there is always another")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_primary_of_a_cluster_fails_its_own_slots_and_no_others() {
    let _alone = ALONE.lock().await;
    let Some(mut servers) = RedisCluster::start("a dead primary of Redis Cluster") else { return };
    let dies = servers.primary_of("any");
    let mine = charge_on(&servers, |n| n == dies, login);
    let other = charge_on(&servers, |n| n != dies, login);
    let everybody = |n: usize| shared(&format!("all{n}"), limit("20/s", Shape::GCRA));
    let everybody = charge_on(&servers, |n| n != dies, everybody);
    // Patient, so that only a real failure counts on a busy machine; still no caller waits for the dead server.
    let store = usual(&servers.url());
    let patient = patient(&servers.url());
    store.ready(SOON).await.expect("it answers");
    patient.ready(SOON).await.expect("it answers");
    let on_dead = Load::steady(&store, std::slice::from_ref(&mine), CALLERS, PAUSE);
    let on_live = Load::steady(&patient, std::slice::from_ref(&other), CALLERS, PAUSE);
    let on_both = Load::steady(&patient, &[mine.clone(), everybody], CALLERS, PAUSE);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let died = Instant::now();
    servers.servers[dies].process.kill();
    tokio::task::block_in_place(|| servers.wait_for_takeover(dies));
    let promoted = Instant::now();
    wait_until_found(&store, &mine).await;
    let on_dead = on_dead.stop().await;
    let on_live = on_live.stop().await;
    let on_both = on_both.stop().await;
    check_answered_in_time(&on_dead, RedisSetup::DEADLINE);
    check_admitted(&on_dead);
    check_admitted(&on_live);
    check_found_soon(&on_dead, died, promoted);
    for seen in [&on_live, &on_both] {
        let failed: Vec<_> = seen.iter().filter_map(|seen| seen.error.as_ref()).collect();
        assert!(failed.is_empty(), "{} of {} on live slots: {:?}", failed.len(), seen.len(), failed[0]);
        assert!(
            seen.iter().any(|seen| seen.sent_at > died && seen.sent_at < promoted),
            "some were sent meanwhile"
        );
    }
    let longest = on_both.iter().map(|seen| seen.took).max().expect("some were sent");
    assert!(longest < Duration::from_secs(4), "a live slot waited {longest:?} for the dead one");
}

/// Redis' default refuses every slot while one is not served. The error says so, and names the setting that changes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_requires_full_coverage_refuses_live_slots_too_and_the_error_names_the_setting() {
    let _alone = ALONE.lock().await;
    let what = "a dead primary of a Redis Cluster that requires full coverage";
    let Some(mut servers) = RedisCluster::start_with(what, "yes") else { return };
    let dies = servers.primary_of("any");
    let live = charge_on(&servers, |n| n != dies, login);
    let store = patient(&servers.url());
    store.ready(SOON).await.expect("it answers");
    let load = Load::steady(&store, std::slice::from_ref(&live), 1, Duration::from_millis(10));
    servers.servers[dies].process.kill();
    tokio::task::block_in_place(|| servers.wait_for_takeover(dies));
    wait_until_found(&store, &charge_on(&servers, |n| n == dies, login)).await;
    let seen = load.stop().await;
    let failed: Vec<_> = seen.iter().filter_map(|seen| seen.error.as_ref()).collect();
    assert!(!failed.is_empty(), "the cluster refuses everybody for a while");
    for error in failed {
        let is_named = matches!(error, StoreError::Unreachable { reason, .. } if reason.contains("cluster-require-full-coverage no"));
        assert!(is_named, "{error}");
    }
    assert!(store.health().iter().all(|server| server.opened == 0 || server.trouble.is_some()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_promoted_replica_of_a_sentinel_group_is_found_at_once() {
    let _alone = ALONE.lock().await;
    let Some(mut group) = SentinelGroup::start("a dead primary of Redis Sentinel") else { return };
    let store = usual(&group.url());
    store.ready(SOON).await.expect("it answers");
    let load = Load::steady(&store, &[login(1)], CALLERS, PAUSE);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let died = Instant::now();
    group.servers[0].process.kill();
    tokio::task::block_in_place(|| group.wait_for_promotion());
    let promoted = Instant::now();
    wait_until_found(&store, &login(1)).await;
    // The failover may not be complete; requests go to the last announced primary.
    tokio::task::block_in_place(|| group.wait_for_other_primary(group.servers[0].port));
    let switched = Instant::now();
    wait_until_found(&store, &login(1)).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let seen = load.stop().await;
    check_answered_in_time(&seen, RedisSetup::DEADLINE);
    check_admitted(&seen);
    check_found_soon(&seen, died, promoted);
    let after =
        seen.iter().filter(|seen| seen.sent_at > switched + FOUND_WITHIN && seen.error.is_some()).count();
    assert_eq!(after, 0, "nothing fails once the sentinels agree");
}

/// A stopped server keeps its connections: only missing responses show that it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_primary_of_a_cluster_does_not_use_up_the_time_of_live_slots() {
    let _alone = ALONE.lock().await;
    let Some(servers) = RedisCluster::start("a frozen primary of Redis Cluster") else { return };
    let stops = servers.primary_of("any");
    let mine = charge_on(&servers, |n| n == stops, login);
    let everybody = |n: usize| shared(&format!("all{n}"), limit("20/s", Shape::GCRA));
    let everybody = charge_on(&servers, |n| n != stops, everybody);
    let store = patient(&servers.url());
    store.ready(SOON).await.expect("it answers");
    assert!(
        store
            .charge(&[mine.clone(), everybody.clone()], now())
            .await
            .limits
            .iter()
            .all(|limit| limit.outcome().is_some())
    );
    freeze(&servers.servers[stops]);
    let charges = [mine, everybody];
    let outcome = store.charge(&charges, now()).await;
    servers.servers[stops].process.signal("CONT");
    assert!(outcome.limits[0].error().is_some() && outcome.limits[1].outcome().is_some(), "{outcome:?}");
    assert_eq!(outcome.receipt(&charges).map(|receipt| receipt.items().len()), Some(1));
}
