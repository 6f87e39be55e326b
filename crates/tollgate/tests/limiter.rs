//! One limit, many keys: the slot hint of a thread changes no decision.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::internal::Limit;
use tollgate::internal::algorithm::{Algorithm, Quota};
use tollgate::internal::limit::{Shape, WindowStart};
use tollgate::internal::store::MemoryStore;
use tollgate::{Clock, Limiter, LimiterError, Time, WaitError};

const NOW: Time = Time::from_secs(1_800_000_000);
const LONG: &str = "a key that is longer than the fifteen bytes of a short one";

fn limiter(rate: &str) -> Limiter {
    Limiter::new(rate).expect("a rate")
}

#[test]
fn limiters_do_not_take_each_others_keys_for_their_own() {
    let one = limiter("2/h");
    let two = limiter("3/h");
    for key in ["", "ann", "exactly15bytes!", LONG] {
        let passed = |limiter: &Limiter| u32::from(limiter.check_at(key, NOW).is_allowed());
        let [mut by_one, mut by_two] = [0, 0];
        for _ in 0..5 {
            by_one += passed(&one);
            by_two += passed(&two);
        }
        assert_eq!((by_one, by_two), (2, 3), "{key}");
    }
}

#[test]
fn strings_bytes_and_numbers_are_distinct() {
    let limiter = limiter("1/h");
    assert!(limiter.check_at(&7u64, NOW).is_allowed());
    assert!(limiter.check_at(&7u64.to_le_bytes()[..], NOW).is_allowed());
    assert!(limiter.check_at("7", NOW).is_allowed());
    assert!(!limiter.check_at(b"7".as_slice(), NOW).is_allowed(), "the same bytes");
    assert!(!limiter.check_at(&7u64, NOW).is_allowed());
}

#[test]
fn a_key_that_was_reset_or_pushed_out_starts_over() {
    let limiter = tollgate::internal::limiter::with_limit(
        &Limit::per("1/h".parse().expect("a rate")),
        MemoryStore::MIN_BYTES,
    )
    .expect("a limiter");
    assert!(limiter.check_at("ann", NOW).is_allowed());
    assert!(!limiter.check_at("ann", NOW).is_allowed());
    assert!(limiter.reset("ann"));
    assert!(limiter.check_at("ann", NOW).is_allowed());
    // An hour later its state has expired, and other keys take its slot.
    let later = NOW + Duration::from_secs(3_600);
    for n in 0..30_000u64 {
        limiter.check_at(&n, later);
    }
    assert!(limiter.check_at("ann", later).is_allowed());
    assert_eq!(limiter.memory_usage().evicted, 0);
}

#[test]
fn a_refund_gives_back_what_time_has_not() {
    let limiter = limiter("2/h");
    let (decision, receipt) = limiter.check_with_receipt_at("ann", 2, NOW);
    assert!(decision.is_allowed());
    let denied = limiter.check_at("ann", NOW);
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(1_800)));
    let later = NOW + Duration::from_secs(1_800);
    limiter.refund_at(receipt.expect("it was charged"), later);
    assert!(limiter.check_n_at("ann", 2, later).is_allowed());
    let (denied, receipt) = limiter.check_with_receipt_at("ann", 1, later);
    assert!(!denied.is_allowed() && receipt.is_none());
}

#[test]
fn a_limiter_reads_its_own_clock() {
    let limiter = limiter("2/h");
    assert!(limiter.check("ann").is_allowed());
    let (_, receipt) = limiter.check_with_receipt("ann", 1);
    assert!(!limiter.peek_n("ann", 1).is_allowed() && !limiter.peek("ann").is_allowed());
    assert!(limiter.peek("bob").is_allowed() && limiter.peek("bob").is_allowed(), "nothing is charged");
    limiter.refund(receipt.expect("it was charged"));
    let mut answers = Vec::new();
    limiter.check_batch(&["ann", "ann", "bob"], |answer| answers.push(answer.is_allowed()));
    assert_eq!(answers, [true, false, true]);
}

#[test]
fn a_limiter_that_cannot_be_made_names_the_reason() {
    let error = |limiter: Result<Limiter, LimiterError>| limiter.err().expect("an error").to_string();
    assert!(error(Limiter::new("5 a day")).starts_with("no period in '5 a day'"));
    let limit = Limit::new("1000000/h".parse().expect("a rate"), Shape::SlidingLog).expect("a limit");
    let text = error(tollgate::internal::limiter::with_limit(&limit, 1 << 20));
    assert!(text.starts_with("1048576 bytes of memory are too few for this limit: it needs "), "{text}");
}

