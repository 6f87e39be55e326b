//! Every lock is held for a bounded number of steps, however many keys there are: entries of a table, lines, steps of a
//! window, bans. Floods of two sizes are counted, and both stay within the same bounds. The secret that decides which keys
//! share a line is another one each time.

use std::time::Duration;

use tollgate::internal::algorithm::Quota;
use tollgate::internal::changes::Changes;
use tollgate::internal::engine::log::Image;
use tollgate::internal::fingerprint::Secret;
use tollgate::internal::store::{Charge, ChargeReceipt, MemoryStore};
use tollgate::internal::testing::steps::{CountedSteps, measure};
use tollgate::internal::{EngineCore, EngineSetup, Limit, PolicySnapshot, Shape};
use tollgate::{Hit, Time};

const NOW: Time = Time::from_secs(1_800_000_000);
/// Keys of the smaller flood.
const KEYS: u64 = 40_000;

/// The steps of one lock, for a request. The most are those of a new key whose lines are full: the budget for its growth
/// (`GrowthBudget`), at least 78 lines each time, 12 of the key itself each time, and a last search of 192 lines, each
/// visited twice.
const SECTION_STEPS: usize = 2_048 + 2_048 / 78 * 12 + 2 * 192 + 74;
/// All steps of a request, under whatever locks.
const REQUEST_STEPS: usize = 2 * SECTION_STEPS;
/// The steps of one lock, for the thread that saves the state.
const SAVING_STEPS: usize = 1_024;
/// A secret decides in which lines keys meet, so some are tried.
const SECRETS: usize = 30;
/// Keys for each of them: the tables of 64 shards grow from 8 lines to hundreds.
const KEYS_PER_SECRET: u64 = 80_000;
/// Of all of them, those that may find no slot: it is very unlikely, but not impossible.
const MAX_UNSTORED: u64 = 2;
/// Lines that the collection of classes scans for one request, beside its own.
const COLLECTED_LINES: usize = 2_048;
/// More lines than a charge visits by itself.
const OWN_LINES: usize = 256;

/// A flood of made-up keys under some rules: the steps of the requests, and of saving the state meanwhile.
fn flood(rules: &str, memory_bytes: usize, keys: u64, hits: u64) -> (CountedSteps, CountedSteps) {
    let setup = EngineSetup { changes: Changes::Recorded, memory_bytes, ..EngineSetup::default() };
    let engine = EngineCore::with_setup(PolicySnapshot::from_yaml(rules).expect("valid rules"), setup);
    let mut requests = CountedSteps::default();
    let mut saving = CountedSteps::default();
    let mut save = |now: Time| {
        let write = || engine.write_changes(now, &mut |_| Ok(())).expect("nothing is written");
        saving = saving.max(measure(write));
    };
    for n in 0..keys {
        let user = n.to_string();
        let now = NOW + Duration::from_millis(n);
        for hit in 0..hits {
            let at = now + Duration::from_micros(hit);
            requests = requests.max(measure(|| _ = engine.check(&Hit::on("GET", "h", "/").user(&user), at)));
        }
        // Earlier keys come back, so that their states grow or are denied.
        let earlier = scrambled(n) % (n + 1);
        let user = earlier.to_string();
        requests = requests.max(measure(|| _ = engine.check(&Hit::on("GET", "h", "/").user(&user), now)));
        if n % 10_000 == 9_999 {
            save(now);
        }
    }
    let end = NOW + Duration::from_millis(keys);
    save(end);
    let image = || {
        let mut image = Image::default();
        engine.write_image(&mut image, u64::MAX, end, &mut |_| Ok(())).expect("nothing is written");
        assert!(image.is_done());
    };
    saving = saving.max(measure(image));
    (requests, saving)
}

