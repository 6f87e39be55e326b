//! The progress of a ramp: a state machine without a clock of its own. The row of the database has it as JSON.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate::Time;

use crate::ramp::guard::StepTime;
use crate::ramp::{RampCounts, RampGuard};

/// The percentages of the steps, each of which lasts an equal part of the whole time.
pub const STEPS: [u8; 5] = [1, 5, 25, 50, 100];
pub const MIN_DURATION: Duration = Duration::from_secs(5);
pub const MAX_DURATION: Duration = Duration::from_secs(7 * 86_400);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RampPhase {
    Running,
    /// The rules are enforced as written.
    Finished,
    /// The apply was reverted.
    RolledBack,
}

impl RampPhase {
    pub const fn name(self) -> &'static str {
        match self {
            RampPhase::Running => "running",
            RampPhase::Finished => "finished",
            RampPhase::RolledBack => "rolled back",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RampProgress {
    guard: String,
    duration_ns: u64,
    pub who: String,
    pub rules: Vec<String>,
    started_at_ns: u64,
    step: usize,
    step_at_ns: u64,
    /// The counts of all nodes at the start of the step.
    base: RampCounts,
    pub phase: RampPhase,
    /// Why it has ended.
    pub reason: Option<String>,
}

/// What the node that runs a ramp does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RampAction {
    Wait,
    /// Enforce the next percentage.
    Advance(RampProgress),
    Finish,
    /// Revert the apply, because the guard is violated.
    RollBack(String),
}

impl RampProgress {
    pub fn start(
        guard: &RampGuard,
        duration: Duration,
        who: &str,
        rules: Vec<String>,
        now: Time,
    ) -> RampProgress {
        RampProgress {
            guard: guard.to_string(),
            duration_ns: u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX),
            who: who.to_owned(),
            rules,
            started_at_ns: now.nanos(),
            step: 0,
            step_at_ns: now.nanos(),
            base: RampCounts::default(),
            phase: RampPhase::Running,
            reason: None,
        }
    }

    pub fn check_duration(duration: Duration) -> Result<Duration, String> {
        match (MIN_DURATION..=MAX_DURATION).contains(&duration) {
            true => Ok(duration),
            false => Err("a ramp lasts from 5s to 7d".to_owned()),
        }
    }

