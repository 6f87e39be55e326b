//! The memory store under many orders of its locks and of the operations on its slots.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test --test shuttle --release --target-dir target/shuttle`
#![cfg(shuttle)]

use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use shuttle::rand::RngCore;
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;
use tollgate::internal::algorithm::{Algorithm, Quota};
use tollgate::internal::changes::Changes;
use tollgate::internal::fingerprint::Secret;
use tollgate::internal::limit::WindowStart;
use tollgate::internal::store::{Charge, ChargeReceipt, MemoryStore};
use tollgate::internal::{Limit, Shape};
use tollgate::{Limiter, Time};

const NOW: Time = Time::from_secs(1_800_000_000);
/// Held for reading by models of the store as it is, and for writing while a bug is planted in it.
static AS_IT_IS: RwLock<()> = RwLock::new(());
/// Orders tried.
const TRIES: usize = 4_000;

fn quota(rate: &str, shape: Shape) -> Quota {
    Quota::new(&Limit::new(rate.parse().expect("a valid rate"), shape).expect("a valid limit"))
}

fn limiter(rate: &str) -> Limiter {
    let limit = Limit::per(rate.parse().expect("a valid rate"));
    tollgate::internal::limiter::with_limit(&limit, MemoryStore::MIN_BYTES).expect("a limiter")
}

fn charge(key: &str, quota: Quota) -> Charge {
    Charge::enforced(Secret::from_bytes([7; 16]).fingerprint([key]), quota, 1)
}

fn used(store: &MemoryStore, key: &str, quota: Quota) -> u64 {
    quota.used(&store.state_of(&charge(key, quota), NOW), NOW)
}

type Thread = Box<dyn FnOnce(&MemoryStore) -> u64 + Send>;

/// Runs a thread for each of the functions over one store, and waits for all.
fn race<const N: usize>(threads: [fn(&MemoryStore) -> u64; N]) -> (Arc<MemoryStore>, u64) {
    let threads = threads.into_iter().map(|run| Box::new(run) as Thread).collect();
    race_on(MemoryStore::new(MemoryStore::MIN_BYTES), threads)
}

fn race_on(store: MemoryStore, threads: Vec<Thread>) -> (Arc<MemoryStore>, u64) {
    let store = Arc::new(store);
    let sum = Arc::new(AtomicU64::new(0));
    let spawn = |run: Thread| {
        let store = Arc::clone(&store);
        let sum = Arc::clone(&sum);
        thread::spawn(move || _ = sum.fetch_add(run(&store), Ordering::SeqCst))
    };
    let threads: Vec<_> = threads.into_iter().map(spawn).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no thread panics"));
    let sum = sum.load(Ordering::SeqCst);
    (store, sum)
}

fn last_token(shape: Shape) -> impl Fn(&MemoryStore) -> u64 {
    move |store| u64::from(store.charge(&[charge("key", quota("1/h", shape))], NOW).admitted)
}

#[test]
fn two_threads_never_both_get_the_last_token() {
    let _as_it_is = AS_IT_IS.read().unwrap_or_else(PoisonError::into_inner);
    let packed: fn(&MemoryStore) -> u64 = |store| last_token(Shape::GCRA)(store);
    let wide: fn(&MemoryStore) -> u64 = |store| last_token(Shape::SlidingLog)(store);
    for threads in [[packed, packed], [wide, wide]] {
        let one_wins = move || assert_eq!(race(threads).1, 1);
        shuttle::check_dfs(one_wins, Some(5 * TRIES)); // systematically, as far as that goes
        shuttle::check_random(one_wins, TRIES);
        shuttle::check_pct(one_wins, TRIES, 3);
    }
}

/// The model is worth something only if it finds a race where there is one.
#[test]
#[should_panic(expected = "both got the last token")]
fn peek_then_charge_is_a_race() {
    let _as_it_is = AS_IT_IS.read().unwrap_or_else(PoisonError::into_inner);
    let peek_first = |store: &MemoryStore| {
        let charges = [charge("key", quota("1/h", Shape::GCRA))];
        let admitted = store.peek(&charges, NOW).admitted;
        store.charge(&charges, NOW);
        u64::from(admitted)
    };
    shuttle::check_random(
        move || assert_eq!(race([peek_first, peek_first]).1, 1, "both got the last token"),
        TRIES,
    );
}

/// Charges two of three keys twice over; returns how often both were charged.
fn both(store: &MemoryStore, keys: [&str; 2]) -> u64 {
    let limit = quota("3/h", Shape::GCRA);
    let charges = keys.map(|key| charge(key, limit));
    (0..2).map(|_| u64::from(store.charge(&charges, NOW).admitted)).sum()
}

