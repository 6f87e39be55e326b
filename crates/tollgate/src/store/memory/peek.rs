//! The outcome that a charge would have, without making it.

use crate::algorithm::{Algorithm as _, QuotaState};
use crate::store::memory::packed::{ChargeOp, ChargeOpKind};
use crate::store::memory::shard::{ShardContext, ShardInner};
use crate::store::memory::table::{class_number, tag_matches};
use crate::store::memory::{MemoryStore, shard_of};
use crate::store::{Charge, ChargeItem, ChargeOutcome, ChargeRef, Enforcement, LimitOutcome};
use crate::time::Time;

/// A key that has no entry, in its shard.
struct NewKey<'s> {
    inner: &'s ShardInner,
    shard: ShardContext<'s>,
}

impl MemoryStore {
    /// Decides as [`charge`](Self::charge) would, and changes nothing.
    pub fn peek(&self, charges: &[Charge], now: Time) -> ChargeOutcome {
        ChargeOutcome::written_by(charges, |items| self.write_peek(items, now))
    }

    /// As [`peek`](Self::peek), where the charges are; returns whether the request would be admitted.
    pub(crate) fn write_peek<I: ChargeItem>(&self, items: &mut [I], now: Time) -> bool {
        let mut admitted = true;
        for item in items {
            self.peek_item(item, now);
            let is_allowed = item.outcome().decision.is_allowed();
            let is_enforced = item.charge().is_some_and(|charge| charge.enforcement == Enforcement::Enforced);
            admitted &= is_allowed || !is_enforced;
        }
        admitted
    }

    pub(super) fn peek_item(&self, item: &mut impl ChargeItem, now: Time) {
        if let Some(charge) = item.charge() {
            *item.outcome() = self.peek_one(&charge, now);
        }
    }

    /// The state that a charge would find.
    pub fn state_of(&self, charge: &Charge, now: Time) -> QuotaState {
        self.with_state(&ChargeRef::of(charge), now, |state, _| state.clone())
    }

    pub(super) fn peek_one(&self, charge: &ChargeRef<'_>, now: Time) -> LimitOutcome {
        let op = ChargeOp { quota: charge.quota, cost: charge.cost, kind: ChargeOpKind::Peek, now };
        self.run_packed(charge.fingerprint, &op).unwrap_or_else(|| {
            self.with_state(charge, now, |state, new| {
                let mut charged = state.clone();
                let limit = op.run_state(&mut charged);
                let Some(NewKey { inner, shard }) = new.filter(|_| limit.decision.is_allowed()) else {
                    return limit;
                };
                charge.quota.charge(&mut charged, now, charge.cost.max(1));
                match inner.has_room_for(&shard, charge.fingerprint, charge.quota, charged) {
                    true => limit,
                    false => self.peek_without_entry(inner, limit, &op),
                }
            })
        })
    }

    /// Calls `read` with the state that a charge would find, and with its shard if the key has no entry.
    fn with_state<T>(
        &self,
        charge: &ChargeRef<'_>,
        now: Time,
        read: impl FnOnce(&QuotaState, Option<NewKey<'_>>) -> T,
    ) -> T {
        let n = shard_of(charge.fingerprint);
        if let Some(slot) = self.find(charge.fingerprint) {
            let loaded = slot.load();
            let (tag, word) = loaded.entry();
            if tag_matches(tag, charge.fingerprint)
                && let Some(summary) = self.classes.summary(class_number(tag))
                && slot.confirm(loaded).is_ok()
            {
                return read(&summary.layout.unpack(word), None);
            }
        }
        let mut locked = self.lock_all(charge.fingerprint, charge.predecessors);
        if let Some(slot) = self.find(charge.fingerprint) {
            let entry = slot.load().entry();
            if let Some(wide) = locked.inner(n).wide(entry) {
                return read(&wide.state, None);
            }
            if let Some(class) = self.classes.get(class_number(entry.0)) {
                return read(&class.encoding.layout().unpack(entry.1), None);
            }
        }
        let inherited = charge.predecessors.iter().find_map(|predecessor| {
            let n = shard_of(predecessor.fingerprint);
            let state = locked.inner(n).state(&self.shard_context(n, now), predecessor.fingerprint)?;
            Some(charge.quota.adopt(&predecessor.quota, state, now))
        });
        let first = || locked.inner(n).evicted_fractions.first_state(charge.quota, now);
        let state = inherited.unwrap_or_else(first);
        read(&state, Some(NewKey { inner: locked.inner(n), shard: self.shard_context(n, now) }))
    }
}
