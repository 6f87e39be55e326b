//! The memory store under many orders of its locks and of the operations on its slots.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test --test shuttle --release --target-dir target/shuttle`
#![cfg(shuttle)]

use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;
use tollgate::algorithm::{Algorithm, Quota};
use tollgate::fingerprint::Secret;
use tollgate::store::{Charge, DeniedHits, MemoryStore, Receipt, Weight};
use tollgate::{Limit, Shape, Time};

const NOW: Time = Time::from_secs(1_800_000_000);
/// Orders tried.
const TRIES: usize = 4_000;

fn quota(rate: &str, shape: Shape) -> Quota {
    Quota::new(&Limit::new(rate.parse().expect("a valid rate"), shape).expect("a valid limit"))
}

fn charge(key: &str, quota: Quota) -> Charge {
    Charge {
        fingerprint: Secret::from_bytes([7; 16]).fingerprint([key]),
        quota,
        cost: 1,
        unit_cost: 1,
        weight: Weight::Enforced,
        denied: DeniedHits::Free,
        previous: Default::default(),
    }
}

fn used(store: &MemoryStore, key: &str, quota: Quota) -> u64 {
    quota.used(&store.state_of(&charge(key, quota), NOW), NOW)
}

/// Runs a thread for each of the closures over one store, and waits for all.
fn race<const N: usize>(threads: [fn(&MemoryStore) -> u64; N]) -> (Arc<MemoryStore>, u64) {
    let store = Arc::new(MemoryStore::new(MemoryStore::MIN_BYTES));
    let sum = Arc::new(AtomicU64::new(0));
    let threads = threads.map(|run| {
        let (store, sum) = (Arc::clone(&store), Arc::clone(&sum));
        thread::spawn(move || _ = sum.fetch_add(run(&store), Ordering::SeqCst))
    });
    threads.into_iter().for_each(|thread| thread.join().expect("no thread panics"));
    let sum = sum.load(Ordering::SeqCst);
    (store, sum)
}

fn last_token(shape: Shape) -> impl Fn(&MemoryStore) -> u64 {
    move |store| u64::from(store.charge(&[charge("key", quota("1/h", shape))], NOW).admitted)
}

#[test]
fn two_threads_never_both_get_the_last_token() {
    let packed = |store: &MemoryStore| last_token(Shape::GCRA)(store);
    let wide = |store: &MemoryStore| last_token(Shape::SlidingLog)(store);
    shuttle::check_random(move || assert_eq!(race([packed, packed]).1, 1), TRIES);
    shuttle::check_random(move || assert_eq!(race([wide, wide]).1, 1), TRIES);
}

/// The model is worth something only if it finds a race where there is one.
#[test]
#[should_panic(expected = "both got the last token")]
fn asking_first_and_charging_later_would_be_a_race() {
    let ask_first = |store: &MemoryStore| {
        let charges = [charge("key", quota("1/h", Shape::GCRA))];
        let admitted = store.peek(&charges, NOW).admitted;
        store.charge(&charges, NOW);
        u64::from(admitted)
    };
    shuttle::check_random(
        move || assert_eq!(race([ask_first, ask_first]).1, 1, "both got the last token"),
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
    let refunding = |store: &MemoryStore| {
        let charges = [charge("a", quota("2/h", Shape::GCRA)), charge("b", quota("2/h", Shape::SlidingLog))];
        if let Some(receipt) = Receipt::of(&charges, &store.charge(&charges, NOW)) {
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