#[test]
fn overlapping_keys_neither_deadlock_nor_are_charged_in_part() {
    let _as_it_is = AS_IT_IS.read().unwrap_or_else(PoisonError::into_inner);
    let circle = || {
        let threads: [fn(&MemoryStore) -> u64; 3] = [
            |store| both(store, ["a", "b"]),
            |store| both(store, ["b", "c"]),
            |store| both(store, ["c", "a"]),
        ];
        let (store, admitted) = race(threads);
        let used = ["a", "b", "c"].map(|key| used(&store, key, quota("3/h", Shape::GCRA)));
        assert!(used.iter().all(|used| *used <= 3), "{used:?}");
        assert_eq!(used.iter().sum::<u64>(), 2 * admitted, "each admission charged two keys");
        assert!(admitted >= 3, "{admitted}: too many were denied by charges that did not last");
    };
    shuttle::check_random(circle, TRIES);
    shuttle::check_pct(circle, TRIES, 3);
}

#[test]
fn a_refund_and_a_charge_lose_nothing_of_each_other() {
    let _as_it_is = AS_IT_IS.read().unwrap_or_else(PoisonError::into_inner);
    let refunding = |store: &MemoryStore| {
        let charges = [charge("a", quota("2/h", Shape::GCRA)), charge("b", quota("2/h", Shape::SlidingLog))];
        if let Some(receipt) = ChargeReceipt::of(&charges, &store.charge(&charges, NOW)) {
            store.refund(receipt, NOW);
        }
        0
    };
    let charging = |store: &MemoryStore| {
        u64::from(store.charge(&[charge("a", quota("2/h", Shape::GCRA))], NOW).admitted)
    };
    let check = move || {
        let (store, admitted) = race([refunding, charging, charging]);
        assert_eq!(used(&store, "a", quota("2/h", Shape::GCRA)), admitted);
        assert_eq!(used(&store, "b", quota("2/h", Shape::SlidingLog)), 0);
    };
    shuttle::check_random(check, TRIES);
}

/// Charges keys over and over while others come, so that their entries are moved about.
fn growth() {
    const ROUNDS: u64 = 12;
    let salt = shuttle::rand::thread_rng().next_u64(); // other keys, other homes
    // A window with one hit looks the same for all keys: only the tag distinguishes them.
    let limit = quota("1000/h", Shape::FixedWindow { start: WindowStart::Aligned });
    let charge_all = move |store: &MemoryStore, name: &str, count: u32| {
        let admitted = (0..count).map(|n| store.charge(&[charge(&format!("{name} {salt} {n}"), limit)], NOW));
        admitted.filter(|outcome| outcome.admitted).count() as u64
    };
    let store = MemoryStore::new(MemoryStore::MIN_BYTES);
    charge_all(&store, "moved", 3); // from here on they are charged without the lock
    let charging = move |store: &MemoryStore| (0..ROUNDS).map(|_| charge_all(store, "moved", 3)).sum::<u64>();
    let crowding = move |store: &MemoryStore| charge_all(store, "other", 12) - 12;
    let (store, admitted) = race_on(store, vec![Box::new(charging), Box::new(crowding), Box::new(charging)]);
    assert_eq!(admitted, 2 * 3 * ROUNDS);
    for n in 0..3 {
        assert_eq!(used(&store, &format!("moved {salt} {n}"), limit), 1 + 2 * ROUNDS, "an update was lost");
    }
    let unstored = store.usage().unstored; // the model's table is small: not every key finds room
    let others = (0..12).map(|n| used(&store, &format!("other {salt} {n}"), limit));
    assert_eq!(others.sum::<u64>() + unstored, 12, "a stranger's entry was charged, or lost");
}

/// Charges a key while it is forgotten and another one comes into its slot.
fn change_of_hands() {
    let salt = shuttle::rand::thread_rng().next_u64();
    let limit = quota("9/h", Shape::FixedWindow { start: WindowStart::Aligned });
    let old = charge(&format!("old {salt}"), limit);
    let new = charge(&format!("new {salt}"), limit);
    let store = MemoryStore::new(MemoryStore::MIN_BYTES);
    store.charge(std::slice::from_ref(&old), NOW);
    let charged = old.clone();
    let forgotten = old.fingerprint;
    let charging = move |store: &MemoryStore| u64::from(store.charge(&[charged], NOW).admitted);
    let coming = move |store: &MemoryStore| {
        store.reset(forgotten);
        u64::from(store.charge(&[new], NOW).admitted)
    };
    let (store, _) = race_on(store, vec![Box::new(charging), Box::new(coming)]);
    assert_eq!(used(&store, &format!("new {salt}"), limit), 1, "a stranger's entry was charged");
}

