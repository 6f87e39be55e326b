//! The most frequent keys of a long stream, which takes a release build: one sketch, and the live data of a node.

use std::collections::HashMap;

use tollgate::{Hit, Time};
use tollgate_server::testing::{CountedNode, SpaceSaving, TOP_CAPACITY, TopOutcome, TopWindow};

const DECISIONS: usize = 10_000_000;
const KEYS: usize = 1_000_000;

/// A fingerprint: a bijection, so that no two keys share one.
fn mixed(key: u64) -> u64 {
    let mut x = key.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 31)
}

/// Draws keys: the n-th in proportion to 1/n.
struct Zipf {
    cumulative: Vec<f64>,
}

impl Zipf {
    fn new() -> Zipf {
        let mut sum = 0.0;
        let cumulative = (1..=KEYS).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        });
        Zipf { cumulative: cumulative.collect() }
    }

    fn draw(&self, random: &mut fastrand::Rng) -> usize {
        let point = random.f64() * self.cumulative[KEYS - 1];
        self.cumulative.partition_point(|bound| *bound < point).min(KEYS - 1)
    }
}

#[test]
fn on_a_zipf_stream_every_key_above_a_two_thousandth_is_listed_and_every_bound_holds() {
    let zipf = Zipf::new();
    let mut random = fastrand::Rng::with_seed(16);
    let mut truth = vec![0u64; KEYS];
    let mut sketch = SpaceSaving::default();
    for _ in 0..DECISIONS {
        let key = zipf.draw(&mut random);
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

/// The same through the batches of four threads and the merge of each second, over two and a half minutes.
#[test]
fn the_live_data_list_every_key_above_a_two_thousandth_by_its_text_and_every_bound_holds() {
    const START: u64 = 1_800_000_000;
    const SECONDS: u64 = 150;
    const THREADS: u64 = 4;
    const EACH: usize = 7_000;
    let zipf = Zipf::new();
    let mut node = CountedNode::new("rules: [{ id: all, key: user, limit: 1000000000/d }]");
    node.switch_on(Time::from_secs(START));
    let mut truth: Vec<HashMap<usize, u64>> = Vec::new();
    for second in 0..SECONDS {
        let now = Time::from_secs(START + second);
        let decide = |thread: u64| {
            let mut random = fastrand::Rng::with_seed(second * THREADS + thread);
            let mut counts: HashMap<usize, u64> = HashMap::new();
            for _ in 0..EACH {
                let key = zipf.draw(&mut random);
                assert!(node.check(&Hit::by(&key.to_string()), now));
                *counts.entry(key).or_default() += 1;
            }
            counts
        };
        let mut counts: HashMap<usize, u64> = HashMap::new();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || decide(thread))).collect();
            for thread in threads {
                for (key, count) in thread.join().expect("it decides") {
                    *counts.entry(key).or_default() += count;
                }
            }
        });
        truth.push(counts);
        node.tick(Time::from_secs(START + second + 1));
    }
    for window in [TopWindow::Minute, TopWindow::Hour] {
        let list = node.top(TopOutcome::Allowed, window, usize::MAX);
        let first = list.from.saturating_sub(START) as usize;
        let mut expected: HashMap<String, u64> = HashMap::new();
        for (key, count) in truth[first..].iter().flatten() {
            *expected.entry(format!("user:{key}")).or_default() += count;
        }
        let total: u64 = expected.values().sum();
        assert_eq!(total, (SECONDS - first as u64) * THREADS * EACH as u64);
        let mut by_text: HashMap<&str, u64> = HashMap::new();
        for key in list.keys.iter().filter(|key| !key.key.starts_with('#')) {
            let count = expected[&key.key];
            assert!((key.count - key.error..=key.count).contains(&count), "{window:?}: {count}, {key:?}");
            by_text.insert(&key.key, count);
        }
        for (key, count) in expected.iter().filter(|(key, _)| !by_text.contains_key(key.as_str())) {
            assert!(count * 2_000 <= total, "{window:?}: {key} has {count} of {total} and is not listed");
            assert!(*count <= list.unlisted, "{window:?}: {key} has {count}, more than {}", list.unlisted);
        }
    }
}
