//! The memory store under floods of made-up keys (I8): what is known stays limited, whatever its rule.

use std::sync::LazyLock;
use std::time::Duration;

use tollgate::internal::algorithm::Quota;
use tollgate::internal::fingerprint::{Fingerprint, Secret};
use tollgate::internal::limit::{Levels, WindowStart};
use tollgate::internal::store::memory::{AGGREGATE_CELLS, MemoryFull};
use tollgate::internal::store::{Charge, ChargeReceipt, MemoryStore, Predecessor};
use tollgate::internal::{EngineCore, EngineSetup, Limit, PolicySnapshot, Shape};
use tollgate::{Hit, Time};

const NOW: Time = Time::from_secs(1_800_000_000);
const SECOND: Duration = Duration::from_secs(1);
const MICROSECOND: Duration = Duration::from_micros(1);
static SECRET: LazyLock<Secret> = LazyLock::new(|| Secret::from_bytes([7; 16]));

/// Made-up keys that fill a store of the least size with wide and with packed states.
const WIDE_FLOOD: u64 = 16_000;
const PACKED_FLOOD: u64 = 70_000;

const FIRST_HIT: Shape = Shape::FixedWindow { start: WindowStart::FirstHit };
const COMPACT: Shape = Shape::SlidingCompact { resolution: SECOND };
const TIERS: Shape = Shape::TieredWindow { levels: Levels::SMH };
const WIDE: [Shape; 5] = [FIRST_HIT, Shape::SlidingLog, COMPACT, TIERS, Shape::Concurrency];

fn quota(rate: &str, shape: Shape) -> Quota {
    let rate = rate.parse().expect("a valid rate");
    Quota::new(&Limit::new(rate, shape).expect("a valid limit"))
}

fn passes(store: &MemoryStore, key: &str, quota: Quota, now: Time) -> bool {
    hit(store, key, quota, 1, now)
}

fn hit(store: &MemoryStore, key: &str, quota: Quota, cost: u64, now: Time) -> bool {
    store.charge(&[Charge::enforced(SECRET.fingerprint([key]), quota, cost)], now).admitted
}

/// Charges made-up keys, each `hits` times, a step of time apart.
fn flood(
    store: &MemoryStore,
    quota: Quota,
    hits: u64,
    keys: std::ops::Range<u64>,
    now: &mut Time,
    step: Duration,
) {
    for n in keys {
        *now = *now + step;
        (0..hits).for_each(|_| _ = passes(store, &format!("made up {n}"), quota, *now));
    }
    let usage = store.usage();
    assert!(usage.bytes <= usage.cap_bytes, "{usage:?}");
}

/// Brings clients to their limit one request at a time, while a flood goes on, and touches each many times after
/// it: none may pass more often than its limit says. Returns how often each has passed.
fn check_known_clients(
    known: Quota,
    limit: u64,
    flooding: Quota,
    flood_hits: u64,
    flood_keys: u64,
) -> Vec<u64> {
    const CLIENTS: u64 = 50;
    let store = MemoryStore::new(MemoryStore::MIN_BYTES);
    let mut now = NOW;
    let mut admitted = [0; CLIENTS as usize];
    let mut hit = |client: u64, now: Time| {
        admitted[client as usize] += u64::from(passes(&store, &format!("client {client}"), known, now));
    };
    // At more than half of its limit a client is known, and its state still grows during the flood.
    for _ in 0..limit * 3 / 5 {
        for client in 0..CLIENTS {
            now = now + 10 * MICROSECOND;
            hit(client, now);
        }
    }
    let rounds = 2 * limit;
    for round in 0..rounds {
        let keys = round * flood_keys / rounds..(round + 1) * flood_keys / rounds;
        flood(&store, flooding, flood_hits, keys, &mut now, MICROSECOND);
        for client in 0..CLIENTS {
            now = now + 10 * MICROSECOND;
            hit(client, now);
        }
    }
    let usage = store.usage();
    assert!(usage.unstored + usage.evicted > 0, "the store was full: {usage:?}");
    for _ in 0..20 {
        for client in 0..CLIENTS {
            now = now + 10 * MICROSECOND;
            hit(client, now);
        }
    }
    let worst = admitted.iter().max().expect("there are clients");
    assert!(*worst <= limit, "{worst} of {limit} passed: {admitted:?}, with {:?}", store.usage());
    let least = admitted.iter().min().expect("there are clients");
    assert!(*least >= limit * 3 / 5, "a known client was denied early: {admitted:?}");
    admitted.to_vec()
}

