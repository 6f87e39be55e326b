//! The statistics of a rule: admissions, denials, and its tracked keys.
//!
//! They outlive edits of the rule: each generation passes them to the next by the rule's id.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::track::RuleTracks;

#[derive(Default)]
pub struct RuleStats {
    allowed: AtomicU64,
    denied: AtomicU64,
    shadow_denied: AtomicU64,
    banned: AtomicU64,
    pub(crate) tracks: RuleTracks,
}

/// A copy of the counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RuleCounts {
    pub allowed: u64,
    pub denied: u64,
    /// Denials by the rule in shadow mode: no request was denied by them.
    pub shadow_denied: u64,
    /// Bans that the rule has caused.
    pub banned: u64,
}

impl RuleStats {
    pub fn counts(&self) -> RuleCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RuleCounts {
            allowed: read(&self.allowed),
            denied: read(&self.denied),
            shadow_denied: read(&self.shadow_denied),
            banned: read(&self.banned),
        }
    }

    pub(crate) fn count_allowed(&self) {
        self.allowed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_denied(&self) {
        self.denied.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_shadow_denied(&self) {
        self.shadow_denied.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_banned(&self) {
        self.banned.fetch_add(1, Ordering::Relaxed);
    }
}
