//! The condition of a guarded apply: `denied<1%`, `clients<100`, or several of them, separated by commas.

use std::fmt;

use crate::ramp::RampCounts;

/// Conditions of one guard.
const MAX_CONDITIONS: usize = 4;
/// During a step a share of fewer decisions means nothing; at its end any number counts.
pub const MIN_DECIDED: u64 = 100;
/// Shares are compared in parts of a million.
const MILLION: u64 = 1_000_000;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RampGuard {
    text: String,
    conditions: Vec<GuardCondition>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GuardCondition {
    /// Denied decisions of all decisions stay below this share.
    DeniedShare { millionths: u64 },
    /// Limited clients stay below this number.
    Clients { below: u64 },
}

/// Whether a step is under way or has lasted its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepTime {
    Running,
    Over,
}

impl RampGuard {
    pub fn parse(text: &str) -> Result<RampGuard, String> {
        let conditions: Vec<_> =
            text.split(',').map(|part| condition(part.trim())).collect::<Result<_, _>>()?;
        if conditions.len() > MAX_CONDITIONS {
            return Err(format!("'{text}' has more than {MAX_CONDITIONS} conditions"));
        }
        Ok(RampGuard { text: text.trim().to_owned(), conditions })
    }

    /// Why the counts of a step violate the guard.
    pub fn violation(&self, counts: &RampCounts, time: StepTime) -> Option<String> {
        let RampCounts { decided, denied, clients } = *counts;
        self.conditions.iter().find_map(|condition| match condition {
            GuardCondition::DeniedShare { millionths } => {
                let is_significant = decided >= MIN_DECIDED || time == StepTime::Over;
                let reached =
                    u128::from(denied) * u128::from(MILLION) >= u128::from(decided) * u128::from(*millionths);
                let violated = is_significant && decided > 0 && denied > 0 && reached;
                violated.then(|| format!("{counts}, and the guard is {self}"))
            }
            GuardCondition::Clients { below } => {
                (clients >= *below).then(|| format!("{clients} clients limited, and the guard is {self}"))
            }
        })
    }
}

impl fmt::Display for RampGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn condition(text: &str) -> Result<GuardCondition, String> {
    let wrong = |why: &str| format!("'{text}' is not a valid guard: {why}; write denied<1% or clients<100");
    let (name, value) = text.split_once('<').ok_or_else(|| wrong("it has no '<'"))?;
    let value = value.trim();
    match name.trim() {
        "denied" => {
            let percent = value.strip_suffix('%').ok_or_else(|| wrong("denied is a share, such as 1%"))?;
            let millionths = millionths(percent.trim()).filter(|share| (1..=MILLION).contains(share));
            let millionths =
                millionths.ok_or_else(|| wrong("the share is not a number from 0.0001% to 100%"))?;
            Ok(GuardCondition::DeniedShare { millionths })
        }
        "clients" => {
            let below = value.parse().ok().filter(|below| *below > 0);
            Ok(GuardCondition::Clients {
                below: below.ok_or_else(|| wrong("clients is a whole number above 0"))?,
            })
        }
        _ => Err(wrong("it compares neither denied nor clients")),
    }
}

/// `0.25` per cent as 2500 millionths; at most four digits after the point.
fn millionths(percent: &str) -> Option<u64> {
    let (whole, fraction) = percent.split_once('.').unwrap_or((percent, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || whole.len() > 3 || fraction.len() > 4 {
        return None;
    }
    let fraction: u64 = format!("{fraction:0<4}").parse().ok()?;
    Some(whole.parse::<u64>().ok()? * 10_000 + fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(guard: &str, decided: u64, denied: u64, clients: u64, time: StepTime) -> Option<String> {
        RampGuard::parse(guard).expect("valid").violation(&RampCounts { decided, denied, clients }, time)
    }

    #[test]
    fn a_share_is_compared_exactly() {
        for (guard, decided, denied, violated) in [
            ("denied<1%", 1_000, 9, false),
            ("denied<1%", 1_000, 10, true),
            ("denied < 0.25%", 10_000, 24, false),
            ("denied<0.25%", 10_000, 25, true),
            ("denied<100%", 200, 200, true),
            ("denied<0.0001%", u64::MAX / 2, 1, false),
        ] {
            let found = check(guard, decided, denied, 0, StepTime::Running);
            assert_eq!(found.is_some(), violated, "{guard} {denied} of {decided}: {found:?}");
        }
        let why = check("denied<1%", 1_000, 42, 0, StepTime::Running).expect("violated");
        assert_eq!(why, "4.2 % denied (42 of 1000 decisions), and the guard is denied<1%");
    }

    #[test]
    fn few_decisions_are_judged_only_at_the_end_of_a_step() {
        assert_eq!(check("denied<1%", MIN_DECIDED - 1, 5, 0, StepTime::Running), None);
        assert!(check("denied<1%", MIN_DECIDED, 5, 0, StepTime::Running).is_some());
        assert!(check("denied<1%", 1, 1, 0, StepTime::Over).is_some());
        assert_eq!(check("denied<1%", 0, 0, 0, StepTime::Over), None, "no traffic is no violation");
    }

    #[test]
    fn each_of_several_conditions_must_hold() {
        let guard = "denied<5%, clients<3";
        assert_eq!(check(guard, 1_000, 10, 2, StepTime::Over), None);
        assert!(
            check(guard, 1_000, 10, 3, StepTime::Running).is_some_and(|why| why.starts_with("3 clients"))
        );
        assert!(check(guard, 1_000, 90, 0, StepTime::Running).is_some());
    }

    #[test]
    fn a_wrong_guard_is_named_with_the_way_out() {
        for wrong in [
            "",
            "denied",
            "denied<1",
            "denied<0%",
            "denied<101%",
            "denied<1.23456%",
            "clients<0",
            "clients<1%",
            "p99<5",
            "denied>1%",
            "denied<-1%",
            "denied<1%,",
            "denied<9999999999999%",
        ] {
            let error = RampGuard::parse(wrong).expect_err(wrong);
            assert!(error.contains("write denied<1% or clients<100"), "{error}");
        }
        assert!(RampGuard::parse("clients<1,clients<1,clients<1,clients<1,clients<1").is_err());
    }
}
