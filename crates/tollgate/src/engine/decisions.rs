//! Ids of verdicts and decisions by reason, striped: nothing here is written by all threads.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::stripes::{self, Striped};
use crate::verdict::{EngineVerdict, Reason, VerdictId};

pub(super) struct Decisions {
    node: u32,
    stripes: Striped<StripeCounts>,
}

#[derive(Default)]
struct StripeCounts {
    last: AtomicU64,
    by_reason: [AtomicU64; Reason::ALL.len()],
}

impl Decisions {
    pub(super) fn new(node: u32) -> Decisions {
        Decisions { node, stripes: Striped::default() }
    }

    pub(super) fn node(&self) -> u32 {
        self.node
    }

    #[inline]
    pub(super) fn next_id(&self, generation: u64) -> VerdictId {
        let stripe = stripes::current();
        let number = self.stripes.get(stripe).last.fetch_add(1, Ordering::Relaxed) + 1;
        VerdictId::new(self.node, generation, stripe, number)
    }

    #[inline]
    pub(super) fn count(&self, verdict: &EngineVerdict) {
        let counts = self.stripes.get(verdict.id.stripe());
        counts.by_reason[verdict.reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn of(&self, reason: Reason) -> u64 {
        self.stripes.iter().map(|stripe| stripe.by_reason[reason as usize].load(Ordering::Relaxed)).sum()
    }
}