/// A key that comes and goes while the numbers of classes are given to others.
fn reused_classes() {
    const ROUNDS: u64 = 3;
    let salt = shuttle::rand::thread_rng().next_u64();
    let limit = quota("9/h", Shape::FixedWindow { start: WindowStart::Aligned });
    let other = quota("9/h", Shape::SlidingCounter);
    let key = charge(&format!("key {salt}"), limit);
    let coming_and_going = move |store: &MemoryStore| {
        for _ in 0..ROUNDS {
            store.reset(key.fingerprint);
            (0..2).for_each(|_| assert!(store.charge(std::slice::from_ref(&key), NOW).admitted));
        }
        0
    };
    let staying = move |store: &MemoryStore| {
        (0..ROUNDS).map(|_| store.charge(&[charge(&format!("other {salt}"), other)], NOW)).count() as u64
    };
    let other_rates = move |store: &MemoryStore| {
        for n in 0..6 {
            // Each has expired when the next one comes.
            let rate = quota(&format!("{}/s", 1_001 + 2 * n), Shape::GCRA);
            let key = format!("rate {n} {salt}");
            assert!(store.charge(&[charge(&key, rate)], NOW + n * Duration::from_secs(1)).admitted);
        }
        0
    };
    let store = MemoryStore::new(MemoryStore::MIN_BYTES);
    let threads: Vec<Thread> = vec![Box::new(coming_and_going), Box::new(staying), Box::new(other_rates)];
    let (store, _) = race_on(store, threads);
    assert_eq!(used(&store, &format!("key {salt}"), limit), 2, "its class was given to another");
    assert_eq!(used(&store, &format!("other {salt}"), other), ROUNDS, "its class was given to another");
}

/// Charges keys, adds others so that entries move, and removes one, while the state log is appended to. Once the last
/// change is appended, the log has every key as it is.
fn logged_changes() {
    const ROUNDS: u64 = 3;
    let salt = shuttle::rand::thread_rng().next_u64(); // other keys, other lines
    let packed = quota("1000/h", Shape::FixedWindow { start: WindowStart::Aligned });
    let wide = quota("1000/h", Shape::SlidingLog);
    let name = move |kind: &str, n: u64| format!("{kind} {salt} {n}");
    let add = move |store: &MemoryStore, kind: &str, count: u64, limit: Quota| {
        (0..count).for_each(|n| _ = store.charge(&[charge(&name(kind, n), limit)], NOW));
    };
    let store = MemoryStore::new(MemoryStore::MIN_BYTES).recording(Changes::Recorded);
    add(&store, "old", 2, packed); // charged without the lock from here on
    let mut begun = Vec::new();
    store.append_changes(&mut begun, NOW);
    let log = Arc::new(Mutex::new(begun));
    let charging = move |store: &MemoryStore| {
        (0..ROUNDS).for_each(|_| add(store, "old", 2, packed));
        0
    };
    let coming_and_going = move |store: &MemoryStore| {
        add(store, "new", 5, packed);
        add(store, "wide", 2, wide);
        store.reset(charge(&name("new", 0), packed).fingerprint);
        0
    };
    let kept = Arc::clone(&log);
    let saving = move |store: &MemoryStore| {
        (0..2).for_each(|_| store.append_changes(&mut kept.lock().expect("no thread panics"), NOW));
        0
    };
    let threads: Vec<Thread> = vec![Box::new(charging), Box::new(coming_and_going), Box::new(saving)];
    let (store, _) = race_on(store, threads);
    let mut log = log.lock().expect("no thread panics");
    store.append_changes(&mut log, NOW);
    let restored = MemoryStore::new(MemoryStore::MIN_BYTES);
    restored.replay(&log, NOW);
    for (kind, count, limit) in [("old", 2, packed), ("new", 5, packed), ("wide", 2, wide)] {
        for n in 0..count {
            let key = name(kind, n);
            assert_eq!(
                used(&restored, &key, limit),
                used(&store, &key, limit),
                "{kind}: a change is not in the log"
            );
        }
    }
}

