//! The memory store with real threads, at its cap, and against a model.

use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::Time;
use tollgate::internal::algorithm::{Algorithm, Grant, Quota, QuotaState};
use tollgate::internal::fingerprint::Secret;
use tollgate::internal::limit::{Levels, Refill, Release, WindowStart};
use tollgate::internal::store::{Charge, ChargeReceipt, DeniedHits, Enforcement, MemoryStore};
use tollgate::internal::{Limit, Shape};

const NOW: Time = Time::from_secs(1_800_000_000);
static SECRET: LazyLock<Secret> = LazyLock::new(|| Secret::from_bytes([7; 16]));
const SECOND: Duration = Duration::from_secs(1);

const SHAPES: [Shape; 11] = [
    Shape::GCRA,
    Shape::TokenBucket { burst: None, refill: Refill::Continuous },
    Shape::TokenBucket { burst: None, refill: Refill::Tick(SECOND) },
    Shape::TokenBucket { burst: None, refill: Refill::Calendar },
    Shape::LeakyBucket { burst: None, release: Release::AtOnce },
    Shape::FixedWindow { start: WindowStart::Aligned },
    Shape::FixedWindow { start: WindowStart::FirstHit },
    Shape::SlidingLog,
    Shape::SlidingCompact { resolution: SECOND },
    Shape::SlidingCounter,
    Shape::TieredWindow { levels: Levels::SMH },
];

fn quota(rate: &str, shape: Shape) -> Quota {
    let rate = rate.parse().expect("a valid rate");
    Quota::new(&Limit::new(rate, shape).expect("a valid limit"))
}

fn charge(key: &str, quota: Quota) -> Charge {
    Charge::enforced(SECRET.fingerprint([key]), quota, 1)
}

fn passes(store: &MemoryStore, key: &str, quota: Quota, now: Time) -> bool {
    store.charge(&[charge(key, quota)], now).admitted
}

fn used(store: &MemoryStore, key: &str, quota: Quota, now: Time) -> u64 {
    quota.used(&store.state_of(&charge(key, quota), now), now)
}

/// A small generator of numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn no_key_outlives_what_it_counts() {
    let hold = Shape::LeakyBucket { burst: None, release: Release::Hold { max_wait: None, after: 3 } };
    for shape in SHAPES.into_iter().chain([hold, Shape::Concurrency]) {
        let store = MemoryStore::new(MemoryStore::MIN_BYTES);
        let quota = quota("10/d", shape);
        let later = NOW + 3600 * SECOND;
        let take = |now, cost| {
            let charges = [Charge::enforced(SECRET.fingerprint(["ann"]), quota, cost)];
            ChargeReceipt::of(&charges, &store.charge(&charges, now)).expect("it is charged")
        };
        let check = |now: Time, step: &str| {
            let fresh_at = quota.expires_at(&store.state_of(&charge("ann", quota), now));
            let live = |at| store.live_keys(at);
            assert_eq!(live(fresh_at.max(now)), 0, "{step}: {shape:?}");
            if fresh_at > now {
                assert_eq!(live(fresh_at - Duration::from_nanos(1)), 1, "{step}: {shape:?}");
            }
        };
        let first = take(NOW, 2);
        check(NOW, "charged");
        let second = take(later, 1);
        check(later, "charged again");
        store.refund(second, later);
        check(later, "given back");
        let third = take(later, 1);
        store.settle(third, 7, later);
        check(later, "overdrawn");
        store.refund(first, later);
        check(later, "given back late");
    }
}

#[test]
fn of_four_threads_at_one_instant_one_gets_the_last_token() {
    const ROUNDS: usize = 100;
    let store = MemoryStore::new(MemoryStore::MIN_BYTES);
    let rounds: Vec<(String, Quota)> = (0..ROUNDS)
        .flat_map(|n| SHAPES.map(|shape| (format!("{n} {shape:?}"), quota("1/m", shape))))
        .collect();
    let admitted: Vec<AtomicU64> = rounds.iter().map(|_| AtomicU64::new(0)).collect();
    let barrier = Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for ((key, quota), admitted) in rounds.iter().zip(&admitted) {
                    barrier.wait();
                    admitted.fetch_add(u64::from(passes(&store, key, *quota, NOW)), Ordering::Relaxed);
                }
            });
        }
    });
    for ((key, _), admitted) in rounds.iter().zip(admitted) {
        assert_eq!(admitted.into_inner(), 1, "{key}");
    }
}

