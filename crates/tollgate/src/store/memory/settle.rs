//! Corrections of charges after the fact: refunds, and costs that became known later.

use crate::algorithm::{Algorithm as _, Correction, Grant, Quota, QuotaState};
use crate::fingerprint::Fingerprint;
use crate::store::memory::aggregate::is_from_cell;
use crate::store::memory::classes::WIDE;
use crate::store::memory::shard::{PressureCounts, ReplaceResult};
use crate::store::memory::slab_eviction::Growth;
use crate::store::memory::table::class_number;
use crate::store::memory::{MemoryStore, shard_of};
use crate::store::{ChargeReceipt, ReceiptItem};
use crate::time::Time;

impl MemoryStore {
    /// Reverts the charges of a receipt, as far as they have not leaked or expired since.
    pub fn refund(&self, receipt: ChargeReceipt, now: Time) {
        self.settle(receipt, 0, now);
    }

    /// Corrects the hit's cost after the fact: the difference is refunded or charged.
    pub fn settle(&self, receipt: ChargeReceipt, real_cost: u64, now: Time) {
        for ReceiptItem { fingerprint, quota, unit_cost, grant, .. } in &receipt.items {
            self.settle_grant(*fingerprint, quota, grant, unit_cost.saturating_mul(real_cost), now);
        }
    }

    pub(super) fn settle_grant(
        &self,
        fingerprint: Fingerprint,
        quota: &Quota,
        grant: &Grant,
        real_cost: u64,
        now: Time,
    ) {
        if grant.correction(real_cost) == Correction::None {
            return;
        }
        if is_from_cell(grant) {
            return self.lock(shard_of(fingerprint)).aggregate.settle(quota, grant, real_cost, now);
        }
        self.change(fingerprint, quota, now, |state| quota.correct(state, grant, real_cost, now));
    }

    /// Changes the state of a key, or a fresh state if it is not stored.
    fn change(&self, fingerprint: Fingerprint, quota: &Quota, now: Time, change: impl Fn(&mut QuotaState)) {
        let n = shard_of(fingerprint);
        let shard = self.shard_context(n, now);
        let mut inner = self.lock(n);
        let mut pressure = PressureCounts::default();
        while let Some(slot) = shard.table.find(shard.lines, fingerprint) {
            let loaded = slot.load();
            let (tag, word) = loaded.entry();
            if class_number(tag) == WIDE {
                let Some(((), growth, pressure)) = inner.change_wide(&shard, word, quota, change) else {
                    return;
                };
                if growth == Growth::NoRoom {
                    inner.merge_steps(&shard, word, quota);
                }
                self.region.mark(slot);
                return self.count_pressure(&pressure);
            }
            let Some(class) = self.classes.get(class_number(tag)) else { return };
            let mut state = class.encoding.layout().unpack(word);
            change(&mut state);
            if let Some(next) = class.encoding.layout().pack(&state) {
                match slot.cas_state(loaded, next) {
                    Ok(()) => return self.region.mark(slot),
                    Err(_) => continue, // charged meanwhile: retry
                }
            }
            let saturated = class.encoding.layout().pack_saturated(&state);
            match inner.replace(&shard, (slot, loaded), fingerprint, quota, state, &mut pressure) {
                ReplaceResult::Done => return self.count_pressure(&pressure),
                ReplaceResult::Raced => {}
                ReplaceResult::NoRoom
                    if saturated.is_none_or(|next| slot.cas_state(loaded, next).is_ok()) =>
                {
                    self.region.mark(slot);
                    return self.count_pressure(&pressure);
                }
                ReplaceResult::NoRoom => {}
            }
        }
        let mut state = quota.fresh();
        change(&mut state);
        self.count_pressure(&pressure);
        self.count_pressure(&inner.insert(&shard, fingerprint, quota, state));
    }
}
