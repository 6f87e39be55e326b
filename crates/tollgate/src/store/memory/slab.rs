//! The side slab of a shard: states that do not fit eight bytes, each in a numbered place.
//!
//! It grows only when told that it may, counts its own memory, and never moves a state.

use crate::algorithm::{Algorithm as _, Quota, State};
use crate::fingerprint::Fingerprint;
use crate::store::memory::share::Share;
use crate::store::memory::table::UNKEPT;
use crate::time::Time;

pub(super) struct Wide {
    /// The fingerprint, with the share of its limit that the key has used in the bits that a table does not keep.
    key: u64,
    pub(super) state: State,
    pub(super) fresh_at: Time,
}

impl Wide {
    pub(super) fn new(fingerprint: Fingerprint, state: State, quota: &Quota, now: Time) -> Wide {
        let mut wide = Wide { key: fingerprint.0, state, fresh_at: Time::EPOCH };
        wide.renew(quota, now);
        wide
    }

    /// As it was saved; see [`key`](Self::key).
    pub(super) fn saved(key: u64, state: State, fresh_at: Time) -> Wide {
        Wide { key, state, fresh_at }
    }

    /// What a snapshot keeps of the key: the fingerprint as far as it is known, and the share.
    pub(super) fn key(&self) -> u64 {
        self.key
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        Fingerprint(self.key & !UNKEPT)
    }

    fn is_of(&self, fingerprint: Fingerprint) -> bool {
        self.key & !UNKEPT == fingerprint.0 & !UNKEPT
    }

    pub(super) fn share(&self) -> Share {
        Share::from_byte((self.key & UNKEPT) as u8)
    }

    /// Notes what has changed with the state.
    fn renew(&mut self, quota: &Quota, now: Time) {
        let share = Share::of(quota.held(&self.state, now), quota.capacity());
        self.key = self.key & !UNKEPT | u64::from(share.byte());
        self.fresh_at = quota.fresh_at(&self.state);
    }
}

#[derive(Default)]
pub(super) struct Slab {
    places: Vec<Option<Wide>>,
    /// As much capacity as `places` has.
    free: Vec<usize>,
    /// Bytes behind the states.
    heap_bytes: usize,
    /// Where [`Slab::next`] goes on.
    hand: usize,
}

/// A place, and its number among the free ones.
const PLACE_BYTES: usize = size_of::<Option<Wide>>() + size_of::<usize>();

/// Places that are made at once, at the beginning.
const FIRST_PLACES: usize = 4;

impl Slab {
    /// What the first states take before anything is behind them.
    pub(super) const FIRST_BYTES: usize = FIRST_PLACES * PLACE_BYTES;

    pub(super) fn bytes(&self) -> usize {
        self.places.capacity() * PLACE_BYTES + self.heap_bytes
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn get(&self, place: u64) -> Option<&Wide> {
        self.places.get(usize::try_from(place).ok()?)?.as_ref()
    }

    /// Changes the state at a place; returns how many bytes it has grown by, too.
    pub(super) fn change<T>(
        &mut self,
        place: u64,
        quota: &Quota,
        now: Time,
        change: impl FnOnce(&mut State) -> T,
    ) -> Option<(T, usize)> {
        let wide = self.places.get_mut(usize::try_from(place).ok()?)?.as_mut()?;
        let before = heap_bytes(&wide.state);
        let changed = change(&mut wide.state);
        wide.renew(quota, now);
        let after = heap_bytes(&wide.state);
        self.heap_bytes = self.heap_bytes - before + after;
        Some((changed, after.saturating_sub(before)))
    }

    /// Whether one more state fits into `cap_bytes`; its place is reserved if so.
    pub(super) fn fits(&mut self, state: &State, cap_bytes: usize) -> bool {
        let Some(room) = cap_bytes.checked_sub(self.bytes() + heap_bytes(state)) else { return false };
        if self.free.is_empty() && self.places.len() == self.places.capacity() {
            let more = (room / PLACE_BYTES).min(self.places.len() / 8 + FIRST_PLACES);
            self.places.reserve_exact(more);
            self.free.reserve_exact(self.places.capacity());
            return more > 0;
        }
        true
    }

    /// Whether one more state fits into `cap_bytes`.
    pub(super) fn has_room_for(&self, state: &State, cap_bytes: usize) -> bool {
        let has_place = !self.free.is_empty() || self.places.len() < self.places.capacity();
        let place = if has_place { 0 } else { PLACE_BYTES };
        self.bytes() + heap_bytes(state) + place <= cap_bytes
    }

    /// The next few places that [`next`](Self::next) would look at.
    pub(super) fn ahead(&self, count: usize) -> impl Iterator<Item = &Wide> {
        let count = count.min(self.places.len());
        let places = self.places.iter().cycle().skip(self.hand + 1).take(count);
        places.flatten()
    }

    /// Keeps a state that fits; returns its place.
    pub(super) fn insert(&mut self, wide: Wide) -> u64 {
        self.heap_bytes += heap_bytes(&wide.state);
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[place] = Some(wide);
        place as u64
    }

    pub(super) fn remove(&mut self, place: u64) {
        let Ok(place) = usize::try_from(place) else { return };
        if let Some(wide) = self.places.get_mut(place).and_then(Option::take) {
            self.heap_bytes -= heap_bytes(&wide.state);
            self.free.push(place);
        }
    }

    /// Gives the memory back if no state is left.
    pub(super) fn shrink(&mut self) {
        if self.free.len() == self.places.len() {
            *self = Slab::default();
        }
    }

    /// Goes round all places, one at a time; skips `keep`.
    pub(super) fn next(&mut self, keep: Fingerprint) -> Option<&Wide> {
        self.hand = (self.hand + 1).checked_rem(self.places.len())?;
        self.places[self.hand].as_ref().filter(|wide| !wide.is_of(keep))
    }
}

/// The bytes behind a state. None is counted with less than its least form takes, so that a state that is
/// merged down to that form always fits where it is.
fn heap_bytes(state: &State) -> usize {
    state.heap_bytes().max(state.least_heap_bytes())
}