#[test]
fn a_charged_key_is_never_dropped_by_its_own_charge() {
    // After a flood 808 of 1000 hits of clients at their limit passed, and the slab forgot growing states.
    for shape in WIDE {
        check_known_clients(quota("20/h", shape), 20, quota("20/h", shape), 1, WIDE_FLOOD);
    }
    check_known_clients(quota("5/h", FIRST_HIT), 5, quota("5/h", FIRST_HIT), 5, WIDE_FLOOD);
}

#[test]
fn keys_that_one_hit_brings_to_their_limit_displace_no_offender() {
    for shape in WIDE {
        check_known_clients(quota("20/h", shape), 20, quota("1/d", FIRST_HIT), 1, WIDE_FLOOD);
    }
    for shape in [Shape::GCRA, Shape::SlidingCounter] {
        let passed = check_known_clients(quota("20/h", shape), 20, quota("1/d", shape), 1, PACKED_FLOOD);
        // A packed state does not grow, so its key is never denied for want of memory.
        assert!(passed.iter().all(|passed| *passed == 20), "{shape:?}: {passed:?}");
    }
}

#[test]
fn debts_are_compared_as_shares_of_the_limit_not_in_seconds() {
    // One hit each on made-up keys of 100/d evicted 100 of 100 offenders of 5/m.
    let shapes = [Shape::GCRA, Shape::SlidingCounter, Shape::FixedWindow { start: WindowStart::Aligned }];
    for known in shapes {
        let flooding = quota("100/d", Shape::GCRA);
        check_offenders(quota("5/m", known), 5, flooding, MemoryStore::MIN_BYTES, PACKED_FLOOD);
    }
    for known in WIDE {
        for rate in ["100/d", "3/w"] {
            let flooding = quota(rate, FIRST_HIT);
            check_offenders(quota("5/m", known), 5, flooding, MemoryStore::MIN_BYTES, WIDE_FLOOD);
        }
    }
}

#[test]
fn offenders_are_remembered_at_sixteen_mebibytes() {
    let offended = quota("5/m", Shape::SlidingLog);
    let flooding = quota("100/d", FIRST_HIT);
    check_offenders(offended, 5, flooding, 16 << 20, 16 * WIDE_FLOOD);
}

fn check_offenders(offended: Quota, hits: u64, flooding: Quota, bytes: usize, flood_keys: u64) {
    let store = MemoryStore::new(bytes);
    let mut now = NOW;
    for n in 0..100 {
        (0..hits).for_each(|_| assert!(passes(&store, &format!("offender {n}"), offended, now)));
    }
    flood(&store, flooding, 1, 0..flood_keys, &mut now, MICROSECOND);
    let usage = store.usage();
    assert!(usage.unstored + usage.evicted > 0, "the store was full: {usage:?}");
    let forgotten = (0..100).filter(|n| passes(&store, &format!("offender {n}"), offended, now)).count();
    assert_eq!(forgotten, 0, "offenders forgotten: {offended:?} by {flooding:?}, with {usage:?}");
}

/// How hits come to the engine: a batch has one timestamp, single requests have one each.
#[derive(Clone, Copy, Debug)]
enum Arrival {
    Batches,
    Single,
}

