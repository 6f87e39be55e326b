//! Charges when the store is full: states that cannot grow, and new keys without room.

use std::sync::atomic::Ordering;

use crate::algorithm::{Admission, Algorithm as _, Decision, Grant};
use crate::fingerprint::Fingerprint;
use crate::store::LimitOutcome;
use crate::store::memory::packed::ChargeOp;
use crate::store::memory::shard::{PressureCounts, ReplaceResult, ShardContext, ShardInner};
use crate::store::memory::slab_eviction::Growth;
use crate::store::memory::slot::{Slot, SlotValue};
use crate::store::memory::table::class_number;
use crate::store::memory::{MemoryFull, MemoryStore};
use crate::time::Time;

impl MemoryStore {
    /// Decides a charge that the limit allows for a key that found no room.
    pub(super) fn run_unstored(
        &self,
        inner: &mut ShardInner,
        outcome: LimitOutcome,
        op: &ChargeOp<'_>,
    ) -> LimitOutcome {
        let charged = match self.full {
            MemoryFull::Open => return outcome,
            MemoryFull::Aggregate => inner.aggregate.charge(op.quota, op.cost, op.now),
            MemoryFull::Closed => Err(MemoryFull::CLOSED_RETRY),
        };
        match charged {
            Ok((left, mark)) => {
                let grant = outcome.grant.map(|grant| Grant { mark, ..grant });
                LimitOutcome { remaining: left.min(outcome.remaining), grant, ..outcome }
            }
            Err(wait) => {
                self.denied_full.fetch_add(1, Ordering::Relaxed);
                no_room(op.now + wait, op.now)
            }
        }
    }

    /// The outcome that [`run_unstored`](Self::run_unstored) would return.
    pub(super) fn peek_unstored(
        &self,
        inner: &ShardInner,
        outcome: LimitOutcome,
        op: &ChargeOp<'_>,
    ) -> LimitOutcome {
        let left = match self.full {
            MemoryFull::Open => return outcome,
            MemoryFull::Aggregate => inner.aggregate.peek(op.quota, op.cost, op.now),
            MemoryFull::Closed => Err(MemoryFull::CLOSED_RETRY),
        };
        match left {
            Ok(left) => LimitOutcome { remaining: left.min(outcome.remaining), ..outcome },
            Err(wait) => no_room(op.now + wait, op.now),
        }
    }

    /// Runs a quota on a packed state and stores the result in another form; `None` if the slot was changed
    /// concurrently. A state that finds no room in the slab is left unchanged and denies.
    pub(super) fn run_replaced(
        &self,
        inner: &mut ShardInner,
        shard: &ShardContext<'_>,
        (slot, loaded): (&Slot, SlotValue),
        fingerprint: Fingerprint,
        op: &ChargeOp<'_>,
    ) -> Option<LimitOutcome> {
        let (tag, word) = loaded.entry();
        let class = self.classes.get(class_number(tag))?;
        let mut state = class.encoding.layout().unpack(word);
        let outcome = op.run_state(&mut state);
        let mut pressure = PressureCounts::default();
        let replaced = inner.replace(shard, (slot, loaded), fingerprint, op.quota, state, &mut pressure);
        self.count_pressure(&pressure);
        match replaced {
            ReplaceResult::Done => Some(outcome),
            ReplaceResult::Raced => None,
            ReplaceResult::NoRoom if outcome.grant.is_some() => {
                Some(no_room(class.encoding.expires_at(word), op.now))
            }
            ReplaceResult::NoRoom => Some(outcome),
        }
    }

    pub(super) fn run_wide(
        &self,
        inner: &mut ShardInner,
        shard: &ShardContext<'_>,
        index: u64,
        op: &ChargeOp<'_>,
    ) -> LimitOutcome {
        let changed = inner.change_wide(shard, index, op.quota, |state| op.run_state(state));
        let (outcome, growth, pressure) = changed.expect("a wide slot has its state in the slab");
        self.count_pressure(&pressure);
        if growth == Growth::Fits {
            return outcome;
        }
        let Some(grant) = outcome.grant else {
            inner.merge_steps(shard, index, op.quota); // a denial that counts
            return outcome;
        };
        let reverted = inner.change_wide(shard, index, op.quota, |state| {
            op.quota.refund(state, &grant, grant.cost, op.now);
            state.shrink();
            op.quota.expires_at(state)
        });
        let (expires_at, ..) = reverted.expect("the state is still there");
        no_room(expires_at, op.now)
    }
}

/// The denial of a charge that the limit allows but whose state has no room to grow.
fn no_room(expires_at: Time, now: Time) -> LimitOutcome {
    let wait = expires_at.since(now);
    let decision = Decision { admission: Admission::Deny { retry_after: wait }, left: 0 };
    LimitOutcome { decision, remaining: 0, reset_after: wait, grant: None }
}
