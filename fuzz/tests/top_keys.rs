//! The sketch of the most frequent keys on a long stream, which takes a release build.

use std::collections::HashMap;

use tollgate_server::testing::{SpaceSaving, TOP_CAPACITY};

const DECISIONS: usize = 10_000_000;
const KEYS: usize = 1_000_000;

/// A fingerprint: a bijection, so that no two keys share one.
fn mixed(key: u64) -> u64 {
    let mut x = key.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 31)
}

#[test]
fn on_a_zipf_stream_every_key_above_a_two_thousandth_is_listed_and_every_bound_holds() {
    let mut cumulative = Vec::with_capacity(KEYS);
    let mut sum = 0.0;
    for rank in 1..=KEYS {
        sum += 1.0 / rank as f64;
        cumulative.push(sum);
    }
    let mut random = fastrand::Rng::with_seed(16);
    let mut truth = vec![0u64; KEYS];
    let mut sketch = SpaceSaving::default();
    for _ in 0..DECISIONS {
        let point = random.f64() * sum;
        let key = cumulative.partition_point(|bound| *bound < point).min(KEYS - 1);
        truth[key] += 1;
        sketch.add(mixed(key as u64), 1, || key);
    }
    sketch.compact();
    let listed: HashMap<usize, (u64, u64)> =
        sketch.iter().map(|one| (*one.item, (one.count, one.error))).collect();
    assert_eq!(listed.len(), TOP_CAPACITY);
    for (key, (count, error)) in &listed {
        let truth = truth[*key];
        assert!((count - error..=*count).contains(&truth), "{key}: {count} ± {error}, {truth}");
    }
    let frequent = truth.iter().enumerate().filter(|(_, count)| **count * 2_000 > DECISIONS as u64);
    let missing: Vec<_> = frequent.filter(|(key, _)| !listed.contains_key(key)).collect();
    assert_eq!(missing, []);
    assert!(sketch.max_unmonitored() <= (DECISIONS / TOP_CAPACITY) as u64);
}
