//! Records of tracked keys on real servers: every delta once, whatever is sent again, and nodes that write at once.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::Time;
use tollgate::internal::rule::Tracking;
use tollgate::internal::store::{CounterKey, KeyPart, Sensitivity};
use tollgate::internal::track::central::CentralTrackStore;
use tollgate::internal::track::{Delta, Track};
use tollgate_stores::counters::cassandra::{self, CassandraSetup};
use tollgate_stores::counters::central::CentralStore;
use tollgate_stores::counters::name::Naming;
use tollgate_stores::counters::{CounterId, StoreError};
use tollgate_testkit::servers::cassandra::Cassandra;
use tollgate_testkit::servers::cluster::RedisCluster;
use tollgate_testkit::servers::memcached::Memcached;
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::{SOON, eventually};

const KEEP: Duration = Duration::from_secs(40 * 86_400);
const TIMES: usize = 5;
const START: Time = Time::from_secs(1_799_971_200);

async fn open(url: &str) -> CentralStore {
    let address = url.parse().expect("an address");
    let store = CentralStore::open(address, Naming::Plain, Duration::from_secs(5)).expect("it opens");
    store.ready(SOON).await.expect("it answers");
    store
}

fn counter(user: &str) -> CounterId {
    let part = KeyPart { name: "user".into(), value: user.into(), sensitivity: Sensitivity::Public };
    CounterId { domain: "default".into(), rule: "login".into(), key: CounterKey::owned(vec![part], 0) }
}

fn delta(user: &str, writer: u64, sequence: u64, track: Track) -> Delta {
    Delta::new(counter(user), Tracking::new(TIMES as u64, KEEP).expect("in range"), writer, sequence, track)
}

/// As many tries, at these microseconds.
fn seen(micros: &[u64], denials: u64) -> Track {
    let latest = micros.iter().map(|micro| START + Duration::from_micros(*micro));
    let mut track =
        Track { tries: micros.len() as u64, denials, latest: latest.collect(), ..Track::default() };
    track.last_seen = track.latest.iter().max().copied().unwrap_or_default();
    track
}

/// Adds a delta as a node does: until it is acknowledged.
async fn add(store: &CentralStore, delta: &Delta) {
    let start = Instant::now();
    while let Err(error) = store.add_track(delta).await {
        assert!(start.elapsed() < SOON, "{error}");
        sleep(Duration::from_millis(5)).await;
    }
}

async fn check_all(url: &str) {
    let store = open(url).await;
    check_random_deltas(&store).await;
    check_writers_at_once(&store).await;
    check_many_writers(&store).await;
    store.forget_track(&counter("random")).await.expect("it is forgotten");
    let none = store.read_track(&counter("random"), 1).await.expect("it answers");
    assert_eq!(none, Default::default());
}

/// Whatever comes, in whatever order of times, and however often: the record is the sum.
async fn check_random_deltas(store: &CentralStore) {
    let mut random = fastrand::Rng::with_seed(7);
    let mut expected = Track::default();
    let mut sequences = [0u64; 4];
    for _ in 0..60 {
        let writer = random.usize(..sequences.len());
        sequences[writer] += random.u64(1..1_000_000);
        let mut micros: Vec<u64> = (0..random.usize(1..9)).map(|_| random.u64(..50_000_000)).collect();
        micros.sort_unstable();
        let track = seen(&micros, random.u64(..=micros.len() as u64));
        let delta = delta("random", writer as u64 + 1, sequences[writer], track);
        for _ in 0..random.usize(1..4) {
            add(store, &delta).await;
        }
        expected.add(&delta.track, TIMES);
        let shared = store.read_track(&counter("random"), writer as u64 + 1).await.expect("it answers");
        assert_eq!((&shared.track, shared.applied), (&expected, sequences[writer]));
    }
}

