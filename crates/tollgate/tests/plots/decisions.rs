//! Decisions of an engine on requests at given times.

use std::time::Duration;

use tollgate::{Clock, Engine, Hit, Policy, Time};

/// A whole number of minutes since 1970, so that windows of a minute begin here.
const START_SECONDS: u64 = 1_800_000_000;

pub struct Decision {
    /// When the request came, in milliseconds since the start.
    pub at_ms: u64,
    /// When it may go on; `None` if it was denied.
    pub released_ms: Option<u64>,
}

impl Decision {
    pub fn is_held(&self) -> bool {
        self.released_ms.is_some_and(|released| released > self.at_ms)
    }
}

/// Decides requests of one client at times that only increase.
pub fn decide(options: &str, times_ms: &[u64]) -> Vec<Decision> {
    let rules = format!("rules: [{{id: plot, key: user, {options}}}]");
    let policy = Policy::from_yaml(&rules).expect("the rule of a plot is valid");
    let clock = Clock::manual(Time::from_secs(START_SECONDS));
    let engine = Engine::builder().clock(clock).build(policy).expect("the rule fits into memory");
    let mut now_ms = 0;
    let decide_at = |at_ms: &u64| {
        engine.clock().advance(Duration::from_millis(at_ms - now_ms));
        now_ms = *at_ms;
        let verdict = engine.check(&Hit::by("ann"));
        let delay_ms = u64::try_from(verdict.delay().as_millis()).expect("a delay is short");
        Decision { at_ms: *at_ms, released_ms: verdict.is_allowed().then_some(at_ms + delay_ms) }
    };
    times_ms.iter().map(decide_at).collect()
}
