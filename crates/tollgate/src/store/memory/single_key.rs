//! Operations on one key: a charge of a quota that the caller brings along, and a reset.

use crate::algorithm::Quota;
use crate::fingerprint::Fingerprint;
use crate::store::memory::packed::{ChargeOp, ChargeOpKind};
use crate::store::memory::{MemoryStore, PolicyCheck, shard_of};
use crate::store::{ChargeRef, LimitOutcome, Predecessor};
use crate::time::Time;

impl MemoryStore {
    /// Decides a cost of one key, and charges it if it is allowed; a cost of zero charges nothing.
    #[inline]
    pub(crate) fn charge_one(
        &self,
        fingerprint: Fingerprint,
        quota: &Quota,
        cost: u64,
        now: Time,
    ) -> LimitOutcome {
        if cost == 0 {
            return self.peek_one(&ChargeRef::enforced(fingerprint, quota, cost), now);
        }
        let op = ChargeOp { quota, cost, kind: ChargeOpKind::Charge, now };
        self.run_key(fingerprint, &op, &[], &PolicyCheck::always()).expect("the limit is always in force")
    }

    /// `None` if the key is new and its limit is no longer in force.
    pub(super) fn run_key(
        &self,
        fingerprint: Fingerprint,
        op: &ChargeOp<'_>,
        predecessors: &[Predecessor],
        policy_check: &PolicyCheck<'_>,
    ) -> Option<LimitOutcome> {
        self.run_candidates(self.candidates(fingerprint), op, predecessors, policy_check)
    }

    /// Removes a key; returns whether it was stored.
    pub fn reset(&self, fingerprint: Fingerprint) -> bool {
        let n = shard_of(fingerprint);
        let mut inner = self.lock(n);
        let existed = inner.remove(&self.shard_context(n, Time::EPOCH), fingerprint);
        self.region.note_removed(fingerprint);
        existed
    }
}
