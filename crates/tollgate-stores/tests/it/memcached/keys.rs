//! The keys on the server: readable, with a TTL.

use std::time::Duration;

use tollgate::Time;
use tollgate::internal::limit::{Levels, Shape};
use tollgate_stores::counters::memcached::{MemcachedSetup, MemcachedStore};
use tollgate_stores::counters::name::{NameHash, Naming};
use tollgate_testkit::central::expiry::{self, Keeping};
use tollgate_testkit::central::{FIXED, hit, limit, now, own, shared};
use tollgate_testkit::servers::memcached::Memcached;
use tollgate_testkit::stores::memcached::patient;

const DAY: i64 = 86_400;

#[tokio::test]
async fn keys_say_rule_identity_and_window() {
    let Some(server) = Memcached::start("keys on memcached") else { return };
    let store = patient(&server.url());
    hit(&store, &own("login", "user:42", limit("5/m", Shape::GCRA))).await.expect("it is charged");
    assert_eq!(server.keys(), ["tg1:default:login:{user:42}:gcra-m"]);
    hit(&store, &own("login", "email:ceo@example.com+ip:1.2.3.4", limit("5/m", Shape::GCRA)))
        .await
        .expect("it is charged");
    let hashed = |key: &String| key.starts_with("tg1:default:login:{email:#") && key.contains("+ip:1.2.3.4:");
    assert!(server.keys().iter().any(hashed), "{:?}", server.keys());
    let at = now();
    store.charge(&[own("api", "ip:::1", limit("5/d", FIXED))], at).await;
    let window = format!("tg1:default:api:{{ip:::1}}:fixed-window-d:{}", at.secs() / 86_400);
    assert!(server.keys().contains(&window), "{window} in {:?}", server.keys());
}

#[tokio::test]
async fn hashed_and_long_keys_reveal_nothing_and_fit() {
    let Some(server) = Memcached::start("hashed keys on memcached") else { return };
    let address = server.url().parse().expect("a valid address");
    let naming = Naming::Hashed(NameHash::keyed(b"secret"));
    let deadline = Duration::from_secs(20);
    let hashed = MemcachedStore::open(MemcachedSetup { naming, deadline, ..MemcachedSetup::new(address) });
    hit(&hashed, &own("login", "user:42", limit("5/m", Shape::GCRA))).await.expect("it is charged");
    let store = patient(&server.url());
    // Each part is within its bound, and the key they make is not.
    let long = "x".repeat(99);
    let user = format!("user:{}", &long[5..]);
    for shape in [Shape::GCRA, FIXED, Shape::TieredWindow { levels: Levels::SMH }] {
        let charge = own(&long, &user, limit("5/d", shape));
        let at = now();
        for left in [4, 3] {
            let part = store.charge(std::slice::from_ref(&charge), at).await.limits.swap_remove(0);
            assert_eq!(part.outcome().expect("it is charged").remaining, left);
        }
    }
    let keys = server.keys();
    assert_eq!(keys.len(), 1 + 1 + 1 + 3, "{keys:?}");
    assert!(keys.iter().all(|key| key.len() <= 250 && !key.contains("42}")), "{keys:?}");
}

#[tokio::test]
async fn counters_live_as_long_as_they_count_and_a_second() {
    let Some(server) = Memcached::start("lifetimes on memcached") else { return };
    let store = patient_but_exact(&server);
    let at = now();
    let tiers = Shape::TieredWindow { levels: Levels::SMH };
    for (shape, rate, shortest, longest) in [
        (Shape::GCRA, "1/h", 3600, 3602),
        (FIXED, "5/h", 0, 3602),
        (Shape::SlidingCounter, "5/h", 3600, 7202),
        (Shape::SlidingLog, "5/h", 3600, 3602),
        // A bucket of an hour is read as long as all of it is in the window.
        (tiers, "5/d", DAY - 3600, DAY + 2),
        // Over thirty days the server takes a number for a date.
        (Shape::GCRA, "1/month", 30 * DAY, 30 * DAY + 2),
        (Shape::SlidingCounter, "5/month", 30 * DAY, 60 * DAY + 2),
        (Shape::SlidingLog, "5/y", 365 * DAY, 365 * DAY + 2),
    ] {
        let before = server.keys();
        let charge = own("long", "user:1", limit(rate, shape));
        let outcome = store.charge(std::slice::from_ref(&charge), at).await;
        assert!(outcome.admitted && outcome.limits[0].outcome().is_some(), "{:?}", outcome.limits);
        let new: Vec<_> = server.keys().into_iter().filter(|key| !before.contains(key)).collect();
        assert!(!new.is_empty(), "{shape:?}");
        for key in new {
            let lifetime = server.lifetime(&key);
            // The server has ticked since, or will in a moment.
            assert!((shortest - 2..=longest).contains(&lifetime), "{key} lives for {lifetime} s");
        }
        let peeked = store.peek(&[charge], at).await;
        let left = peeked.limits[0].outcome().expect("it answers").decision.left;
        assert_eq!(left, limit(rate, shape).capacity() - 1, "{shape:?} is there");
    }
}

