//! What this node has counted of the rules of a ramp, from their statistics.

use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use tollgate::internal::rule_stats::RuleCounts;

use crate::gate::Gate;
use crate::insight::SeriesName;
use crate::ramp::RampInForce;

/// Decisions by the ramped rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RampCounts {
    pub decided: u64,
    /// Denied, or denied if the key were in the share that is enforced.
    pub denied: u64,
    /// An estimate of the clients that are limited.
    pub clients: u64,
}

impl RampCounts {
    pub fn add(&mut self, other: &RampCounts) {
        self.decided = self.decided.saturating_add(other.decided);
        self.denied = self.denied.saturating_add(other.denied);
        self.clients = self.clients.saturating_add(other.clients);
    }

    pub fn denied_percent(&self) -> f64 {
        if self.decided == 0 { 0.0 } else { 100.0 * self.denied as f64 / self.decided as f64 }
    }
}

impl fmt::Display for RampCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.decided == 0 {
            return f.write_str("nothing was measured (0 decisions)");
        }
        let percent = (self.denied_percent() * 100.0).round() / 100.0;
        write!(f, "{percent} % denied ({} of {} decisions)", self.denied, self.decided)
    }
}

/// Counts of one ramp since this node first saw it.
#[derive(Default)]
pub struct RampMeter {
    ramp: String,
    last: HashMap<String, RuleCounts>,
    total: RampCounts,
}

impl RampMeter {
    /// Adds what was counted since the last call.
    pub fn update(&mut self, gate: &Gate, ramp: &RampInForce) -> RampCounts {
        if self.ramp != ramp.setting.id {
            *self = RampMeter { ramp: ramp.setting.id.clone(), ..RampMeter::default() };
        }
        let policy = gate.engine.policy();
        self.total.clients = 0;
        for rule in ramp.rules() {
            let Some(id) = rule.counted_id() else { continue };
            if let Some(in_force) = policy.rule(&id) {
                let now = in_force.counts();
                // A rule that was in shadow before has counts from then.
                let first = if rule.is_new_to_statistics() { RuleCounts::default() } else { now };
                let before = self.last.insert(id.clone(), now).unwrap_or(first);
                self.add(before, now);
            }
            if let Some(insight) = gate.insight.get() {
                let data = insight.data();
                let clients = data.series(SeriesName::Rule(&id)).map_or(0, |series| series.clients_limited());
                self.total.clients += clients;
            }
        }
        self.total
    }

    fn add(&mut self, before: RuleCounts, now: RuleCounts) {
        // Statistics that started again count from zero.
        let since = |before: u64, now: u64| now.checked_sub(before).unwrap_or(now);
        let denied = since(before.denied, now.denied) + since(before.shadow_denied, now.shadow_denied);
        self.total.decided += since(before.allowed, now.allowed) + denied;
        self.total.denied += denied;
    }
}