#[test]
fn several_keys_are_charged_all_or_none_whatever_their_order() {
    let store = MemoryStore::new(MemoryStore::MIN_BYTES);
    let own = quota("300/h", Shape::GCRA);
    let shared = quota("1000/h", Shape::SlidingLog);
    let keys = ["a", "b", "c", "d", "e"];
    let admitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            let admitted = &admitted;
            scope.spawn(move || {
                let mut numbers = Numbers(thread);
                for _ in 0..1_000 {
                    let key = keys[numbers.below(5) as usize];
                    let mut charges = vec![charge(key, own), charge("shared", shared)];
                    charges.rotate_left(numbers.below(2) as usize); // crossing orders must not block
                    admitted.fetch_add(u64::from(store.charge(&charges, NOW).admitted), Ordering::Relaxed);
                }
            });
        }
    });
    let of_keys: u64 = keys.iter().map(|key| used(&store, key, own, NOW)).sum();
    assert_eq!((of_keys, used(&store, "shared", shared, NOW)), (1_000, 1_000));
    assert_eq!(admitted.into_inner(), 1_000);
}

#[test]
fn a_charge_and_its_refund_leave_nothing_behind_under_contention() {
    let store = MemoryStore::new(MemoryStore::MIN_BYTES);
    let limit = quota("2/h", Shape::GCRA);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    let charges = [charge("a", limit), charge("b", limit)];
                    if let Some(receipt) = ChargeReceipt::of(&charges, &store.charge(&charges, NOW)) {
                        store.refund(receipt, NOW);
                    }
                }
            });
        }
    });
    assert_eq!((used(&store, "a", limit, NOW), used(&store, "b", limit, NOW)), (0, 0));
}

/// Drives offenders to their limit, floods the store with made-up keys, and checks which are still limited.
fn check_flood(
    offended: Quota,
    hits: u64,
    flooding: Quota,
    flood_hits: u64,
    flood_keys: u64,
    step: Duration,
) {
    const OFFENDERS: u64 = 100;
    let store = MemoryStore::new(MemoryStore::MIN_BYTES);
    let mut now = NOW;
    let offender = |n: u64| format!("offender {n}");
    for n in 0..OFFENDERS {
        (0..hits).for_each(|_| assert!(passes(&store, &offender(n), offended, now)));
    }
    for n in 0..flood_keys {
        now = now + step;
        (0..flood_hits).for_each(|_| _ = passes(&store, &format!("made up {n}"), flooding, now));
        if n % 1_000 == 0 {
            let usage = store.usage();
            assert!(usage.bytes <= usage.cap_bytes, "{usage:?}");
        }
    }
    let usage = store.usage();
    assert!(usage.bytes <= usage.cap_bytes, "{usage:?}");
    assert!(usage.unstored + usage.evicted > flood_keys / 4, "the store was full: {usage:?}");
    let forgotten = (0..OFFENDERS).filter(|n| passes(&store, &offender(*n), offended, now)).count();
    assert_eq!(forgotten, 0, "offenders forgotten, with {usage:?}");
}

const FLOOD: u64 = 120_000;
const MICROSECOND: Duration = Duration::from_micros(1);

#[test]
fn a_flood_of_keys_does_not_evict_offenders() {
    let limit = quota("5/m", Shape::GCRA);
    check_flood(limit, 5, limit, 1, FLOOD, 50 * MICROSECOND);
}

#[test]
fn a_flood_of_keys_at_their_limit_does_not_evict_offenders() {
    let limit = quota("5/m", Shape::GCRA);
    check_flood(limit, 5, limit, 5, FLOOD, MICROSECOND);
}

/// All debts are equal then but for the time that has passed.
#[test]
fn offenders_are_remembered_with_a_burst_of_one() {
    let limit = quota("1/m", Shape::Gcra { burst: Some(1) });
    check_flood(limit, 1, limit, 1, FLOOD, 100 * MICROSECOND);
}

#[test]
fn a_flood_of_wide_states_does_not_evict_offenders() {
    let log = quota("5/m", Shape::SlidingLog);
    check_flood(log, 5, log, 2, FLOOD / 2, 100 * MICROSECOND);
    let tiers = quota("5/h", Shape::TieredWindow { levels: Levels::SMH });
    check_flood(tiers, 5, tiers, 1, FLOOD / 4, 100 * MICROSECOND);
}

