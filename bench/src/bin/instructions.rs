//! A fixed number of decisions of one kind, for counting instructions; prints nothing.
//!
//! Time is passed in, so that no clock is counted. Run by `bench/instructions`.

use std::hint::black_box;

use tollgate::changes::Changes;
use tollgate::fingerprint::Secret;
use tollgate::{Engine, EngineSetup, Hit, Limiter, Policy, Time};

const NOW: Time = Time::from_secs(1_800_000_000);
const MANY: usize = 1_000_000;
/// From one key to the next, far away.
const STRIDE: usize = 7919;

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
        "engine-1-rule" => engine(decisions, Changes::Ignored),
        "engine-recorded" => engine(decisions, Changes::Recorded),
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
    const BATCH: usize = 16;
    let (limiter, keys) = filled();
    measured(decisions / BATCH, |n| {
        let batch: [&str; BATCH] = std::array::from_fn(|m| keys[(n * BATCH + m) * STRIDE % MANY].as_str());
        limiter.check_batch_at(black_box(&batch), NOW, |answer| assert!(answer.is_allowed()));
    });
}

fn engine(decisions: usize, changes: Changes) {
    let yaml = "rules: [{id: each, key: user, limit: 1000000000/d}]";
    let policy = Policy::from_yaml(yaml).expect("the rules are valid");
    let setup = EngineSetup { secret: Secret::from_bytes([7; 16]), changes, ..EngineSetup::default() };
    let engine = Engine::with_setup(policy, setup);
    measured(decisions, |_| assert!(engine.check(black_box(&Hit::by("user:123456")), NOW).allowed));
}