/// Sends hits; returns which passed.
fn send(engine: &EngineCore, hits: &[Hit<'_>], arrival: Arrival, now: &mut Time) -> Vec<bool> {
    match arrival {
        Arrival::Batches => {
            *now = *now + 1_000 * MICROSECOND;
            engine.check_batch(hits, *now).iter().map(|verdict| verdict.allowed).collect()
        }
        Arrival::Single => {
            let check = |hit| {
                *now = *now + MICROSECOND;
                engine.check(hit, *now).allowed
            };
            hits.iter().map(check).collect()
        }
    }
}

/// Clients go on while made-up users of other rules come in the same batches; none passes more often than its limit.
fn check_floods_of_other_rules(algorithm: &str, arrival: Arrival) {
    const CLIENTS: usize = 25;
    const LIMIT: usize = 12;
    const ROUNDS: usize = 2 * LIMIT;
    let rules = format!(
        "rules:
  - {{id: known, match: /known, key: user, limit: {LIMIT}/h, {algorithm}}}
  - {{id: daily, match: /daily, key: user, limit: 1/d, algorithm: fixed-window, window: first-hit}}
  - {{id: often, match: /often, key: user, limit: 100/d, algorithm: sliding-log}}"
    );
    let policy = PolicySnapshot::from_yaml(&rules).expect("a valid policy");
    let setup = EngineSetup { memory_bytes: MemoryStore::MIN_BYTES, ..EngineSetup::default() };
    let engine = EngineCore::with_setup(policy, setup);
    let clients: Vec<String> = (0..CLIENTS).map(|n| format!("client {n}")).collect();
    fn known(user: &str) -> Hit<'_> {
        Hit::on("GET", "", "/known").user(user)
    }
    let mut admitted = [0; CLIENTS];
    let mut now = NOW;
    let mut count = |passed: &[bool]| {
        let of_clients = passed[passed.len() - CLIENTS..].iter();
        admitted.iter_mut().zip(of_clients).for_each(|(admitted, passed)| *admitted += usize::from(*passed));
    };
    // At half of its limit a client is known, and its state still grows during the flood.
    let alone: Vec<Hit<'_>> = clients.iter().map(|client| known(client)).collect();
    (0..LIMIT / 2).for_each(|_| count(&send(&engine, &alone, arrival, &mut now)));
    for round in 0..ROUNDS {
        let users: Vec<String> = (0..WIDE_FLOOD as usize / ROUNDS).map(|n| format!("{round} {n}")).collect();
        let paths = ["/daily", "/often"].into_iter().cycle();
        let mut hits: Vec<Hit<'_>> =
            users.iter().zip(paths).map(|(user, path)| Hit::on("GET", "", path).user(user)).collect();
        hits.extend(clients.iter().map(|client| known(client)));
        count(&send(&engine, &hits, arrival, &mut now));
    }
    let usage = engine.store().usage();
    assert!(usage.unstored + usage.evicted > 0, "the store was full: {usage:?}");
    (0..20).for_each(|_| count(&send(&engine, &alone, arrival, &mut now)));
    let within = |admitted: &usize| (LIMIT / 2..=LIMIT).contains(admitted);
    assert!(admitted.iter().all(within), "{algorithm}, {arrival:?}: {admitted:?} of {LIMIT}");
}

#[test]
fn floods_in_batches_and_in_single_requests_free_no_client_of_its_limit() {
    let algorithms = [
        "algorithm: gcra",
        "algorithm: leaky-bucket, on_exceed: reject",
        "algorithm: fixed-window",
        "algorithm: fixed-window, window: first-hit",
        "algorithm: sliding-log",
        "algorithm: sliding-compact",
        "algorithm: sliding-counter",
        "algorithm: tiered-window",
        "algorithm: concurrency",
    ];
    for algorithm in algorithms {
        check_floods_of_other_rules(algorithm, Arrival::Batches);
        check_floods_of_other_rules(algorithm, Arrival::Single);
    }
}