fn scrambled(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

/// The bounds of one flood.
struct Bounds {
    section: usize,
    request: usize,
}

/// Two floods, the second with twice the keys, in a small memory, which they fill, and in a large one, which they do not.
fn check(rules: &str, bounds: impl Fn(u64) -> Bounds) {
    for memory_bytes in [1 << 20, 64 << 20] {
        for keys in [KEYS, 2 * KEYS] {
            let Bounds { section, request } = bounds(keys);
            let (requests, saving) = flood(rules, memory_bytes, keys, 2);
            eprintln!(
                "{keys:>6} keys in {:>2} MiB: {requests:?}, saving {saving:?}: {rules}",
                memory_bytes >> 20
            );
            assert!(requests.total > 0 && saving.total > 0, "something is counted");
            assert!(requests.longest_section <= section, "{requests:?}: {rules}");
            assert!(requests.total <= request, "{requests:?}: {rules}");
            assert!(saving.longest_section <= SAVING_STEPS.max(section), "{saving:?}: {rules}");
        }
    }
}

/// The same for any number of keys.
fn constant(_keys: u64) -> Bounds {
    Bounds { section: SECTION_STEPS, request: REQUEST_STEPS }
}

/// Some steps for the bans of a few shards beside: a list has 256, and one may have twice its share.
fn shards_of_bans(keys: u64) -> Bounds {
    let shard = 2 * keys as usize / 256;
    Bounds { section: SECTION_STEPS + 4 * shard, request: REQUEST_STEPS + 16 * shard }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "it takes minutes: run it with --release")]
fn a_flood_of_keys_does_not_lengthen_the_locks_of_packed_states() {
    check("rules: [{ id: a, key: user, limit: 20/h }]", constant);
    check("rules: [{ id: a, key: user, limit: 20/h, algorithm: fixed-window }]", constant);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "it takes minutes: run it with --release")]
fn a_flood_of_keys_does_not_lengthen_the_locks_of_wide_states() {
    check("rules: [{ id: a, key: user, limit: 20/h, algorithm: sliding-log }]", constant);
    check("rules: [{ id: a, key: user, limit: 20/h, algorithm: tiered-window }]", constant);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "it takes minutes: run it with --release")]
fn a_flood_of_keys_does_not_lengthen_the_locks_of_several_limits_at_once() {
    let both = "rules: [{ id: a, key: user, limits: [5/m, 20/h] }, { id: b, key: user, limit: 7/d, algorithm: sliding-log }]";
    check(both, constant);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "it takes minutes: run it with --release")]
fn a_flood_of_keys_does_not_lengthen_the_locks_of_tracked_keys_and_offenders() {
    check(
        "rules: [{ id: a, key: user, limit: 1/h, track: true, ban: { key: user, after: 9, for: 1h } }]",
        constant,
    );
}

#[test]
#[cfg_attr(debug_assertions, ignore = "it takes minutes: run it with --release")]
fn a_ban_takes_no_longer_than_a_few_shards_of_the_list() {
    check("rules: [{ id: a, key: user, limit: 1/h, ban: { key: user, after: 1, for: 1h } }]", shards_of_bans);
}

/// Bans that end make room for others: the list is purged of them a few at a time.
#[test]
#[cfg_attr(debug_assertions, ignore = "it takes minutes: run it with --release")]
fn bans_that_end_are_purged_within_the_same_bound() {
    check("rules: [{ id: a, key: user, limit: 1/h, ban: { key: user, after: 1, for: 1s } }]", shards_of_bans);
}

/// A regression: 715 steps were counted with one secret of many, of a key for which a small table grew line by line.
#[test]
#[cfg_attr(debug_assertions, ignore = "it takes minutes: run it with --release")]
fn no_secret_lengthens_the_locks_of_a_table_that_grows() {
    let mut most = CountedSteps::default();
    let mut unstored = 0;
    for shape in [Shape::GCRA, Shape::SlidingLog] {
        let quota = Quota::new(&Limit::new("20/h".parse().expect("a rate"), shape).expect("a valid limit"));
        for _ in 0..SECRETS {
            let secret = Secret::random();
            let store = MemoryStore::new(64 << 20);
            for n in 0..KEYS_PER_SECRET {
                let charge = [Charge::enforced(secret.fingerprint([n.to_string().as_str()]), quota, 1)];
                let steps = measure(|| assert!(store.charge(&charge, NOW).admitted));
                assert!(steps.longest_section <= SECTION_STEPS, "{steps:?} with {:?}", secret.bytes());
                most = most.max(steps);
            }
            unstored += KEYS_PER_SECRET - store.usage().keys;
        }
    }
    eprintln!("{SECRETS} secrets: {most:?}, {unstored} keys without a slot");
    assert!(unstored <= MAX_UNSTORED, "{unstored} keys found no slot");
}

