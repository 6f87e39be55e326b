//! A fixed number of decisions of one kind, for counting instructions; prints nothing.
//!
//! Time is passed in, so that no clock is counted. Run by `bench/instructions`.

use std::hint::black_box;
use std::time::Duration;

use tollgate::internal::changes::Changes;
use tollgate::internal::fingerprint::Secret;
use tollgate::internal::{EngineCore, EngineSetup, PolicySnapshot};
use tollgate::{Hit, Limiter, Time};

const NOW: Time = Time::from_secs(1_800_000_000);
const MANY: usize = 1_000_000;
/// From one key to the next, far away.
const STRIDE: usize = 7919;
const BATCH: usize = 16;
/// Decisions before those that are counted.
const WARM: usize = 1_000;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let case = arguments.next().unwrap_or_default();
    let decisions = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(0);
    match case.as_str() {
        "hot-string" => hot_string(decisions, "1000000000/d", true),
        "hot-u64" => hot_number(decisions),
        "denied-string" => hot_string(decisions, "1/d", false),
        "million-strings" => million_strings(decisions),
        "batch-strings" => batch_strings(decisions),
        "sliding-log" => hot_window(decisions, "sliding-log"),
        "sliding-compact" => hot_window(decisions, "sliding-compact, resolution: 1m"),
        "tiered-window" => hot_window(decisions, "tiered-window"),
        "engine-1-rule" => hot_user(decisions, &engine(1, "1000000000/d", Changes::Ignored), true),
        "engine-denied" => hot_user(decisions, &engine(1, "1/d", Changes::Ignored), false),
        "engine-3-rules" => hot_user(decisions, &engine(3, "1000000000/d", Changes::Ignored), true),
        "engine-batch" => engine_batch(decisions),
        "engine-recorded" => hot_user(decisions, &engine(1, "1000000000/d", Changes::Recorded), true),
        "load-yaml" => load_yaml(decisions),
        other => {
            eprintln!("unknown case '{other}'");
            std::process::exit(2);
        }
    }
}

fn limiter(rate: &str) -> Limiter {
    Limiter::new(rate).expect("a rate")
}

/// What is counted: the one function of this name.
#[inline(never)]
fn measured(decisions: usize, mut decide: impl FnMut(usize)) {
    for n in 0..decisions {
        decide(n);
    }
}

fn hot_string(decisions: usize, rate: &str, due: bool) {
    let limiter = limiter(rate);
    assert!(limiter.check_at("user:123456", NOW).is_allowed());
    measured(decisions, |_| {
        assert_eq!(limiter.check_at(black_box("user:123456"), NOW).is_allowed(), due);
    });
}

fn hot_number(decisions: usize) {
    let limiter = limiter("1000000000/d");
    measured(decisions, |_| assert!(limiter.check_at(black_box(&123_456_u64), NOW).is_allowed()));
}

/// Keys in place, one hit each; time stands still, so that none is forgotten.
fn filled() -> (Limiter, Vec<String>) {
    let limiter = limiter("1000000000/d");
    let keys: Vec<String> = (0..MANY).map(|n| format!("user:{n:06}")).collect();
    for key in &keys {
        assert!(limiter.check_at(key.as_str(), NOW).is_allowed());
    }
    (limiter, keys)
}

fn million_strings(decisions: usize) {
    let (limiter, keys) = filled();
    measured(decisions, |n| {
        let key = &keys[n * STRIDE % MANY];
        assert!(limiter.check_at(black_box(key.as_str()), NOW).is_allowed());
    });
}

fn batch_strings(decisions: usize) {
    let (limiter, keys) = filled();
    measured(decisions / BATCH, |n| {
        let batch: [&str; BATCH] = std::array::from_fn(|m| keys[(n * BATCH + m) * STRIDE % MANY].as_str());
        limiter.check_batch_at(black_box(&batch), NOW, |answer| assert!(answer.is_allowed()));
    });
}

/// A key that is hit every millisecond: its window moves, and steps leave it.
fn hot_window(decisions: usize, algorithm: &str) {
    let limit = format!("{{limit: 100000/m, algorithm: {algorithm}}}");
    let limiter = Limiter::from_yaml(&limit, 1 << 30).expect("a valid limit, and memory for the key");
    let later = |n: usize| NOW + Duration::from_millis(n as u64);
    for n in 0..WARM {
        assert!(limiter.check_at("user:123456", later(n)).is_allowed());
    }
    measured(decisions, |n| {
        assert!(limiter.check_at(black_box("user:123456"), later(WARM + n)).is_allowed());
    });
}

fn engine(rules: usize, limit: &str, changes: Changes) -> EngineCore {
    let rules: Vec<String> =
        (0..rules).map(|n| format!("{{id: each-{n}, key: user, limit: {limit}}}")).collect();
    let policy =
        PolicySnapshot::from_yaml(&format!("rules: [{}]", rules.join(", "))).expect("the rules are valid");
    let setup = EngineSetup { secret: Secret::from_bytes([7; 16]), changes, ..EngineSetup::default() };
    EngineCore::with_setup(policy, setup)
}

fn hot_user(decisions: usize, engine: &EngineCore, due: bool) {
    assert!(engine.check(&Hit::by("user:123456"), NOW).allowed);
    measured(decisions, |_| {
        assert_eq!(engine.check(black_box(&Hit::by("user:123456")), NOW).allowed, due);
    });
}

/// Rules of the kind that `bench/run rules` loads.
fn load_yaml(rules: usize) {
    let rule = |n: usize| {
        let path = format!("/api/v{}/service-{}/items-{n}", n % 3, n % 1_000);
        format!(
            "  - {{id: rule-{n}, match: \"POST {path}/{{id}}\", key: [ip, user], \
             limits: [1000000000/d, 900000000/h], algorithm: sliding-counter}}\n"
        )
    };
    let yaml = format!("rules:\n{}", (0..rules).map(rule).collect::<String>());
    measured(1, |_| {
        let policy = PolicySnapshot::from_yaml(black_box(&yaml)).expect("the rules are valid");
        assert_eq!(policy.rules().len(), rules);
    });
}

fn engine_batch(decisions: usize) {
    let engine = engine(1, "1000000000/d", Changes::Ignored);
    let users: Vec<String> = (0..1_000).map(|n| format!("user:{n:06}")).collect();
    users.iter().for_each(|user| assert!(engine.check(&Hit::by(user), NOW).allowed));
    measured(decisions / BATCH, |n| {
        let hits: [Hit<'_>; BATCH] = std::array::from_fn(|m| Hit::by(&users[(n * BATCH + m) % users.len()]));
        assert!(engine.check_batch(black_box(&hits), NOW).iter().all(|verdict| verdict.allowed));
    });
}