#[test]
fn a_state_that_outgrows_its_slot_in_a_full_slab_stays_limited() {
    // A packed sliding counter of 300,000/m: 2 M of 2 M passed.
    let store = MemoryStore::new(MemoryStore::MIN_BYTES);
    let limit = quota("300000/m", Shape::SlidingCounter);
    let mut now = NOW;
    assert!(passes(&store, "busy", limit, now));
    flood(&store, quota("1/d", FIRST_HIT), 1, 0..WIDE_FLOOD, &mut now, MICROSECOND);
    let passed = (0..150).filter(|_| hit(&store, "busy", limit, 4_000, now)).count() * 4_000;
    assert!(passed <= 300_000, "{passed} passed");
}

/// A window's counter does not depend on its number, so a packed state can meet a limit that it cannot hold.
#[test]
fn a_packed_state_whose_limit_was_raised_outgrows_its_slot_and_stays_limited() {
    let store = MemoryStore::new(MemoryStore::MIN_BYTES);
    let mut now = NOW;
    assert!(passes(&store, "busy", quota("20000/m", Shape::SlidingCounter), now));
    // Keys at their limit, which do not give way.
    flood(&store, quota("1/d", FIRST_HIT), 1, 0..2 * WIDE_FLOOD, &mut now, MICROSECOND);
    let raised = quota("300000/m", Shape::SlidingCounter);
    let passed = (0..150).filter(|_| hit(&store, "busy", raised, 4_000, now)).count() * 4_000;
    assert!((20_000..=300_000).contains(&passed), "{passed} passed");
}

/// The state of a replaced limit was lost when the counter of the new one found no room.
#[test]
fn a_changed_limit_that_finds_no_room_forgets_nothing() {
    const CLIENTS: u64 = 50;
    for full in [MemoryFull::Aggregate, MemoryFull::Open, MemoryFull::Closed] {
        let store = MemoryStore::new(MemoryStore::MIN_BYTES).when_full(full);
        let old = quota("5/h", Shape::GCRA);
        let new = quota("6/h", Shape::GCRA);
        let mut now = NOW;
        for client in 0..CLIENTS {
            assert!((0..5).all(|_| passes(&store, &format!("client {client}"), old, now)));
        }
        flood(&store, quota("1/d", Shape::GCRA), 1, 0..PACKED_FLOOD, &mut now, Duration::ZERO);
        let before = store.usage().unstored;
        for client in 0..CLIENTS {
            let predecessor = Predecessor {
                fingerprint: SECRET.fingerprint([format!("client {client}").as_str()]),
                quota: old,
            };
            let fingerprint = SECRET.fingerprint([format!("client {client}, 6/h").as_str()]);
            let mut charge = Charge::enforced(fingerprint, new, 1);
            charge.predecessors = vec![predecessor];
            let passed = (0..20).filter(|_| store.charge(&[charge.clone()], now).admitted).count();
            assert!(passed <= 1, "{full:?}: {passed} passed after five, by a limit of six");
        }
        assert!(store.usage().unstored > before, "{full:?}: there was no room");
    }
}

/// States grow while the slab is full of keys that do not give way.
#[test]
fn a_state_that_cannot_grow_is_coarsened_and_stays_limited() {
    const CLIENTS: u64 = 40;
    const LIMIT: u64 = 100;
    for shape in [Shape::SlidingLog, COMPACT, TIERS, Shape::Concurrency] {
        let store = MemoryStore::new(MemoryStore::MIN_BYTES);
        let limit = quota("100/h", shape);
        let mut now = NOW;
        let mut admitted = [0; CLIENTS as usize];
        let mut round = |now: Time| {
            for client in 0..CLIENTS {
                let is_admitted = passes(&store, &format!("client {client}"), limit, now);
                admitted[client as usize] += u64::from(is_admitted);
            }
        };
        for _ in 0..LIMIT / 3 {
            now = now + 7 * SECOND;
            round(now);
        }
        flood(&store, quota("1/d", FIRST_HIT), 1, 0..2 * WIDE_FLOOD, &mut now, MICROSECOND);
        for _ in 0..2 * LIMIT {
            now = now + 7 * SECOND;
            round(now);
        }
        assert!(
            admitted.iter().all(|admitted| (LIMIT / 3..=LIMIT).contains(admitted)),
            "{shape:?} {admitted:?}"
        );
        let usage = store.usage();
        let has_no_room = usage.coarsened > 0 || admitted.iter().any(|admitted| *admitted < LIMIT);
        assert!(has_no_room && usage.bytes <= usage.cap_bytes, "{shape:?} {usage:?}");
    }
}