/// The same on the fast path.
fn lone_change_of_hands() {
    let salt = shuttle::rand::thread_rng().next_u64();
    let [old, new] = ["old", "new"].map(|name| format!("{name} {salt}"));
    let limiter = Arc::new(limiter("9/h"));
    limiter.check_at(old.as_str(), NOW);
    limiter.check_at(old.as_str(), NOW); // now this thread has a hint to the slot and the current word range
    let threads = {
        let charging = Arc::clone(&limiter);
        let coming = Arc::clone(&limiter);
        let charged = old.clone();
        let forgotten = old;
        let new = new.clone();
        [
            thread::spawn(move || _ = charging.check_at(charged.as_str(), NOW)),
            thread::spawn(move || {
                coming.reset(forgotten.as_str());
                // Twice: then it is in the state that the old one was in.
                (0..2).for_each(|_| _ = coming.check_at(new.as_str(), NOW));
            }),
        ]
    };
    threads.into_iter().for_each(|thread| thread.join().expect("no thread panics"));
    assert_eq!(limiter.peek_n_at(new.as_str(), 1, NOW).left, 7, "a stranger's entry was charged");
}

/// The fast path with slot hints, while entries move.
fn lone_growth() {
    const ROUNDS: u64 = 8;
    let salt = shuttle::rand::thread_rng().next_u64(); // other keys, other homes
    let limiter = Arc::new(limiter("1000/h"));
    let all = move |limiter: &Limiter, name: &str, count: u32| {
        for n in 0..count {
            assert!(limiter.check_at(format!("{name} {salt} {n}").as_str(), NOW).is_allowed());
        }
    };
    all(&limiter, "moved", 2);
    let threads =
        [("moved", 2, ROUNDS), ("other", 12, 1), ("moved", 2, ROUNDS)].map(|(name, count, rounds)| {
            let limiter = Arc::clone(&limiter);
            thread::spawn(move || (0..rounds).for_each(|_| all(&limiter, name, count)))
        });
    threads.into_iter().for_each(|thread| thread.join().expect("no thread panics"));
    for n in 0..2 {
        let left = limiter.peek_n_at(format!("moved {salt} {n}").as_str(), 1, NOW).left;
        assert_eq!(left, 1000 - 1 - 2 * ROUNDS, "an update was lost");
    }
}

#[test]
fn the_fast_path_loses_no_update_while_its_entry_moves() {
    let _as_it_is = AS_IT_IS.read().unwrap_or_else(PoisonError::into_inner);
    shuttle::check_random(lone_growth, TRIES);
    shuttle::check_pct(lone_growth, TRIES, 3);
}

#[test]
fn an_entry_that_moves_loses_no_update() {
    let _as_it_is = AS_IT_IS.read().unwrap_or_else(PoisonError::into_inner);
    shuttle::check_random(growth, TRIES);
    shuttle::check_pct(growth, TRIES, 3);
}

#[test]
fn a_reused_slot_is_not_charged_for_its_previous_key() {
    let _as_it_is = AS_IT_IS.read().unwrap_or_else(PoisonError::into_inner);
    for model in [change_of_hands, lone_change_of_hands] {
        shuttle::check_random(model, TRIES);
        shuttle::check_pct(model, TRIES, 3);
    }
}

#[test]
fn a_class_that_an_entry_names_is_not_reused() {
    let _as_it_is = AS_IT_IS.read().unwrap_or_else(PoisonError::into_inner);
    shuttle::check_random(reused_classes, TRIES);
    shuttle::check_pct(reused_classes, TRIES, 3);
}

#[test]
fn the_state_log_has_every_change_once_the_last_one_is_appended() {
    let _as_it_is = AS_IT_IS.read().unwrap_or_else(PoisonError::into_inner);
    shuttle::check_random(logged_changes, TRIES);
    shuttle::check_pct(logged_changes, TRIES, 3);
}

#[test]
fn the_models_find_planted_bugs() {
    let _planting = AS_IT_IS.write().unwrap_or_else(PoisonError::into_inner);
    use tollgate::internal::seeded::{
        CLEAR_LATE, LOST_UPDATE, MARK_FIRST, NO_GENERATION, NO_RECHECK, NONE, STALE_NUMBERS, TAG_FIRST, plant,
    };
    let finds = |bug: u8, model: fn()| {
        plant(bug);
        let found = std::panic::catch_unwind(|| {
            shuttle::check_pct(model, TRIES, 3);
            shuttle::check_random(model, 5 * TRIES);
        })
        .is_err();
        plant(NONE);
        assert!(found, "bug {bug} was not found");
    };
    finds(LOST_UPDATE, growth);
    finds(LOST_UPDATE, lone_growth);
    finds(NO_RECHECK, growth);
    finds(NO_GENERATION, change_of_hands);
    finds(NO_GENERATION, lone_change_of_hands);
    finds(TAG_FIRST, change_of_hands);
    finds(TAG_FIRST, lone_change_of_hands);
    finds(STALE_NUMBERS, reused_classes);
    finds(MARK_FIRST, logged_changes);
    finds(CLEAR_LATE, logged_changes);
}