    pub fn parse(text: &str) -> Option<RampProgress> {
        serde_json::from_str(text).ok().filter(|progress: &RampProgress| progress.step < STEPS.len())
    }

    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("plain fields")
    }

    pub fn guard(&self) -> Result<RampGuard, String> {
        RampGuard::parse(&self.guard)
    }

    pub fn percent(&self) -> u8 {
        STEPS[self.step]
    }

    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.duration_ns)
    }

    pub fn started_at(&self) -> Time {
        Time::from_nanos(self.started_at_ns)
    }

    /// When the step has lasted its time.
    pub fn step_ends_at(&self) -> Time {
        Time::from_nanos(self.step_at_ns) + self.duration() / STEPS.len() as u32
    }

    /// The counts of the current step, of those since the ramp began.
    pub fn in_step(&self, totals: &RampCounts) -> RampCounts {
        RampCounts {
            decided: totals.decided.saturating_sub(self.base.decided),
            denied: totals.denied.saturating_sub(self.base.denied),
            clients: totals.clients,
        }
    }

    /// What to do at `now`. A delay makes the ramp longer; no step is skipped or shortened.
    pub fn next_action(&self, now: Time, totals: &RampCounts) -> RampAction {
        let time = if now >= self.step_ends_at() { StepTime::Over } else { StepTime::Running };
        let guard = match self.guard() {
            Ok(guard) => guard,
            Err(why) => return RampAction::RollBack(why),
        };
        if let Some(why) = guard.violation(&self.in_step(totals), time) {
            return RampAction::RollBack(format!("at {} %: {why}", self.percent()));
        }
        match (time, self.step + 1 < STEPS.len()) {
            (StepTime::Running, _) => RampAction::Wait,
            (StepTime::Over, false) => RampAction::Finish,
            (StepTime::Over, true) => {
                let step_at_ns = now.nanos();
                RampAction::Advance(RampProgress {
                    step: self.step + 1,
                    step_at_ns,
                    base: *totals,
                    ..self.clone()
                })
            }
        }
    }

    pub fn ended(&self, phase: RampPhase, reason: String) -> RampProgress {
        RampProgress { phase, reason: Some(reason), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: Time = Time::from_secs(1_800_000_000);

    fn ramp(guard: &str, seconds: u64) -> RampProgress {
        let guard = RampGuard::parse(guard).expect("a guard");
        RampProgress::start(&guard, Duration::from_secs(seconds), "ann", vec!["a".to_owned()], START)
    }

    fn counts(decided: u64, denied: u64) -> RampCounts {
        RampCounts { decided, denied, clients: 0 }
    }

    #[test]
    fn each_step_lasts_a_fifth_and_counts_from_its_start() {
        let first = ramp("denied<1%", 100);
        let at = |second: u64| START + Duration::from_secs(second);
        assert_eq!(first.next_action(at(19), &counts(900, 5)), RampAction::Wait);
        let RampAction::Advance(second) = first.next_action(at(20), &counts(1_000, 5)) else {
            panic!("the first step is over")
        };
        assert_eq!((first.percent(), second.percent()), (1, 5));
        assert_eq!(second.in_step(&counts(1_100, 7)), counts(100, 2));
        let RampAction::RollBack(why) = second.next_action(at(21), &counts(1_100, 7)) else {
            panic!("2 % of the step are denied")
        };
        assert_eq!(why, "at 5 %: 2 % denied (2 of 100 decisions), and the guard is denied<1%");
    }

    #[test]
    fn a_state_is_read_as_it_is_written() {
        let state = ramp("denied<1%,clients<7", 60).ended(RampPhase::RolledBack, "too many".to_owned());
        assert_eq!(RampProgress::parse(&state.to_text()), Some(state));
        assert_eq!(RampProgress::parse("{}"), None);
    }

    proptest! {
        /// Whatever the delays of the node that runs it: steps in order, none shorter than its part, nothing skipped.
        #[test]
        fn a_ramp_whose_guard_holds_takes_every_step(
            seconds in 5u64..100_000,
            delays in prop::collection::vec(0u64..400_000, 1..400),
        ) {
            let mut state = ramp("denied<1%", seconds);
            let mut now = START;
            let mut percents = vec![state.percent()];
            let mut step_began = START;
            let part = Duration::from_secs(seconds) / STEPS.len() as u32;
            let mut decided = 0;
            for delay in delays {
                now = now + Duration::from_millis(delay);
                decided += 1_000;
                match state.next_action(now, &counts(decided, decided / 1_000)) {
                    RampAction::Wait => prop_assert!(now.since(step_began) < part),
                    RampAction::Advance(next) => {
                        prop_assert!(now.since(step_began) >= part);
                        step_began = now;
                        percents.push(next.percent());
                        state = next;
                    }
                    RampAction::Finish => {
                        prop_assert_eq!(&percents[..], &STEPS[..]);
                        prop_assert!(now.since(START) >= part * STEPS.len() as u32);
                        break;
                    }
                    RampAction::RollBack(why) => prop_assert!(false, "{}", why),
                }
            }
            prop_assert!(STEPS.starts_with(&percents));
        }

        /// A violation ends the ramp in any step, also at the moment at which the step is over.
        #[test]
        fn a_violated_guard_never_advances(step in 0..STEPS.len(), late in 0u64..1_000, denied in 10u64..1_000) {
            let state = RampProgress { step, ..ramp("denied<1%", 100) };
            let now = START + Duration::from_secs(late);
            let is_rolled_back =
                matches!(state.next_action(now, &counts(1_000, denied)), RampAction::RollBack(_));
            prop_assert!(is_rolled_back);
        }
    }
}