#[test]
fn a_flood_of_one_kind_of_key_does_not_switch_off_the_limits_of_another() {
    let packed = quota("5/h", Shape::GCRA);
    let log = quota("5/h", Shape::SlidingLog);
    for (flooding, late) in [(packed, log), (log, packed)] {
        let store = MemoryStore::new(MemoryStore::MIN_BYTES);
        for n in 0..FLOOD {
            passes(&store, &format!("made up {n}"), flooding, NOW);
        }
        let now = NOW + SECOND;
        let passed = (0..50).filter(|n| (0..6).all(|_| passes(&store, &format!("late {n}"), late, now)));
        assert_eq!(passed.count(), 0, "a sixth of five passed");
    }
}

#[test]
fn what_has_expired_makes_room_without_growth() {
    for shape in [Shape::GCRA, Shape::SlidingLog] {
        let store = MemoryStore::new(64 << 20);
        let limit = quota("2/s", shape);
        let mut bytes = Vec::new();
        for round in 0..12 {
            let now = NOW + 3 * SECOND * round;
            for n in 0..8_000 {
                passes(&store, &format!("{round} {n}"), limit, now);
            }
            bytes.push(store.usage().bytes);
        }
        assert!(bytes[11] <= bytes[0] * 3 / 2, "{bytes:?}");
        assert!(store.usage().evicted == 0 && store.usage().unstored == 0);
    }
}

#[test]
fn three_hundred_odd_rates_are_all_kept() {
    let store = MemoryStore::new(MemoryStore::MIN_BYTES);
    for n in 0..300 {
        let limit =
            quota(&format!("2/{}s", 2 * n + 3), Shape::TokenBucket { burst: None, refill: Refill::Calendar });
        let key = format!("key {n}");
        let passed: Vec<_> = (0..3).map(|_| passes(&store, &key, limit, NOW)).collect();
        assert_eq!(passed, [true, true, false], "rate {n}");
    }
}

#[test]
fn a_forgotten_key_starts_over() {
    let store = MemoryStore::new(MemoryStore::MIN_BYTES);
    for shape in SHAPES {
        let limit = quota("1/h", shape);
        let key = format!("{shape:?}");
        assert!(passes(&store, &key, limit, NOW) && !passes(&store, &key, limit, NOW));
        assert!(store.reset(SECRET.fingerprint([key.as_str()])));
        assert!(!store.reset(SECRET.fingerprint([key.as_str()])), "it was there once");
        assert!(passes(&store, &key, limit, NOW));
    }
}

/// The store as it would be without bounds, locks and packing.
#[derive(Default)]
struct Model {
    states: HashMap<String, QuotaState>,
}

type Answer = (bool, Vec<(tollgate::internal::algorithm::Decision, u64, Duration, bool)>);

impl Model {
    fn charge(&mut self, keys: &[String], charges: &[Charge], now: Time) -> Answer {
        let state =
            |key: &String, quota: &Quota| self.states.get(key).cloned().unwrap_or_else(|| quota.fresh());
        let mut states: Vec<QuotaState> =
            keys.iter().zip(charges).map(|(key, each)| state(key, &each.quota)).collect();
        let decisions: Vec<_> = charges
            .iter()
            .zip(&states)
            .map(|(each, state)| each.quota.decide(state, now, each.cost))
            .collect();
        let admitted = charges
            .iter()
            .zip(&decisions)
            .all(|(each, decision)| decision.is_allowed() || each.enforcement == Enforcement::Shadow);
        let mut parts = Vec::new();
        for (n, (each, decision)) in charges.iter().zip(decisions).enumerate() {
            let state = &mut states[n];
            let mut remaining = decision.left;
            let mut charged = false;
            let mut decision = decision;
            if admitted && decision.is_allowed() {
                each.quota.charge(state, now, each.cost);
                remaining = decision.left - each.cost;
                charged = true;
            } else if !decision.is_allowed() && each.denied_hits == DeniedHits::Counted {
                each.quota.drain(state, now, each.cost);
                decision = each.quota.decide(state, now, each.cost);
                remaining = decision.left;
            }
            parts.push((decision, remaining, each.quota.expires_at(state).since(now), charged));
            self.states.insert(keys[n].clone(), state.clone());
        }
        (admitted, parts)
    }

    fn refund(&mut self, key: &str, quota: &Quota, grant: &Grant, now: Time) {
        if let Some(state) = self.states.get_mut(key) {
            quota.refund(state, grant, grant.cost, now);
        }
    }
}

