//! What an operator finds on the server: readable keys, each with an end.

use std::time::Duration;

use tollgate::Time;
use tollgate::internal::Shape;
use tollgate::internal::limit::{Levels, Refill, Release, WindowStart};
use tollgate::internal::store::Charge;
use tollgate_stores::counters::name::{NameHash, Naming};
use tollgate_stores::counters::redis::{self, RedisSetup, RedisStore};
use tollgate_testkit::SOON;
use tollgate_testkit::central::expiry::{self, Keeping};
use tollgate_testkit::central::{FIXED, hit, left, limit, now, own};
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::stores::redis::{ServerTime, ready};

#[tokio::test]
async fn every_key_is_readable_and_expires_by_itself() {
    let Some(server) = Redis::start(Make::Redis, "keys on Redis") else { return };
    let store = ready(&server.url()).await;
    let bucket = |refill| Shape::TokenBucket { burst: None, refill };
    let leaky = |release| Shape::LeakyBucket { burst: None, release };
    let shapes = [
        Shape::GCRA,
        bucket(Refill::Continuous),
        bucket(Refill::Tick(Duration::from_secs(1))),
        bucket(Refill::Calendar),
        leaky(Release::AtOnce),
        FIXED,
        Shape::FixedWindow { start: WindowStart::FirstHit },
        Shape::SlidingLog,
        Shape::SlidingCompact { resolution: Duration::from_secs(1) },
        Shape::SlidingCounter,
        Shape::TieredWindow { levels: Levels::SMH },
    ];
    for shape in shapes {
        let charge = own("login", "user:42", limit("5/h", shape));
        hit(&store, &charge).await.expect("it is charged");
        hit(&store, &charge).await.expect("it is charged");
        let name = Naming::Plain.name(&charge.counter().id, &charge.counter().limit);
        assert!(name.starts_with("tg1:default:login:{user:42}:"), "{name}");
        let lives_ms: i64 =
            server.command(&["PTTL", &name]).trim().trim_start_matches(':').parse().expect("a number");
        // Two windows for the weighted one; whatever counts is kept, and little longer.
        assert!((1..=2 * 3_600_000 + 2000).contains(&lives_ms), "{name} lives for {lives_ms} ms");
    }
    assert_eq!(server.command(&["DBSIZE"]), format!(":{}\r\n", shapes.len()));
}

#[tokio::test]
async fn no_key_outlives_what_it_counts() {
    let Some(server) = Redis::start(Make::Redis, "expiry on Redis") else { return };
    let store = ready(&server.url()).await;
    let keeping = Keeping { slack: redis::EXPIRY_SLACK, numbers: |_| false };
    expiry::check(&store, keeping, async || {
        let names = server.command(&["KEYS", "*"]);
        let names = names.lines().filter(|line| line.starts_with("tg1:"));
        names.map(|name| (name.to_owned(), pttl(&server, name))).collect()
    })
    .await;
}

/// How long a key will live; one that is gone meanwhile does not.
fn pttl(server: &Redis, name: &str) -> Option<Duration> {
    let reply = server.command(&["PTTL", name]);
    match reply.trim().trim_start_matches(':').parse().expect("a number") {
        -2 => Some(Duration::ZERO),
        lives => u64::try_from(lives).ok().map(Duration::from_millis),
    }
}

#[tokio::test]
async fn hashed_keys_do_not_reveal_the_identity() {
    let Some(server) = Redis::start(Make::Redis, "hashed keys on Redis") else { return };
    let setup = RedisSetup::new(server.url().parse().expect("an address"));
    let naming = Naming::Hashed(NameHash::keyed(b"a secret of the fleet"));
    let store = ServerTime(RedisStore::open(RedisSetup { naming, ..setup }).expect("it opens"));
    store.ready(SOON).await.expect("it answers");
    hit(&store, &own("login", "email:ceo@example.com", limit("5/h", Shape::GCRA)))
        .await
        .expect("it is charged");
    let keys = server.command(&["KEYS", "*"]);
    assert!(keys.contains("tg1:default:login:{#") && !keys.contains("ceo"), "{keys}");
}

