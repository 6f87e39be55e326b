//! Many different rates in the life of a memory store: none costs the keys of others anything.

use std::sync::LazyLock;
use std::time::Duration;

use tollgate::Time;
use tollgate::internal::algorithm::{Algorithm, Quota};
use tollgate::internal::fingerprint::Secret;
use tollgate::internal::limit::WindowStart;
use tollgate::internal::store::{Charge, MemoryStore, Predecessor};
use tollgate::internal::{Limit, Shape};

const NOW: Time = Time::from_secs(1_800_000_000);
const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
static SECRET: LazyLock<Secret> = LazyLock::new(|| Secret::from_bytes([7; 16]));

fn quota(rate: &str, shape: Shape) -> Quota {
    let rate = rate.parse().expect("a valid rate");
    Quota::new(&Limit::new(rate, shape).expect("a valid limit"))
}

fn passes(store: &MemoryStore, key: &str, quota: Quota, now: Time) -> bool {
    store.charge(&[Charge::enforced(SECRET.fingerprint([key]), quota, 1)], now).admitted
}

#[test]
fn thousands_of_odd_rates_cost_a_bucket_no_more_memory() {
    // After 300 different odd rates a key took 88 bytes instead of 19, and a lock.
    const RATES: u64 = 5_000;
    let store = MemoryStore::new(64 << 20);
    for n in 0..RATES {
        let limit = quota(&format!("7/{}s", 7 * n + 11), Shape::GCRA);
        for key in 0..8 {
            assert!(passes(&store, &format!("{n} {key}"), limit, NOW));
        }
    }
    let bytes = store.usage().bytes / (RATES * 8);
    assert!(bytes <= 24, "{bytes} bytes a key");
}

/// The bytes that each of many new keys of a limit takes.
fn bytes_per_key(store: &MemoryStore, limit: Quota, now: Time) -> u64 {
    const KEYS: u64 = 40_000;
    let before = store.usage().bytes;
    (0..KEYS).for_each(|n| assert!(passes(store, &format!("one of many {n}"), limit, now)));
    (store.usage().bytes - before) / KEYS
}

#[test]
fn rates_that_no_key_uses_any_more_cost_later_ones_nothing() {
    // After 8,190 odd rates in the life of a node every key of another one took 88 bytes and a lock.
    const RATES: u64 = 100_000;
    let store = MemoryStore::new(64 << 20);
    let mut now = NOW;
    let long = quota("7/11d", Shape::GCRA);
    assert!((0..7).all(|_| passes(&store, "long", long, now)));
    for n in 0..RATES {
        now = now + SECOND;
        let limit = quota(&format!("{}/s", 1_001 + 2 * n), Shape::GCRA);
        assert!(passes(&store, &format!("{n}"), limit, now));
    }
    assert!(bytes_per_key(&store, quota("7/13s", Shape::GCRA), now) <= 24);
    assert!(!passes(&store, "long", long, now), "a class in use is kept");
}

#[test]
fn a_limit_that_changes_without_end_keeps_its_key_in_a_small_slot() {
    const CHANGES: u64 = 20_000;
    let store = MemoryStore::new(64 << 20);
    let mut previous = Vec::new();
    let mut limit = quota("1000/3s", Shape::GCRA);
    for n in 0..CHANGES {
        limit = quota(&format!("{}/{}d", 1_000_001 + n, 3), Shape::GCRA);
        let fingerprint = SECRET.fingerprint([format!("key under {n}").as_str()]);
        let charge = Charge { predecessors: previous, ..Charge::enforced(fingerprint, limit, 1) };
        assert!(store.charge(&[charge], NOW).admitted);
        previous = vec![Predecessor { fingerprint, quota: limit }];
    }
    let last = Charge::enforced(previous[0].fingerprint, limit, 1);
    assert_eq!(limit.used(&store.state_of(&last, NOW), NOW), CHANGES, "it has moved with every change");
    assert_eq!(store.usage().keys, 1);
    assert!(bytes_per_key(&store, quota("7/13s", Shape::GCRA), NOW) <= 24);
}

#[test]
fn keys_are_charged_exactly_while_classes_come_and_go() {
    const KEYS: u64 = 200;
    const THREADS: u64 = 2;
    const RATES: u64 = 25_000;
    let shapes = [Shape::FixedWindow { start: WindowStart::Aligned }, Shape::SlidingCounter, Shape::GCRA];
    let store = MemoryStore::new(4 << 20);
    let limits = shapes.map(|shape| quota("1000/d", shape));
    let hammer = || {
        let mut admitted = 0;
        for round in 0..600 / THREADS {
            for key in 0..KEYS {
                let limit = limits[(key % 3) as usize];
                admitted +=
                    u64::from(passes(&store, &format!("key {key}"), limit, NOW + SECOND * round as u32));
            }
        }
        admitted
    };
    let admitted: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(hammer)).collect();
        for n in 0..RATES {
            let limit = quota(&format!("{}/s", 1_001 + 2 * n), Shape::GCRA);
            passes(&store, &format!("{n}"), limit, NOW + 10 * MILLISECOND * n as u32);
        }
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).sum()
    });
    assert_eq!(admitted, 600 * KEYS);
    let used = |key: u64| {
        let limit = limits[(key % 3) as usize];
        let charge = Charge::enforced(SECRET.fingerprint([format!("key {key}").as_str()]), limit, 1);
        limit.used(&store.state_of(&charge, NOW), NOW)
    };
    assert!(
        (0..KEYS).all(|key| (590..=600).contains(&used(key))),
        "{:?}",
        (0..KEYS).map(used).collect::<Vec<_>>()
    );
}
