//! Room for wide states: what expires or gives way to them, and what becomes of one that cannot grow.

use crate::algorithm::{Quota, State};
use crate::fingerprint::Fingerprint;
use crate::store::memory::packed::Class;
use crate::store::memory::shard::{Held, Kept, Shape};
use crate::store::memory::share::Share;
use crate::store::memory::slab::{Slab, Wide};

/// Wide entries looked at with every write of one, so that what has expired does not pile up.
const SWEEP: usize = 2;
/// Wide entries looked at when the slab has no room.
const ROOM_SEARCH: usize = 64;

/// Whether a wide state that has grown fits where it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Growth {
    Fits,
    /// It does not, and cannot be coarsened.
    NoRoom,
}

impl Shape {
    /// Changes a wide state in place. If it has grown and there is no room, others that used little give way, or it
    /// is coarsened; where neither helps the caller has to undo the change.
    pub(super) fn change_wide<T>(
        &mut self,
        held: &Held<'_>,
        place: u64,
        quota: &Quota,
        change: impl FnOnce(&mut State) -> T,
    ) -> Option<(T, Growth, Kept)> {
        let (changed, grown) = self.slab.change(place, quota, held.now, change)?;
        let (fingerprint, share) = self.slab.get(place).map(|wide| (wide.fingerprint(), wide.share()))?;
        let mut kept = Kept::default();
        self.sweep(held, fingerprint);
        let growth = match grown {
            0 => Growth::Fits,
            _ => self.fit(held, place, quota, (fingerprint, share), &mut kept),
        };
        Some((changed, growth, kept))
    }

    /// Finds room for a wide state that has grown in its place.
    fn fit(
        &mut self,
        held: &Held<'_>,
        place: u64,
        quota: &Quota,
        (keep, share): (Fingerprint, Share),
        kept: &mut Kept,
    ) -> Growth {
        let most = self.slab_share(held);
        self.drop_until(held, keep, share, kept, |slab| slab.bytes() <= most);
        while self.slab.bytes() > most {
            let coarser = self.slab.change(place, quota, held.now, |state| quota.coarsen(state));
            if coarser.is_none_or(|(coarser, _)| !coarser) {
                return Growth::NoRoom;
            }
            kept.coarsened += 1;
        }
        Growth::Fits
    }

    /// Makes a state fit that must keep what it has grown by, and cannot be coarsened otherwise.
    pub(super) fn merge_steps(&mut self, held: &Held<'_>, place: u64, quota: &Quota) {
        let most = self.slab_share(held);
        while self.slab.bytes() > most {
            let merged = self.slab.change(place, quota, held.now, State::merge_steps);
            if merged.is_none_or(|(merged, _)| !merged) {
                return;
            }
        }
    }

    /// Drops the expired among the next few wide entries.
    pub(super) fn sweep(&mut self, held: &Held<'_>, keep: Fingerprint) {
        for _ in 0..SWEEP {
            self.drop_next(held, keep, Share::NONE, &mut Kept::default());
        }
        self.slab.shrink();
    }

    /// Makes room for a new wide state; says whether it fits.
    pub(super) fn make_room(&mut self, held: &Held<'_>, wide: &Wide, kept: &mut Kept) -> bool {
        let most = self.slab_share(held);
        let fits = |slab: &mut Slab| slab.fits(&wide.state, most);
        self.drop_until(held, wide.fingerprint(), wide.share(), kept, fits)
    }

    /// Whether a new key would find room for its state. It may find some by moving others where this says that there is
    /// none.
    pub(super) fn has_room_for(
        &self,
        held: &Held<'_>,
        fingerprint: Fingerprint,
        quota: &Quota,
        state: State,
    ) -> bool {
        let share = Share::of(quota.held(&state, held.now), quota.capacity());
        let packs = Class::of(quota).is_some_and(|class| class.form.layout().pack(&state).is_some());
        let in_slab = packs
            || self.slab.has_room_for(&state, self.slab_share(held))
            || self
                .slab
                .ahead(ROOM_SEARCH)
                .any(|wide| wide.fresh_at <= held.now || wide.share().gives_way_to(share));
        in_slab && self.has_slot_for(held, fingerprint, share)
    }

    /// Drops wide entries that have expired or give way to `share`, in a bounded search, until there is room; says
    /// whether there is.
    fn drop_until(
        &mut self,
        held: &Held<'_>,
        keep: Fingerprint,
        share: Share,
        kept: &mut Kept,
        fits: impl Fn(&mut Slab) -> bool,
    ) -> bool {
        for _ in 0..ROOM_SEARCH.min(self.slab.len()) {
            if fits(&mut self.slab) {
                return true;
            }
            self.drop_next(held, keep, share, kept);
        }
        fits(&mut self.slab)
    }

    /// Looks at the next wide entry, and drops it if it has expired or gives way to `share`.
    fn drop_next(&mut self, held: &Held<'_>, keep: Fingerprint, share: Share, kept: &mut Kept) {
        let next = self.slab.next(keep).map(|wide| (wide.fingerprint(), wide.fresh_at, wide.share()));
        let Some((fingerprint, fresh_at, theirs)) = next else { return };
        let expired = fresh_at <= held.now;
        if (expired || theirs.gives_way_to(share)) && self.remove(held, fingerprint) {
            kept.evicted += u64::from(!expired);
        }
    }
}