async fn check_writers_at_once(store: &CentralStore) {
    let mut writers = JoinSet::new();
    for writer in 1..=4 {
        let store = store.clone();
        writers.spawn(async move {
            for sequence in 1..=8 {
                add(&store, &delta("contended", writer, sequence, seen(&[sequence * 100 + writer], 1))).await;
            }
        });
    }
    writers.join_all().await;
    let shared = store.read_track(&counter("contended"), 1).await.expect("it answers");
    let expected = Track { tries: 32, denials: 32, ..seen(&[704, 801, 802, 803, 804], 0) };
    assert_eq!((shared.track, shared.applied), (expected, 8));
}

/// A record does not grow with the processes that ever wrote it.
async fn check_many_writers(store: &CentralStore) {
    for writer in 1..=33 {
        add(store, &delta("many", writer, 5, seen(&[writer], 0))).await;
    }
    let applied =
        async |writer| store.read_track(&counter("many"), writer).await.expect("it answers").applied;
    assert_eq!((applied(1).await, applied(2).await, applied(33).await), (0, 5, 5));
}

#[tokio::test]
async fn on_redis() {
    let Some(server) = Redis::start(Make::Redis, "records on Redis") else { return };
    check_all(&server.url()).await;
    let name = "tg1:default:login:{user:contended}:track";
    let line = server.command(&["GET", name]);
    assert!(line.contains("v1 tries=32 denials=32 last_seen=1799971200000804 latest="), "{line}");
    let lives_ms: u128 =
        server.command(&["PTTL", name]).trim().trim_start_matches(':').parse().expect("a number");
    assert!((KEEP.as_millis() - 60_000..=KEEP.as_millis()).contains(&lives_ms), "{lives_ms}");

    // A value of another kind is refused, and stays.
    server.command(&["SET", "tg1:default:login:{user:x}:track", "something else"]);
    let store = open(&server.url()).await;
    let refused = store.add_track(&delta("x", 1, 1, seen(&[1], 0))).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
    assert!(matches!(store.read_track(&counter("x"), 1).await, Err(StoreError::Refused { .. })));

    // A server that has lost its scripts is given them again.
    server.command(&["SCRIPT", "FLUSH"]);
    add(&store, &delta("contended", 1, 9, seen(&[900], 0))).await;
    assert!(server.command(&["GET", name]).contains("v1 tries=33 "));
}

#[tokio::test]
async fn on_a_redis_cluster() {
    let Some(servers) = RedisCluster::start("records on Redis Cluster") else { return };
    check_all(&servers.url()).await;
}

#[tokio::test]
async fn on_memcached() {
    let Some(server) = Memcached::start("records on memcached") else { return };
    check_all(&server.url()).await;
    let name = "tg1:default:login:{user:contended}:track";
    assert!(server.value(name).starts_with(b"v1 tries=32 denials=32 "));
    let lives = server.lifetime(name);
    assert!((KEEP.as_secs() as i64 - 60..=KEEP.as_secs() as i64 + 2).contains(&lives), "{lives}");
}

#[tokio::test]
async fn on_cassandra() {
    let Some(server) = Cassandra::start("records on Cassandra") else { return };
    let url = server.url("records");
    let setup = CassandraSetup::new(url.parse().expect("an address"));
    let start = Instant::now();
    while let Err(error) = cassandra::init(&setup.address).await {
        assert!(start.elapsed() < SOON, "{error}");
        sleep(Duration::from_millis(100)).await;
    }
    check_all(&url).await;
}

#[tokio::test]
async fn what_was_sent_to_a_frozen_server_counts_once() {
    let Some(server) = Redis::start(Make::Redis, "records on a frozen Redis") else { return };
    let store = open(&server.url()).await;
    add(&store, &delta("ann", 1, 1, seen(&[1], 0))).await;
    server.process.signal("STOP");
    let second = delta("ann", 1, 2, seen(&[2, 3], 1));
    assert!(store.add_track(&second).await.is_err(), "no answer: it may be written or not");
    server.process.signal("CONT");
    eventually("it answers", || server.command(&["PING"]).contains("PONG"));
    add(&store, &second).await;
    let shared = store.read_track(&counter("ann"), 1).await.expect("it answers");
    assert_eq!((shared.track.tries, shared.track.denials, shared.applied), (3, 1, 2));
}