#[test]
#[cfg_attr(debug_assertions, ignore = "it takes minutes: run it with --release")]
fn the_collection_of_classes_is_spread_over_requests() {
    let secret = Secret::random();
    for memory_bytes in [64 << 20, 256 << 20] {
        let store = MemoryStore::new(memory_bytes);
        // Many lines to scan: entries of one class, which do not expire.
        let lasting = Quota::new(&Limit::per("1/y".parse().expect("a rate")));
        for n in 0..200_000u64 {
            let key = secret.fingerprint(["lasting", n.to_string().as_str()]);
            assert!(store.charge(&[Charge::enforced(key, lasting, 1)], NOW).admitted);
        }
        let mut most = CountedSteps::default();
        for n in 0..20_000u64 {
            // Each is a rate of its own, and so a class of its own.
            let rate = format!("{}/s", 1_000_003 + 2 * n).parse().expect("a rate");
            let quota = Quota::new(&Limit::new(rate, Shape::GCRA).expect("a valid limit"));
            let charge = Charge::enforced(secret.fingerprint([n.to_string().as_str()]), quota, 1);
            let now = NOW + Duration::from_secs(2 * n); // its predecessors have expired
            most = most.max(measure(|| assert!(store.charge(&[charge], now).admitted)));
        }
        eprintln!("{} MiB: {most:?}", memory_bytes >> 20);
        assert!(most.total > OWN_LINES, "a collection has run");
        assert!(most.total <= COLLECTED_LINES + SECTION_STEPS, "{most:?}");
        assert!(most.longest_section <= SECTION_STEPS, "{most:?}");
    }
}

/// A regression: a refund wrote every entry of a log again, and saving it encoded them, under the lock of the shard.
#[test]
#[cfg_attr(debug_assertions, ignore = "it takes minutes: run it with --release")]
fn the_log_of_a_large_limit_does_not_lengthen_the_locks() {
    const LIMIT: u64 = 100_000;
    let limit = Limit::new(format!("{LIMIT}/h").parse().expect("a rate"), Shape::SlidingLog);
    let quota = Quota::new(&limit.expect("a valid limit"));
    let key = Secret::random().fingerprint(["user"]);
    // An hour of hits that come as close together as hits can, and one that is evenly filled.
    for apart in [Duration::from_micros(20), Duration::from_millis(36)] {
        let store = MemoryStore::new(256 << 20);
        let mut most = CountedSteps::default();
        let mut receipts = Vec::new();
        let mut now = NOW;
        let charge = |cost: u64| [Charge::enforced(key, quota, cost)];
        for n in 0..LIMIT {
            now = now + apart;
            most = most.max(measure(|| {
                let outcome = store.charge(&charge(1), now);
                assert!(outcome.admitted);
                receipts.extend(ChargeReceipt::of(&charge(1), &outcome).filter(|_| n % 100 == 0));
            }));
        }
        // Denied: it waits for most of the log.
        most = most.max(measure(|| assert!(!store.charge(&charge(LIMIT - 1), now).admitted)));
        for receipt in receipts {
            most = most.max(measure(|| store.refund(receipt, now)));
        }
        // Nearly all of it leaves the window at once.
        now = NOW + Duration::from_secs(3_599) + apart * LIMIT as u32;
        most = most.max(measure(|| assert!(store.charge(&charge(1), now).admitted)));
        eprintln!("{LIMIT} hits {apart:?} apart: {most:?}");
        assert!(most.longest_section <= SECTION_STEPS, "{most:?}");
        assert!(most.total <= REQUEST_STEPS, "{most:?}");
    }
}

/// Saving copies a state under the lock, and encodes it afterwards.
#[test]
#[cfg_attr(debug_assertions, ignore = "it takes minutes: run it with --release")]
fn the_log_of_a_large_limit_is_encoded_without_a_lock() {
    let rules = "rules: [{ id: a, key: user, limit: 100000/h, algorithm: sliding-log }]";
    let setup = EngineSetup { changes: Changes::Recorded, ..EngineSetup::default() };
    let engine = EngineCore::with_setup(PolicySnapshot::from_yaml(rules).expect("valid rules"), setup);
    for n in 0..100_000 {
        let now = NOW + Duration::from_millis(36 * n);
        assert!(engine.check(&Hit::on("GET", "h", "/").user("user"), now).allowed);
    }
    let end = NOW + Duration::from_secs(3_600);
    let saving = measure(|| engine.write_changes(end, &mut |_| Ok(())).expect("nothing is written"));
    eprintln!("saving: {saving:?}");
    assert!(saving.total > 100_000, "every entry is encoded: {saving:?}");
    assert!(saving.longest_section <= SAVING_STEPS, "{saving:?}");
}