#[test]
fn a_flood_that_finds_no_room_is_limited_in_total() {
    // 46 of 50 fresh keys got 20 of 20 through a limit of five an hour.
    for (shape, keys) in [(Shape::GCRA, PACKED_FLOOD), (FIRST_HIT, WIDE_FLOOD)] {
        let store = MemoryStore::new(MemoryStore::MIN_BYTES);
        let limit = quota("5/h", shape);
        let mut now = NOW;
        // Made-up keys at their limit, so that none of them gives way.
        flood(&store, limit, 5, 0..keys, &mut now, Duration::ZERO);
        let stored = store.usage().keys;
        let passed = |name: &str, hits: u64| {
            let of =
                |n: u64| (0..hits).filter(|_| passes(&store, &format!("{name} {n}"), limit, now)).count();
            (0..500).map(of).sum::<usize>() as u64
        };
        // In every period what finds no room gets the limit for each cell, and no more.
        let first = passed("late", 20);
        assert!(first <= 5 * AGGREGATE_CELLS as u64, "{first} passed");
        // A new key during the flood gets nothing until the period is over, except for the few
        // that find a slot of their own.
        let newcomers = passed("newcomer", 1);
        assert!(newcomers <= 50, "{newcomers} of 500 newcomers passed, with {stored} keys kept");
        assert!(store.aggregated_limits(now) == 1 && store.usage().denied_full > 0);
        // Known keys are still decided by their own state, not by the aggregate cell.
        let known = SECRET.fingerprint(["made up 0"]);
        assert!(store.reset(known) && passes(&store, "made up 0", limit, now));
    }
}

#[test]
fn a_new_key_passes_once_the_period_of_the_flood_is_over() {
    let store = MemoryStore::new(MemoryStore::MIN_BYTES);
    let limit = quota("5/m", FIRST_HIT);
    let mut now = NOW;
    flood(&store, limit, 5, 0..2 * WIDE_FLOOD, &mut now, Duration::ZERO);
    assert!(!passes(&store, "newcomer", limit, now) || store.usage().denied_full > 0);
    let now = now + 61 * SECOND;
    assert!((0..100).all(|n| (0..5).all(|_| passes(&store, &format!("newcomer {n}"), limit, now))));
}

/// A regression: one key more than its lines have slots for grew its shard to the cap, under the lock.
#[test]
fn keys_that_share_their_lines_do_not_grow_the_table_without_end() {
    const SLOTS: u64 = 4;
    let store = MemoryStore::new(64 << 20);
    let limit = quota("5/h", Shape::GCRA);
    let before = store.usage().bytes;
    let mut passed = 0;
    for n in 1..=1_000u64 {
        // Both candidates are the first line of the first shard, whatever the size of the table.
        let charges = [Charge::enforced(Fingerprint::from_bits(n << 44), limit, 1)];
        passed += (0..20).filter(|_| store.charge(&charges, NOW).admitted).count() as u64;
    }
    assert_eq!(passed, 5 * SLOTS + 5, "those with a slot, and the others together");
    let usage = store.usage();
    assert_eq!((usage.keys, usage.bytes), (SLOTS, before));
    assert!(passes(&store, "another", limit, NOW));
}