#[test]
fn random_histories_are_answered_as_the_pure_functions_say() {
    for seed in 0..20 {
        let store = MemoryStore::new(16 << 20);
        let mut model = Model::default();
        let mut numbers = Numbers(seed);
        let mut now = NOW;
        for step in 0..1_000 {
            now = now + Duration::from_nanos(numbers.below(4) * numbers.below(500_000_000));
            let first = numbers.below(11);
            let keys_and_charges: Vec<(String, Charge)> = (0..=numbers.below(3))
                .map(|n| {
                    let shape = (first + n) as usize % SHAPES.len();
                    let rate = ["7/s", "3/10s", "40/m"][numbers.below(3) as usize];
                    let key = format!("{} {shape} {rate}", numbers.below(4));
                    let mut each = charge(&key, quota(rate, SHAPES[shape]));
                    each.cost = numbers.below(4);
                    if numbers.below(4) == 0 {
                        each.enforcement = Enforcement::Shadow;
                    }
                    if numbers.below(4) == 0 {
                        each.denied_hits = DeniedHits::Counted;
                    }
                    (key, each)
                })
                .collect();
            let (keys, charges): (Vec<_>, Vec<_>) = keys_and_charges.into_iter().unzip();
            let outcome = store.charge(&charges, now);
            let parts = outcome.limits.iter();
            let parts = parts
                .map(|part| (part.decision, part.remaining, part.reset_after, part.grant.is_some()))
                .collect();
            let answer: Answer = (outcome.admitted, parts);
            assert_eq!(answer, model.charge(&keys, &charges, now), "seed {seed}, step {step}");
            if numbers.below(5) == 0
                && let Some(receipt) = ChargeReceipt::of(&charges, &outcome)
            {
                now = now + Duration::from_nanos(numbers.below(300_000_000));
                store.refund(receipt, now);
                for ((key, each), part) in keys.iter().zip(&charges).zip(&outcome.limits) {
                    part.grant.iter().for_each(|grant| model.refund(key, &each.quota, grant, now));
                }
            }
        }
    }
}

#[test]
fn a_key_takes_the_memory_that_the_docs_say() {
    // docs/algorithms.md: bytes a key after one hit of each of 100,000 keys.
    let first_hit = Shape::FixedWindow { start: WindowStart::FirstHit };
    let tiers = Shape::TieredWindow { levels: Levels::SMH };
    let compact = Shape::SlidingCompact { resolution: SECOND };
    let documented = [
        (Shape::GCRA, 20),
        (Shape::SlidingCounter, 20),
        (first_hit, 123),
        (Shape::SlidingLog, 123),
        (compact, 123),
        (tiers, 123),
    ];
    for (shape, bytes) in documented {
        let store = MemoryStore::new(1 << 30);
        let limit = quota("500/h", shape);
        for n in 0..100_000 {
            assert!(passes(&store, &format!("key {n}"), limit, NOW));
        }
        let measured = store.usage().bytes / 100_000;
        assert!((bytes - 3..=bytes + 3).contains(&measured), "{shape:?}: {measured} bytes, not {bytes}");
    }
}

#[test]
fn a_full_log_of_500_an_hour_takes_two_and_a_half_kilobytes_a_user() {
    const USERS: u64 = 1_000;
    let store = MemoryStore::new(1 << 30);
    let limit = quota("500/h", Shape::SlidingLog);
    let mut numbers = Numbers(5);
    let mut measured = [0, 0];
    for hit in 0..900u64 {
        // An hour and three quarters of even traffic, jittered: users stay at their limit and windows slide on.
        for user in 0..USERS {
            let at = NOW + Duration::from_micros(hit * 7_000_000 + numbers.below(7_000_000));
            passes(&store, &format!("user {user}"), limit, at);
        }
        match hit {
            99 => measured[0] = store.usage().bytes / USERS,
            899 => measured[1] = store.usage().bytes / USERS,
            _ => {}
        }
    }
    let [a_hundred, full] = measured;
    assert!(full <= 2_500, "{full} bytes a user");
    assert!(a_hundred <= 700, "{a_hundred} bytes a user with a hundred hits");
}