/// Emails in a shared Redis can be read by everyone who can read the Redis.
#[tokio::test]
async fn by_default_sensitive_parts_are_hashed_and_the_rest_is_readable() {
    let Some(server) = Redis::start(Make::Redis, "sensitive keys on Redis") else { return };
    let store = ready(&server.url()).await;
    let hour = limit("5/h", Shape::GCRA);
    for key in ["email:ceo@example.com", "email:ceo@example.com+ip:1.2.3.4", "user:42"] {
        hit(&store, &own("login", key, hour)).await.expect("it is charged");
    }
    let keys = server.command(&["KEYS", "*"]);
    // printf %s email:ceo@example.com | sha256sum | cut -c -32
    let hash = "a1bfc10fe51cd824a23765d6bdd068e0";
    for name in [
        format!("tg1:default:login:{{email:#{hash}}}:gcra-h"),
        format!("tg1:default:login:{{email:#{hash}}}|email:#{hash}+ip:1.2.3.4:gcra-h"),
        "tg1:default:login:{user:42}:gcra-h".to_owned(),
    ] {
        assert!(keys.contains(&name), "{name} in {keys}");
    }
    assert!(!keys.contains("ceo"), "{keys}");
}

#[tokio::test]
async fn a_reset_forgets_one_counter() {
    let Some(server) = Redis::start(Make::Redis, "resets on Redis") else { return };
    let store = ready(&server.url()).await;
    let (mine, yours) =
        (own("login", "user:1", limit("5/h", FIXED)), own("login", "user:2", limit("5/h", FIXED)));
    hit(&store, &mine).await.expect("it is charged");
    hit(&store, &yours).await.expect("it is charged");
    assert_eq!(store.reset(mine.counter(), now()).await, Ok(true));
    assert_eq!(store.reset(mine.counter(), now()).await, Ok(false));
    assert_eq!((left(&store, &mine).await, left(&store, &yours).await), (5, 4));
}

#[tokio::test]
async fn a_script_missing_on_the_server_is_loaded_again() {
    let Some(server) = Redis::start(Make::Redis, "NOSCRIPT on Redis") else { return };
    let store = ready(&server.url()).await;
    let charge = own("login", "user:1", limit("5/h", FIXED));
    for used in 1..=3 {
        server.command(&["SCRIPT", "FLUSH"]);
        assert_eq!(hit(&store, &charge).await.expect("it is charged").remaining, 5 - used);
    }
}

/// Two hits in the same microsecond count twice.
#[tokio::test]
async fn a_log_counts_every_hit_of_one_instant() {
    let Some(server) = Redis::start(Make::Redis, "the sliding log on Redis") else { return };
    let store = ready(&server.url()).await;
    let charge = own("log", "user:1", limit("3/h", Shape::SlidingLog));
    let now = Time::from_secs(1_800_000_000);
    for expected in [true, true, true, false] {
        let outcome = store.by_node_clock().charge(std::slice::from_ref(&charge), now).await;
        assert_eq!(outcome.admitted, expected);
    }
}

/// Running sums have six bytes: a key that never rests would have filled them.
#[tokio::test]
async fn a_log_counts_on_when_its_sums_grow_large() {
    let Some(server) = Redis::start(Make::Redis, "large sums on Redis") else { return };
    let store = ready(&server.url()).await;
    let third = 10_000_000_000_000;
    let charge = |cost| Charge { cost, ..own("log", "user:1", limit("30000000000000/d", Shape::SlidingLog)) };
    for step in 0..60 {
        let now = Time::from_secs(1_800_000_000 + step * 8 * 3600);
        assert!(store.by_node_clock().charge(&[charge(third)], now).await.admitted, "step {step}");
        assert_eq!(store.by_node_clock().peek(&[charge(1)], now).await.admitted, step < 2, "step {step}");
    }
}