/// A store without room for new keys.
fn full_store(shape: Shape, keys: u64, full: MemoryFull) -> MemoryStore {
    let store = MemoryStore::new(MemoryStore::MIN_BYTES).when_full(full);
    // Made-up keys at their limit, so that none of them gives way.
    let limit = quota("5/h", shape);
    (0..keys).for_each(|n| _ = hit(&store, &format!("made up {n}"), limit, 5, NOW));
    store
}

#[test]
fn refunds_go_back_to_the_counter_that_new_keys_share() {
    // What was refunded stayed used until the period was over.
    for (shape, keys) in
        [(Shape::GCRA, PACKED_FLOOD), (FIRST_HIT, 2 * WIDE_FLOOD), (Shape::Concurrency, 2 * WIDE_FLOOD)]
    {
        let limit = quota("4/h", shape);
        let store = full_store(shape, keys, MemoryFull::Aggregate);
        let charge_all = |name: &str| {
            let late =
                (0..500).map(|n| [Charge::enforced(SECRET.fingerprint([name, &format!("{n}")]), limit, 1)]);
            let receipts =
                late.filter_map(|charges| ChargeReceipt::of(&charges, &store.charge(&charges, NOW)));
            receipts.collect::<Vec<_>>()
        };
        let [first, denied] = ["first", "second"].map(charge_all);
        assert!((2 * AGGREGATE_CELLS..=4 * AGGREGATE_CELLS + 50).contains(&first.len()), "{}", first.len());
        assert!(denied.len() <= 50, "{} passed", denied.len());
        let refunded = first.len();
        first.into_iter().for_each(|receipt| store.refund(receipt, NOW));
        let third = charge_all("third").len();
        assert!(
            third + 50 >= refunded && third <= 4 * AGGREGATE_CELLS + 50,
            "{third} of {refunded} refunded passed"
        );
    }
}

#[test]
fn a_peek_says_what_new_keys_get_while_memory_is_full() {
    for full in [MemoryFull::Aggregate, MemoryFull::Open, MemoryFull::Closed] {
        for (shape, keys) in [(Shape::GCRA, PACKED_FLOOD), (FIRST_HIT, 2 * WIDE_FLOOD)] {
            let limit = quota("4/h", shape);
            let store = full_store(shape, keys, full);
            let is_told = |n: u64| {
                let charges = [Charge::enforced(SECRET.fingerprint([&*format!("late {n}")]), limit, 1)];
                let peeked = store.peek(&charges, NOW);
                let made = store.charge(&charges, NOW);
                let peeked = &peeked.limits[0];
                let made = &made.limits[0];
                peeked.decision.admission == made.decision.admission
                    && (!made.decision.is_allowed() || peeked.remaining == made.remaining + 1)
            };
            // A few find a slot by moving other keys, which a peek does not try.
            let wrong = (0..1_000).filter(|n| !is_told(*n)).count();
            assert!(wrong <= 20, "{full:?} {shape:?}: {wrong} of 1000");
        }
    }
}

#[test]
fn limits_without_an_aggregate_cell_of_their_own_admit_new_keys_too() {
    const LIMITS: u64 = 40;
    let store = full_store(FIRST_HIT, 2 * WIDE_FLOOD, MemoryFull::Aggregate);
    for n in 0..LIMITS {
        let limit = quota(&format!("{}/h", 10 + n), FIRST_HIT);
        let passed = (0..40).filter(|key| passes(&store, &format!("late {n} {key}"), limit, NOW)).count();
        assert!(passed > 0, "no newcomer of limit {n} passed");
    }
    let limit = quota("9/h", FIRST_HIT);
    let passed = (0..2_000).filter(|n| passes(&store, &format!("flood {n}"), limit, NOW)).count();
    assert!(passed <= 9 * AGGREGATE_CELLS, "{passed} passed");
}

