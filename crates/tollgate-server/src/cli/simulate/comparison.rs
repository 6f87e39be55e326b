//! What changes against another configuration.

use tollgate::{Hit, Time};

use super::denied_keys::DeniedKeys;
use super::replay::{SimulatedDenial, Simulation};

pub struct Comparison {
    pub old: Simulation,
    /// Requests that only the new configuration denies.
    pub newly_denied: u64,
    /// Requests that only the old configuration denies.
    pub newly_allowed: u64,
    /// The keys of requests that are newly denied, by the rule that denies them.
    pub keys: DeniedKeys,
    key_text: String,
}

impl Comparison {
    pub fn new(old: Simulation) -> Comparison {
        Comparison {
            old,
            newly_denied: 0,
            newly_allowed: 0,
            keys: DeniedKeys::default(),
            key_text: String::new(),
        }
    }

    /// Decides a request under the old configuration; `new` is the denial by the new one.
    pub fn decide(
        &mut self,
        hit: &Hit<'_>,
        at: Time,
        status: Option<u16>,
        new: Option<&SimulatedDenial<'_>>,
    ) {
        match (self.old.decide(hit, at, status), new) {
            (None, Some(denial)) => {
                self.newly_denied += 1;
                self.keys.add(denial.rule(), &denial.key(hit), &mut self.key_text);
            }
            (Some(_), None) => self.newly_allowed += 1,
            _ => {}
        }
    }
}
