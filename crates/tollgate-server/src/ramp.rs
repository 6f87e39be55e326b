//! Guarded apply: changed rules are enforced for a growing share of their keys while a condition holds.
//!
//! The apply is one change set of the rules database. It includes the setting `ramp`, which lists the changed rules;
//! nodes enforce them for the share that the setting has ([`setting`]), and each step changes only the setting. One
//! node at a time runs the ramp, by a lease in the database ([`run`]); every node publishes its counts there
//! ([`meter`]). When to take the next step is a pure function ([`progress`]).

mod guard;
mod in_force;
mod meter;
mod progress;
mod run;
mod setting;

pub use guard::RampGuard;
pub use in_force::RampInForce;
pub use meter::RampCounts;
pub use progress::{RampPhase, RampProgress, STEPS};
pub use run::{LEASE, end, node_name, run, totals};
pub use setting::{MAX_RAMPED_RULES, RampSetting, RampedRule};

/// The author of the steps of a ramp.
pub const AUTHOR: &str = "guarded apply";
