//! Violations of several nodes counted on real servers: none is lost, none counts twice, and a ban is decided once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollgate::Time;
use tollgate::internal::ban::{BanConditions, RuleViolations, Strikes, Violations};
use tollgate::internal::identity::Key;
use tollgate::internal::rule::RuleId;
use tollgate_stores::counters::StoreError;
use tollgate_stores::counters::cassandra;
use tollgate_stores::counters::central::CentralStore;
use tollgate_stores::counters::name::Naming;
use tollgate_stores::counters::violations::{BanEvent, SharedBans, ViolationOutcome};
use tollgate_testkit::servers::cassandra::Cassandra;
use tollgate_testkit::servers::cluster::RedisCluster;
use tollgate_testkit::servers::memcached::Memcached;
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::{Process, SOON};

const AFTER: u32 = 60;
const HOUR: Duration = Duration::from_secs(3_600);

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    Time::from_nanos(since.as_nanos() as u64)
}

fn key(name: &str) -> Key {
    Key::parse(&format!("user:{name}")).expect("valid")
}

fn violation(name: &str, at: Time) -> Violations {
    let conditions = BanConditions { after: AFTER, within: HOUR, first: HOUR, max: HOUR * 8 };
    let rule = RuleId::new("login").expect("valid");
    let by = RuleViolations { rule, conditions, times: [(at, 1)].into_iter().collect() };
    Violations { key: key(name), known_strikes: Strikes::default(), by_rule: [by].into_iter().collect() }
}

/// A node of its own, connected.
async fn node(url: &str) -> SharedBans {
    let address = url.parse().expect("a valid address");
    let store = CentralStore::open(address, Naming::Plain, Duration::from_secs(1)).expect("it opens");
    store.ready(SOON).await.expect("the server answers");
    SharedBans::new(store, Naming::Plain)
}

/// Retries until there is no conflict.
async fn count(node: &SharedBans, violations: &Violations) -> ViolationOutcome {
    loop {
        match node.count(violations, now()).await {
            Ok(outcome) => return outcome,
            Err(StoreError::Contended { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// The result of nodes that count concurrently.
async fn check(url: &str, nodes: u32) {
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..nodes {
        let node = node(url).await;
        writers.spawn(async move {
            let mut outcomes = Vec::new();
            for _ in 0..2 * AFTER / nodes {
                outcomes.push(count(&node, &violation("ann", now())).await);
            }
            outcomes
        });
    }
    let outcomes: Vec<ViolationOutcome> = writers.join_all().await.into_iter().flatten().collect();
    let counted = outcomes.iter().filter(|outcome| **outcome == ViolationOutcome::Counted).count();
    assert_eq!(counted, AFTER as usize - 1, "every violation before the last one counts once");
    let mut bans = outcomes.iter().filter_map(|outcome| match outcome {
        ViolationOutcome::Banned { ban, .. } => Some(ban),
        _ => None,
    });
    let ban = bans.next().expect("it was decided").clone();
    assert_eq!((bans.next(), ban.strikes, ban.reason.as_str()), (None, 1, "60 denials by rule login"));
    let same = |outcome: &ViolationOutcome| matches!(outcome, ViolationOutcome::AlreadyBanned { ban: known, .. } if *known == ban);
    assert_eq!(outcomes.iter().filter(|outcome| same(outcome)).count(), AFTER as usize, "all agree on it");

    let [one, two] = [node(url).await, node(url).await];
    assert_eq!(two.read_events().await.expect("it answers"), []);
    let events: Vec<_> =
        (0..300).map(|n| BanEvent::Banned { key: key(&n.to_string()), ban: ban.clone() }).collect();
    one.publish(&events, now()).await.expect("it answers");
    let lift = BanEvent::Lifted { key: key("7"), until: ban.until };
    two.publish(std::slice::from_ref(&lift), now()).await.expect("it answers");
    let all: Vec<_> = events.into_iter().chain([lift]).collect();
    assert_eq!(two.read_events().await.expect("it answers"), all, "in their order");
    assert_eq!(two.read_events().await.expect("it answers"), [], "once");
    assert_eq!(
        node(url).await.read_events().await.expect("it answers"),
        all,
        "a node that starts finds them all"
    );

    assert_eq!(one.forgive(&key("ann"), now()).await, Ok(Some(ban.until)));
    assert_eq!(two.forgive(&key("ann"), now()).await, Ok(None), "one node has lifted it");
    assert_eq!(count(&two, &violation("ann", now())).await, ViolationOutcome::Counted);
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_decides_once() {
    if let Some(redis) = Redis::start(Make::Redis, "violations on Redis") {
        check(&redis.url(), 6).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_cluster_decides_once() {
    if let Some(cluster) = RedisCluster::start("violations on a Redis Cluster") {
        check(&cluster.url(), 4).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memcached_decides_once() {
    let servers = [(); 2].map(|()| Memcached::start("violations on Memcached"));
    if let [Some(one), Some(two)] = servers {
        check(&format!("{},{}", one.url(), two.url().trim_start_matches("memcached://")), 6).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cassandra_decides_once() {
    let Some(server) = Cassandra::start("violations on Cassandra") else { return };
    let url = server.url("bans");
    let start = std::time::Instant::now();
    while let Err(error) = cassandra::init(&url.parse().expect("a valid address")).await {
        assert!(start.elapsed() < SOON, "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    check(&url, 3).await;
}

/// Violations are sent while the server stops and goes on at random moments, so that the outcome of some is unknown.
async fn check_unknown_outcomes(url: &str, process: &Process) {
    let node = Arc::new(node(url).await);
    let done = Arc::new(AtomicBool::new(false));
    let sender = {
        let node = Arc::clone(&node);
        let done = Arc::clone(&done);
        tokio::spawn(async move {
            for sent in 1u32.. {
                if let Ok(ViolationOutcome::Banned { .. } | ViolationOutcome::AlreadyBanned { .. }) =
                    node.count(&violation("ann", now()), now()).await
                {
                    done.store(true, Ordering::Release);
                    return sent;
                }
            }
            0
        })
    };
    let mut random = fastrand::Rng::with_seed(11);
    while !done.load(Ordering::Acquire) {
        process.signal("STOP");
        tokio::time::sleep(Duration::from_millis(random.u64(1..700))).await;
        process.signal("CONT");
        tokio::time::sleep(Duration::from_millis(random.u64(1..15))).await;
    }
    let sent = sender.await.expect("the sender ends");
    assert!(sent >= AFTER, "banned after {sent}: a violation has counted twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_with_an_unknown_outcome_counts_once() {
    if let Some(redis) = Redis::start(Make::Redis, "violations with an unknown outcome on Redis") {
        check_unknown_outcomes(&redis.url(), &redis.process).await;
    }
    if let Some(memcached) = Memcached::start("violations with an unknown outcome on Memcached") {
        check_unknown_outcomes(&memcached.url(), &memcached.process).await;
    }
}