#[test]
fn a_limiter_counts_by_the_clock_that_it_is_given() {
    for limit in ["1/m", "{limit: 1/m, algorithm: sliding-log}"] {
        let builder = Limiter::builder().memory_bytes(16 << 20).clock(Clock::manual(NOW));
        let limiter = builder.build(limit).expect("a limiter");
        assert!(limiter.check("ann").is_allowed() && !limiter.check("ann").is_allowed());
        limiter.clock().advance(Duration::from_secs(60));
        assert!(limiter.check("ann").is_allowed(), "{limit}");
    }
    let text = Limiter::builder().build("{limit: 1/m, colour: red}").err().expect("an error").to_string();
    assert!(text.contains("unknown key 'colour'"), "{text}");
}

/// The documented way to test with a runtime's paused time.
#[tokio::test(start_paused = true)]
async fn a_clock_that_follows_the_paused_time_of_a_runtime_gives_the_exact_rate() {
    let began = tokio::time::Instant::now();
    let limiter = Limiter::builder().memory_bytes(16 << 20).clock(Clock::manual(NOW)).build("10/s");
    let limiter = std::sync::Arc::new(limiter.expect("a limiter"));
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..110 {
        let limiter = std::sync::Arc::clone(&limiter);
        calls.spawn(async move {
            let clock = limiter.clock();
            let sleep = |wait: Duration| async move {
                tokio::time::sleep(wait).await;
                clock.advance_to(NOW + began.elapsed());
            };
            limiter.until_ready("key", sleep).await.expect("it is served");
        });
    }
    while let Some(call) = calls.join_next().await {
        call.expect("it does not panic");
    }
    // The runtime's timers have a resolution of a millisecond.
    let elapsed = began.elapsed().as_millis();
    assert!((10_000..=10_001).contains(&elapsed), "a burst of ten, then ten a second: {elapsed}");
}

/// Without one, the wait fails after a bounded number of sleeps.
#[tokio::test(start_paused = true)]
async fn a_clock_that_does_not_follow_paused_time_is_an_error() {
    let limiter = Limiter::builder().memory_bytes(16 << 20).build("1/d").expect("a limiter");
    assert_eq!(limiter.until_ready("key", tokio::time::sleep).await, Ok(()));
    assert_eq!(limiter.until_ready("key", tokio::time::sleep).await, Err(WaitError::EarlySleep));
}

#[test]
fn a_batch_is_answered_like_one_after_the_other() {
    let shapes = [
        Shape::GCRA,
        Shape::FixedWindow { start: WindowStart::Aligned },
        Shape::SlidingCounter,
        Shape::SlidingLog,
    ];
    for shape in shapes {
        let limit = Limit::new("3/m".parse().expect("a rate"), shape).expect("a limit");
        let new =
            || tollgate::internal::limiter::with_limit(&limit, MemoryStore::MIN_BYTES).expect("a limiter");
        let batched = new();
        let single = new();
        let keys: Vec<String> = (0..200).map(|n| format!("{}", n % 37)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let mut answers = Vec::new();
        batched.check_batch_at(&keys, NOW, |answer| answers.push(answer));
        let expected: Vec<_> = keys.iter().map(|key| single.check_at(*key, NOW)).collect();
        assert_eq!(answers, expected, "{shape:?}");
    }
}

/// Rates whose buckets count nanoseconds, parts of a period, and bursts beyond the fast path.
const RATES: [&str; 4] = ["10/s", "7/m", "1000003/h", "400/y"];
/// Where words run over into tags: 2033, and what is now beyond it.
const TURN: u64 = 7 << 58;

proptest! {
    #[test]
    fn decisions_are_the_same_across_an_age_boundary(
        rate in prop::sample::select(&RATES[..]),
        burst in 1..20_u64,
        start in prop::sample::select(&[TURN - 3_000_000_000, TURN - 40_000_000_000_000_000, 1 << 58, 5][..]),
        hits in prop::collection::vec((0..3_usize, 1..4_u64, 0..2_000_000_000_u64, any::<bool>()), 1..80),
    ) {
        let shape = Shape::Gcra { burst: Some(burst) };
        let limit = Limit::new(rate.parse().expect("a rate"), shape).expect("a limit");
        let limiter = tollgate::internal::limiter::with_limit(&limit, MemoryStore::MIN_BYTES).expect("a limiter");
        let quota = Quota::new(&limit);
        let mut states = [(); 3].map(|()| quota.fresh());
        let mut now = Time::from_nanos(start);
        for (key, cost, pause, long) in hits {
            now = now + Duration::from_nanos(if long { pause * 30_000 } else { pause });
            let expected = quota.decide(&states[key], now, cost);
            if expected.is_allowed() {
                quota.charge(&mut states[key], now, cost);
            }
            prop_assert_eq!(limiter.check_n_at(&(key as u64), cost, now), expected, "{:?}", now);
        }
    }
}
