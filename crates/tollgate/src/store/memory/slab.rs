//! The side slab of a shard: states that do not fit eight bytes, each in a numbered place.
//!
//! It grows only when told that it may, counts its own memory, and never moves a state.

use crate::algorithm::State;
use crate::fingerprint::Fingerprint;
use crate::time::Time;

pub(super) struct Wide {
    pub(super) fingerprint: Fingerprint,
    pub(super) state: State,
    pub(super) fresh_at: Time,
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

impl Slab {
    pub(super) fn bytes(&self) -> usize {
        self.places.capacity() * PLACE_BYTES + self.heap_bytes
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn get(&self, place: u64) -> Option<&Wide> {
        self.places.get(usize::try_from(place).ok()?)?.as_ref()
    }

    /// Changes what is at a place.
    pub(super) fn change<T>(&mut self, place: u64, change: impl FnOnce(&mut Wide) -> T) -> Option<T> {
        let wide = self.places.get_mut(usize::try_from(place).ok()?)?.as_mut()?;
        let before = heap_bytes(&wide.state);
        let changed = change(wide);
        self.heap_bytes = self.heap_bytes - before + heap_bytes(&wide.state);
        Some(changed)
    }

    /// Whether one more state fits into `cap_bytes`; its place is reserved if so.
    pub(super) fn fits(&mut self, state: &State, cap_bytes: usize) -> bool {
        let Some(room) = cap_bytes.checked_sub(self.bytes() + heap_bytes(state)) else { return false };
        if self.free.is_empty() && self.places.len() == self.places.capacity() {
            let more = (room / PLACE_BYTES).min(self.places.len() / 8 + 4);
            self.places.reserve_exact(more);
            self.free.reserve_exact(self.places.capacity());
            return more > 0;
        }
        true
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

    /// Goes round all places, one at a time.
    pub(super) fn next(&mut self) -> Option<&Wide> {
        self.hand = (self.hand + 1).checked_rem(self.places.len())?;
        self.places[self.hand].as_ref()
    }
}

fn heap_bytes(state: &State) -> usize {
    match state {
        State::Log(log) => size_of_val(&**log) + log.heap_bytes(),
        State::Steps(steps) => steps.heap_bytes(),
        State::Tiers(tiers) => tiers.heap_bytes(),
        State::Instant(_) | State::Window(_) | State::Counts(_) => 0,
    }
}