#[tokio::test]
async fn no_key_outlives_what_it_counts() {
    let Some(server) = Memcached::start("expiry of every algorithm on memcached") else { return };
    let store = patient_but_exact(&server);
    let numbers = |shape: &Shape| {
        matches!(shape, Shape::SlidingCounter | Shape::TieredWindow { .. }) || *shape == FIXED
    };
    let keeping = Keeping { slack: MemcachedSetup::EXPIRY_SLACK, numbers };
    expiry::check(&store, keeping, async || {
        let lives = |key: &str| u64::try_from(server.lifetime(key)).ok().map(Duration::from_secs);
        server.keys().into_iter().map(|key| (key.clone(), lives(&key))).collect()
    })
    .await;
}

#[tokio::test]
async fn a_reset_forgets_the_finest_buckets_where_coarse_ones_have_expired() {
    let Some(server) = Memcached::start("resets of tiers on memcached") else { return };
    let store = patient(&server.url());
    let charge = own("tiers", "user:1", limit("5/10m", Shape::TieredWindow { levels: Levels::SMH }));
    // At half past the hour's bucket holds the window, and more: it is not read, and may have expired.
    let at = Time::from_secs(now().secs() / 3600 * 3600 + 1800);
    store.charge(std::slice::from_ref(&charge), at).await;
    let is_hour = |key: &&String| key.rsplit(':').next().is_some_and(|bucket| bucket.starts_with('h'));
    let keys = server.keys();
    let hour = keys.iter().find(is_hour).expect("a bucket of an hour");
    server.command(&format!("md {hour}\r\nmn"), "MN");
    assert_eq!(store.reset(charge.counter(), at).await, Ok(true));
    assert_eq!(server.keys(), [""; 0]);
}

#[tokio::test]
async fn a_value_over_the_servers_bound_is_refused_and_others_are_charged() {
    let Some(server) =
        Memcached::start_with("large values on memcached", &["-I", "8k", "-o", "slab_chunk_max=8192"])
    else {
        return;
    };
    let store = patient(&server.url());
    let big = limit("2000/d", Shape::SlidingLog);
    let at = now();
    let mut refused = None;
    for n in 0..2000 {
        let part = store.charge(&[own("big", "user:1", big)], at + Duration::from_secs(n * 40)).await;
        refused = part.limits[0].error().cloned();
        if refused.is_some() {
            break;
        }
    }
    let message = refused.expect("a value over the server's bound").to_string();
    assert!(message.contains("too large"), "{message}");
    hit(&store, &shared("small", limit("5/h", Shape::GCRA))).await.expect("others are charged");
}

/// Lifetimes as they are by default.
fn patient_but_exact(server: &Memcached) -> MemcachedStore {
    let setup = MemcachedSetup::new(server.url().parse().expect("a valid address"));
    MemcachedStore::open(MemcachedSetup { deadline: Duration::from_secs(20), ..setup })
}

#[tokio::test]
async fn windows_end_and_nothing_is_left_behind() {
    let Some(server) = Memcached::start("expiry on memcached") else { return };
    let store = patient_but_exact(&server);
    let charge = own("short", "user:1", limit("2/s", Shape::SlidingLog));
    hit(&store, &charge).await.expect("it is charged");
    let key = server.keys().pop().expect("one key");
    let start = std::time::Instant::now();
    while server.command(&format!("mg {key}\r\nmn"), "MN").contains(&"HD".to_owned()) {
        assert!(start.elapsed() < Duration::from_secs(10), "it expires");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
