//! Room for wide states: expiry, eviction, and states that cannot grow.

use crate::algorithm::{Quota, QuotaState};
use crate::fingerprint::Fingerprint;
use crate::store::memory::packed::Class;
use crate::store::memory::shard::{PressureCounts, ShardContext, ShardInner};
use crate::store::memory::slab::{ChangedEntry, Slab, WideEntry};
use crate::store::memory::used_fraction::UsedFraction;

/// Wide entries checked with every write of one, so that expired ones do not accumulate.
const SWEEP: usize = 2;
/// Wide entries searched when the slab has no room.
const EVICTION_SEARCH: usize = 64;

/// Whether a wide state that has grown still fits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Growth {
    Fits,
    /// It does not fit and cannot be coarsened.
    NoRoom,
}

impl ShardInner {
    /// Changes a wide state in place. If it has grown and there is no room, entries that used little are evicted, or
    /// it is coarsened; if neither helps the caller must undo the change.
    pub(super) fn change_wide<T>(
        &mut self,
        shard: &ShardContext<'_>,
        index: u64,
        quota: &Quota,
        change: impl FnOnce(&mut QuotaState) -> T,
    ) -> Option<(T, Growth, PressureCounts)> {
        let ChangedEntry { result, has_grown } = self.slab.change(index, quota, shard.now, change)?;
        let mut pressure = PressureCounts::default();
        let growth = self.after_change(shard, index, quota, has_grown, &mut pressure);
        Some((result, growth, pressure))
    }

    /// Drops expired entries, and finds room for a wide state that has grown.
    pub(super) fn after_change(
        &mut self,
        shard: &ShardContext<'_>,
        index: u64,
        quota: &Quota,
        has_grown: bool,
        pressure: &mut PressureCounts,
    ) -> Growth {
        let Some(wide) = self.slab.get(index) else { return Growth::Fits };
        let keep = wide.fingerprint();
        let fraction = wide.used_fraction();
        self.sweep(shard, keep);
        if !has_grown {
            return Growth::Fits;
        }
        let budget = self.slab_budget(shard);
        self.evict_until(shard, keep, fraction, pressure, |slab| slab.bytes() <= budget);
        while self.slab.bytes() > budget {
            let coarser = self.slab.change(index, quota, shard.now, |state| quota.coarsen(state));
            if coarser.is_none_or(|changed| !changed.result) {
                return Growth::NoRoom;
            }
            pressure.coarsened += 1;
        }
        Growth::Fits
    }

    /// Merges steps of a state until it fits: it must include the last change, and cannot be coarsened otherwise.
    pub(super) fn merge_steps(&mut self, shard: &ShardContext<'_>, index: u64, quota: &Quota) {
        let budget = self.slab_budget(shard);
        while self.slab.bytes() > budget {
            let merged = self.slab.change(index, quota, shard.now, QuotaState::merge_steps);
            if merged.is_none_or(|changed| !changed.result) {
                return;
            }
        }
    }

    /// Drops expired entries among the next few wide ones.
    #[inline]
    pub(super) fn sweep(&mut self, shard: &ShardContext<'_>, keep: Fingerprint) {
        if !self.slab.may_have_expired(shard.now) {
            return;
        }
        for _ in 0..SWEEP {
            let expired = self.slab.next(keep).filter(|wide| wide.expires_at() <= shard.now);
            if let Some(fingerprint) = expired.map(WideEntry::fingerprint) {
                self.remove(shard, fingerprint);
            }
        }
        self.slab.prefetch_next(SWEEP);
    }

    /// Makes room for a new wide state; returns whether it fits.
    pub(super) fn make_room(
        &mut self,
        shard: &ShardContext<'_>,
        wide: &WideEntry,
        pressure: &mut PressureCounts,
    ) -> bool {
        let budget = self.slab_budget(shard);
        let fits = |slab: &mut Slab| slab.fits(&wide.state, budget);
        self.evict_until(shard, wide.fingerprint(), wide.used_fraction(), pressure, fits)
    }

    /// Whether a new key would find room for its state. May return `false` where displacing other entries would make
    /// room.
    pub(super) fn has_room_for(
        &self,
        shard: &ShardContext<'_>,
        fingerprint: Fingerprint,
        quota: &Quota,
        state: QuotaState,
    ) -> bool {
        let fraction = UsedFraction::of(quota.used_upper_bound(&state, shard.now), quota.capacity());
        let packs = Class::of(quota).is_some_and(|class| class.encoding.layout().pack(&state).is_some());
        let in_slab = packs
            || self.slab.has_room_for(&state, self.slab_budget(shard))
            || self
                .slab
                .next_items(EVICTION_SEARCH)
                .any(|wide| wide.expires_at() <= shard.now || wide.used_fraction().is_evictable_by(fraction));
        in_slab && self.has_slot_for(shard, fingerprint, fraction)
    }

    /// Drops wide entries that have expired or that `fraction` evicts, in a bounded search, until there is room; returns
    /// whether there is.
    fn evict_until(
        &mut self,
        shard: &ShardContext<'_>,
        keep: Fingerprint,
        fraction: UsedFraction,
        pressure: &mut PressureCounts,
        fits: impl Fn(&mut Slab) -> bool,
    ) -> bool {
        for _ in 0..EVICTION_SEARCH.min(self.slab.len()) {
            if fits(&mut self.slab) {
                return true;
            }
            self.evict_next(shard, keep, fraction, pressure);
        }
        fits(&mut self.slab)
    }

    /// Drops the next wide entry if it has expired or if `fraction` evicts it.
    fn evict_next(
        &mut self,
        shard: &ShardContext<'_>,
        keep: Fingerprint,
        fraction: UsedFraction,
        pressure: &mut PressureCounts,
    ) {
        let Some(wide) = self.slab.next(keep) else { return };
        let fingerprint = wide.fingerprint();
        let other = wide.used_fraction();
        let expires_at = wide.expires_at();
        let expired = expires_at <= shard.now;
        let evictable = other.is_evictable_by(fraction);
        if evictable && !expired {
            self.evicted_fractions.add_wide(&wide.state, other, expires_at, shard.now);
        }
        if (expired || evictable) && self.remove(shard, fingerprint) {
            pressure.evicted += u64::from(!expired);
        }
    }
}
