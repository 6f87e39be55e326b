//! Charges when the store is full: states that cannot grow, and new keys without room.

use std::sync::atomic::Ordering;

use crate::algorithm::{Admission, Algorithm as _, Decision, Grant, Quota, QuotaState};
use crate::fingerprint::Fingerprint;
use crate::store::memory::packed::ChargeOp;
use crate::store::memory::shard::{PressureCounts, ReplaceResult, ShardContext, ShardInner};
use crate::store::memory::slab::ChangedEntry;
use crate::store::memory::slab_eviction::Growth;
use crate::store::memory::slot::{Slot, SlotValue};
use crate::store::memory::table::class_number;
use crate::store::memory::{MemoryFull, MemoryStore, ShardGuards, shard_of};
use crate::store::{LimitOutcome, Predecessor};
use crate::time::Time;

impl MemoryStore {
    /// Decides a charge that the limit allows for a key that found no room.
    pub(super) fn charge_without_entry(
        &self,
        inner: &mut ShardInner,
        outcome: LimitOutcome,
        op: &ChargeOp<'_>,
    ) -> LimitOutcome {
        if self.full != MemoryFull::Aggregate {
            self.note_unlimited(op.now);
        }
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

    /// Runs an operation on `inherited`, the state of a replaced limit, which the caller has removed; stores the result
    /// under the new limit. If that finds no room, a charge that the new limit allows is decided by the replaced one, and
    /// its state is stored again, in the room that it had.
    pub(super) fn run_inherited(
        &self,
        locked: &mut ShardGuards<'_>,
        fingerprint: Fingerprint,
        predecessor: &Predecessor,
        inherited: QuotaState,
        op: &ChargeOp<'_>,
    ) -> LimitOutcome {
        let mut insert = |fingerprint: Fingerprint, quota: &Quota, state: QuotaState| {
            let n = shard_of(fingerprint);
            let pressure = locked.inner(n).insert(&self.shard_context(n, op.now), fingerprint, quota, state);
            self.count_pressure(&pressure);
            pressure.unstored == 0
        };
        let mut state = op.quota.adopt(&predecessor.quota, inherited.clone(), op.now);
        let outcome = op.run_state(&mut state);
        // The usual case: the converted state is stored under the new limit.
        if insert(fingerprint, op.quota, state) {
            return outcome;
        }
        // No room there, but the new limit allows the charge: it is made under the replaced limit, which may deny it.
        let mut charged = inherited.clone();
        if outcome.grant.is_some() {
            let old_outcome = ChargeOp { quota: &predecessor.quota, ..*op }.run_state(&mut charged);
            if insert(predecessor.fingerprint, &predecessor.quota, charged) {
                return old_outcome;
            }
        }
        // Nothing is charged: the state goes back as it was taken.
        insert(predecessor.fingerprint, &predecessor.quota, inherited);
        if outcome.grant.is_none() {
            return outcome;
        }
        self.denied_full.fetch_add(1, Ordering::Relaxed);
        no_room(op.now + MemoryFull::CLOSED_RETRY, op.now)
    }

    /// The outcome that [`charge_without_entry`](Self::charge_without_entry) would return.
    pub(super) fn peek_without_entry(
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

    /// Runs an operation on the wide state at an index of shard `n`.
    #[inline(always)]
    pub(super) fn run_wide(
        &self,
        inner: &mut ShardInner,
        n: usize,
        index: u64,
        op: &ChargeOp<'_>,
    ) -> LimitOutcome {
        let changed = inner.slab.run(index, op).expect("a wide slot has its state in the slab");
        if changed.has_grown || inner.slab.may_have_expired(op.now) {
            return self.finish_wide(inner, n, index, op, &changed);
        }
        changed.result
    }

    /// Drops expired entries. A state that has grown and finds no room is left unchanged, and denies.
    #[inline(never)]
    fn finish_wide(
        &self,
        inner: &mut ShardInner,
        n: usize,
        index: u64,
        op: &ChargeOp<'_>,
        ChangedEntry { result, has_grown }: &ChangedEntry<LimitOutcome>,
    ) -> LimitOutcome {
        let shard = &self.shard_context(n, op.now);
        let mut pressure = PressureCounts::default();
        let growth = inner.after_change(shard, index, op.quota, *has_grown, &mut pressure);
        self.count_pressure(&pressure);
        if growth == Growth::Fits {
            return *result;
        }
        let Some(grant) = result.grant else {
            inner.merge_steps(shard, index, op.quota); // a denial that counts
            return *result;
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