#[test]
fn new_keys_pass_or_are_denied_as_configured() {
    for (full, expected) in [(MemoryFull::Open, 500), (MemoryFull::Closed, 0)] {
        let store = MemoryStore::new(MemoryStore::MIN_BYTES).when_full(full);
        let limit = quota("5/h", FIRST_HIT);
        let mut now = NOW;
        flood(&store, limit, 5, 0..2 * WIDE_FLOOD, &mut now, Duration::ZERO);
        let passed = (0..500).filter(|n| passes(&store, &format!("late {n}"), limit, now)).count();
        assert_eq!(passed, expected, "{full:?}");
    }
}

#[test]
fn a_log_fits_the_memory_that_its_limit_needs_and_stays_limited_in_less() {
    // 100,000/h at 8 MiB: all 1.8 million passed.
    let limit = Limit::new("30000/h".parse().expect("a rate"), Shape::SlidingLog).expect("a valid limit");
    let least = MemoryStore::min_bytes_for(&limit);
    for (bytes, is_exact) in [(least, true), (MemoryStore::MIN_BYTES, false)] {
        let store = MemoryStore::new(bytes);
        let quota = Quota::new(&limit);
        let mut now = NOW;
        let hits = (0..40_000u64).map(|n| {
            now = now + Duration::from_micros(50_000 + n * 7_919 % 20_000);
            passes(&store, "busy", quota, now)
        });
        assert_eq!(hits.filter(|passed| *passed).count(), 30_000, "in {bytes} bytes");
        let usage = store.usage();
        assert!(usage.bytes <= usage.cap_bytes, "{usage:?}");
        assert_eq!(usage.coarsened == 0, is_exact, "{usage:?}");
        assert!(!passes(&store, "busy", quota, now) && passes(&store, "busy", quota, now + 3601 * SECOND));
    }
}

#[test]
fn every_wide_state_fits_the_memory_that_its_limit_needs() {
    for shape in WIDE {
        for rate in ["1/m", "300/m", "5000/m"] {
            let limit = Limit::new(rate.parse().expect("a rate"), shape).expect("a valid limit");
            let store = MemoryStore::new(MemoryStore::min_bytes_for(&limit));
            let quota = Quota::new(&limit);
            let mut now = NOW;
            for _ in 0..6_000 {
                now = now + Duration::from_micros(11_998);
                passes(&store, "busy", quota, now);
            }
            assert_eq!(store.usage().coarsened, 0, "{rate} {shape:?} in {:?}", store.usage());
        }
    }
}

/// A key that had used less than a quarter of its limit could be evicted, again and again: a client of 100/d was never
/// limited.
#[test]
fn a_client_that_has_itself_forgotten_again_and_again_stays_limited() {
    const CLIENTS: usize = 20;
    for shape in [Shape::GCRA, FIRST_HIT] {
        let limit = quota("100/d", shape);
        let (flooding, keys) = match shape {
            Shape::GCRA => (quota("1/m", Shape::GCRA), PACKED_FLOOD),
            _ => (quota("1/m", FIRST_HIT), WIDE_FLOOD),
        };
        let store = MemoryStore::new(MemoryStore::MIN_BYTES);
        let mut now = NOW;
        let mut passed = [0; CLIENTS];
        for cycle in 0..7 {
            for (client, passed) in passed.iter_mut().enumerate() {
                let hits = (0..19).filter(|_| passes(&store, &format!("client {client}"), limit, now));
                *passed += hits.count();
            }
            flood(&store, flooding, 1, cycle * keys..(cycle + 1) * keys, &mut now, MICROSECOND);
            now = now + 90 * SECOND; // the flood has expired
        }
        assert!(store.usage().evicted > 0, "{shape:?}: keys were evicted");
        // In ten minutes a bucket of 100/d gets a token back.
        assert!(passed.iter().all(|passed| (75..=120).contains(passed)), "{shape:?}: {passed:?} of 100");
    }
}
