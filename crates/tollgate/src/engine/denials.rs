//! Denials that are still fresh: whoever asks again at once is told so without asking the store.
//!
//! A denial is remembered for a second at the most, for costs as large as the one that was denied, and only
//! while the same rules are in force. Limits whose charges may come back are never remembered.

use std::time::Duration;

use crate::algorithm::{Admission, Decision};
use crate::limit::Shape;
use crate::plan::Plan;
use crate::policy::Policy;
use crate::rule::Rule;
use crate::store::central::{CentralOutcome, StoreError};
use crate::store::{Charge, DeniedHits, Part, Weight};
use crate::sync::{Mutex, lock};
use crate::table::Table;
use crate::time::Time;

const LONGEST: Duration = Duration::from_secs(1);
/// Keys remembered; the number of parts is a power of two.
const PARTS: usize = 16;
const KEYS_PER_PART: usize = 4_096;

#[derive(Clone, Copy, Default)]
struct Denial {
    cost: u64,
    left: u64,
    until: Time,
    passes_at: Time,
    fresh_at: Time,
    generation: u64,
}

pub(super) struct Denials(Vec<Mutex<Table<Denial>>>);

impl Default for Denials {
    fn default() -> Self {
        Denials((0..PARTS).map(|_| Mutex::new(Table::new(KEYS_PER_PART))).collect())
    }
}

impl Denials {
    /// What the store would say, if a limit is known to deny.
    pub(super) fn find(&self, policy: &Policy, plan: &Plan<'_>, now: Time) -> Option<CentralOutcome> {
        if !policy.settings().store.deny_cache {
            return None;
        }
        let known = plan.charged().map(|(rule, limit, charge)| {
            let kept = is_kept(rule, limit.limit.shape(), charge);
            kept.then(|| self.get(charge, policy.generation(), now)).flatten()
        });
        let known: Vec<Option<Part>> = known.collect();
        known.iter().any(Option::is_some).then(|| {
            let unasked =
                || StoreError::Unreachable { server: String::new(), reason: "not asked".to_owned() };
            let parts = known.into_iter().map(|part| part.ok_or_else(unasked)).collect();
            CentralOutcome { admitted: false, parts, receipt: None }
        })
    }

    /// Remembers what was denied.
    pub(super) fn learn(&self, policy: &Policy, plan: &Plan<'_>, outcome: &CentralOutcome, now: Time) {
        if !policy.settings().store.deny_cache {
            return;
        }
        for ((rule, limit, charge), part) in plan.charged().zip(&outcome.parts) {
            if let Ok(part) = part
                && let Admission::Deny { retry_after } = part.decision.admission
                && is_kept(rule, limit.limit.shape(), charge)
            {
                let denial = Denial {
                    cost: charge.cost,
                    left: part.decision.left,
                    until: now + retry_after.min(LONGEST),
                    passes_at: now + retry_after,
                    fresh_at: now + part.reset_after,
                    generation: policy.generation(),
                };
                *lock(self.part(charge)).touch(charge.fingerprint, now) = denial;
            }
        }
    }

    pub(super) fn clear(&self) {
        self.0.iter().for_each(|part| *lock(part) = Table::new(KEYS_PER_PART));
    }

    fn get(&self, charge: &Charge, generation: u64, now: Time) -> Option<Part> {
        let denial = *lock(self.part(charge)).get(charge.fingerprint)?;
        let holds = now < denial.until && charge.cost >= denial.cost && denial.generation == generation;
        let admission = Admission::Deny { retry_after: denial.passes_at.since(now) };
        holds.then(|| Part {
            decision: Decision { admission, left: denial.left },
            remaining: denial.left,
            reset_after: denial.fresh_at.since(now),
            grant: None,
        })
    }

    fn part(&self, charge: &Charge) -> &Mutex<Table<Denial>> {
        &self.0[charge.fingerprint.0 as usize % PARTS]
    }
}

/// Whether a denial of this charge can be relied on for a moment.
fn is_kept(rule: &Rule, shape: Shape, charge: &Charge) -> bool {
    charge.weight == Weight::Enforced
        && charge.denied == DeniedHits::Free
        && shape != Shape::Concurrency
        && !rule.settles_later()
}