/// A clock that was read before a window began charged into it, and its refund looked in the window before.
#[test]
fn a_refund_by_a_clock_that_is_behind_is_not_lost() {
    let after = Time::from_secs(NOW.secs() / 86_400 * 86_400);
    let before = after - Duration::from_nanos(1);
    for shape in SHAPES {
        let store = MemoryStore::new(16 << 20);
        let quota = quota("10/d", shape);
        let charges = [charge("ann", quota)];
        assert!(store.charge(&charges, after).admitted);
        let outcome = store.charge(&charges, before);
        // Seen from the day before, a bucket that the calendar fills is empty.
        let Some(receipt) = ChargeReceipt::of(&charges, &outcome) else { continue };
        store.refund(receipt, before);
        assert_eq!(used(&store, "ann", quota, after), 1, "{shape:?}");
    }
}

/// A random history of one key: charges and refunds at times that `clock` returns, and at last a refund of what is left.
/// What is charged and not refunded never exceeds `most`. Returns what is used in the end.
fn charge_and_refund(quota: Quota, most: u64, mut clock: impl FnMut() -> Time) -> u64 {
    let store = MemoryStore::new(MemoryStore::MIN_BYTES);
    let mut receipts: Vec<(ChargeReceipt, u64)> = Vec::new();
    for step in 0..40 {
        let now = clock();
        if step % 5 > 2 && !receipts.is_empty() {
            let (receipt, _) = receipts.swap_remove(step % receipts.len());
            store.refund(receipt, now);
            continue;
        }
        let cost = 1 + step as u64 % 3;
        let charges = [Charge::enforced(SECRET.fingerprint(["ann"]), quota, cost)];
        if let Some(receipt) = ChargeReceipt::of(&charges, &store.charge(&charges, now)) {
            receipts.push((receipt, cost));
        }
        let lent: u64 = receipts.iter().map(|(_, cost)| cost).sum();
        assert!(lent <= most, "{quota:?}, step {step}: {lent} at {now:?}");
    }
    receipts.into_iter().for_each(|(receipt, _)| store.refund(receipt, clock()));
    used(&store, "ann", quota, clock() + SECOND)
}

/// The limit, and a second one where the histories cross midnight.
fn jumping_clocks() -> [(Time, u64); 2] {
    let midnight = Time::from_secs(NOW.secs() / 86_400 * 86_400);
    [(NOW, 10), (midnight, 20)]
}

#[test]
fn no_clock_that_jumps_back_and_forth_lends_more_than_the_limit() {
    const SPAN_S: u64 = 2_400;
    let hold = Shape::LeakyBucket { burst: None, release: Release::Hold { max_wait: None, after: 3 } };
    let mut numbers = Numbers(11);
    for shape in SHAPES.into_iter().chain([hold, Shape::Concurrency]) {
        for (middle, most) in jumping_clocks() {
            for _ in 0..200 {
                let begin = Time::from_secs(middle.secs() - SPAN_S / 2);
                charge_and_refund(quota("10/d", shape), most, || {
                    begin + Duration::from_secs(numbers.below(SPAN_S))
                });
            }
        }
    }
}

/// Except for a leaky bucket, whose places others may have entered behind, and for refills of every second.
#[test]
fn what_threads_with_slightly_different_clocks_charge_and_refund_is_back() {
    let is_refundable = |shape: &Shape| {
        !matches!(shape, Shape::LeakyBucket { .. } | Shape::TokenBucket { refill: Refill::Tick(_), .. })
    };
    let mut numbers = Numbers(12);
    for shape in SHAPES.into_iter().chain([Shape::Concurrency]).filter(is_refundable) {
        for (middle, most) in jumping_clocks() {
            for history in 0..200 {
                let mut latest = middle - Duration::from_millis(20);
                let left = charge_and_refund(quota("10/d", shape), most, || {
                    latest = latest + Duration::from_millis(numbers.below(3));
                    latest - Duration::from_millis(numbers.below(6))
                });
                assert_eq!(left, 0, "{shape:?} {history} around {middle:?}");
            }
        }
    }
}

/// A denial was counted when the race was lost, and again with all denials of the request.
#[test]
fn a_charge_that_loses_a_race_is_counted_at_most_once() {
    let store = MemoryStore::new(16 << 20);
    let quota = quota("10/h", Shape::SlidingLog);
    let of = |cost| Charge { cost, denied_hits: DeniedHits::Counted, ..charge("ann", quota) };
    assert!(store.charge(&[of(3)], NOW).admitted);
    // Each fits alone: the first is as another thread that is faster than the second.
    assert!(!store.charge(&[of(2), of(6)], NOW + SECOND).admitted);
    assert!(used(&store, "ann", quota, NOW + SECOND) <= 9);
}
