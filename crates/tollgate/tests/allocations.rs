//! The usual decision allocates nothing, from a decoded request to its headers.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tollgate::internal::headers::{HeaderStyle, Headers};
use tollgate::internal::{EngineCore, PolicySnapshot};
use tollgate::{Hit, Limiter, Time};

struct Counting;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + 1);
        // SAFETY: as the caller has promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller has promised.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NOW: Time = Time::from_secs(1_800_000_000);
const ROUNDS: u64 = 20_000;

/// The bytes that a decision allocates once all tables are warm.
fn allocated(mut decide: impl FnMut()) -> u64 {
    (0..ROUNDS).for_each(|_| decide());
    let before = ALLOCATED.get();
    (0..ROUNDS).for_each(|_| decide());
    ALLOCATED.get() - before
}

#[test]
fn a_single_decision_allocates_nothing() {
    let limiter = Limiter::new("100/h").expect("a rate");
    assert_eq!(allocated(|| _ = limiter.check_at("user:42", NOW)), 0);
    assert_eq!(allocated(|| limiter.check_batch_at(&["a", "b", "c"], NOW, |_| ())), 0);
}

#[test]
fn the_engine_allocates_nothing_whether_it_allows_or_denies() {
    let rules = "rules:
      - { id: search, match: GET /search, key: user, limits: [10000/m, 1000000/d] }
      - { id: tenant, key: attr:tenant, limit: 1000000000/d }
      - { id: items, match: '/items/{id}', key: api_key, limit: 1/d, algorithm: fixed-window }";
    let engine = EngineCore::new(PolicySnapshot::from_yaml(rules).expect("valid rules"));
    let mut headers = Headers::default();
    let mut check = |hit: &dyn Fn() -> Hit<'static>| {
        allocated(|| {
            let verdict = engine.check(&hit(), NOW);
            headers.write(&verdict, HeaderStyle::Both);
            assert!(headers.iter().count() >= 5);
        })
    };
    assert_eq!(
        check(&|| Hit::on("GET", "api.example.com", "/search").user("ann")),
        0,
        "allowed, then denied"
    );
    assert_eq!(check(&|| Hit::on("GET", "", "/items/7").api_key("k").attribute("tenant", "t")), 0);
}

#[test]
fn a_decision_by_ipv4_address_allocates_nothing() {
    let rules = "rules: [{ id: each, key: ip, limit: 1000000000/d }]";
    let engine = EngineCore::new(PolicySnapshot::from_yaml(rules).expect("valid rules"));
    let address = "203.0.113.9".parse().expect("an address");
    assert_eq!(allocated(|| assert!(engine.check(&Hit::on("", "", "").ip(address), NOW).allowed)), 0);
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocated(|| drop(std::hint::black_box(Box::new(7)))), ROUNDS);
}
