//! The slab of a shard: states that do not fit eight bytes, each at a fixed index.
//!
//! It grows only within the budget of its caller, accounts for its own memory, and never moves a state.

use crate::algorithm::{Algorithm as _, Quota, QuotaState};
use crate::fingerprint::Fingerprint;
use crate::prefetch;
use crate::store::memory::table::DISCARDED_MASK;
use crate::store::memory::used_fraction::UsedFraction;
use crate::sync::count_steps;
use crate::time::Time;

pub(super) struct WideEntry {
    /// The fingerprint, with the used fraction of the limit in the bits that a table does not store.
    key: u64,
    pub(super) state: QuotaState,
    pub(super) expires_at: Time,
}

impl WideEntry {
    pub(super) fn new(fingerprint: Fingerprint, state: QuotaState, quota: &Quota, now: Time) -> WideEntry {
        let mut wide = WideEntry { key: fingerprint.0, state, expires_at: Time::EPOCH };
        wide.refresh(quota, now);
        wide
    }

    /// From its saved form; see [`key`](Self::key).
    pub(super) fn from_snapshot(key: u64, state: QuotaState, fresh_at: Time) -> WideEntry {
        WideEntry { key, state, expires_at: fresh_at }
    }

    /// The key as a snapshot stores it: the stored bits of the fingerprint, and the used fraction.
    pub(super) fn key(&self) -> u64 {
        self.key
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        Fingerprint(self.key & !DISCARDED_MASK)
    }

    fn is_for(&self, fingerprint: Fingerprint) -> bool {
        self.key & !DISCARDED_MASK == fingerprint.0 & !DISCARDED_MASK
    }

    pub(super) fn used_fraction(&self) -> UsedFraction {
        UsedFraction::from_byte((self.key & DISCARDED_MASK) as u8)
    }

    /// Updates expiry and used fraction after a change of the state.
    fn refresh(&mut self, quota: &Quota, now: Time) {
        let share = UsedFraction::of(quota.used_upper_bound(&self.state, now), quota.capacity());
        self.key = self.key & !DISCARDED_MASK | u64::from(share.byte());
        self.expires_at = quota.expires_at(&self.state);
    }
}

#[derive(Default)]
pub(super) struct Slab {
    items: Vec<Option<WideEntry>>,
    /// Has the capacity of `items`, so that freeing never allocates.
    free: Vec<usize>,
    /// Bytes on the heap that the states own.
    heap_bytes: usize,
    /// Where [`Slab::next`] continues.
    cursor: usize,
}

/// An item, and its index in the free list.
const ITEM_BYTES: usize = size_of::<Option<WideEntry>>() + size_of::<usize>();

/// A step of a window, with its count.
const STEP_BYTES: usize = 16;
/// Items of the first allocation.
const INITIAL_ITEMS: usize = 4;

impl Slab {
    /// Bytes of the first allocation, without heap bytes of states.
    pub(super) const INITIAL_BYTES: usize = INITIAL_ITEMS * ITEM_BYTES;

    pub(super) fn bytes(&self) -> usize {
        self.items.capacity() * ITEM_BYTES + self.heap_bytes
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn get(&self, index: u64) -> Option<&WideEntry> {
        self.items.get(usize::try_from(index).ok()?)?.as_ref()
    }

    /// Changes the state at an index; also returns by how many bytes it has grown.
    pub(super) fn change<T>(
        &mut self,
        index: u64,
        quota: &Quota,
        now: Time,
        change: impl FnOnce(&mut QuotaState) -> T,
    ) -> Option<(T, usize)> {
        let wide = self.items.get_mut(usize::try_from(index).ok()?)?.as_mut()?;
        let before = heap_bytes(&wide.state);
        count_steps(1 + before / STEP_BYTES);
        let changed = change(&mut wide.state);
        wide.refresh(quota, now);
        let after = heap_bytes(&wide.state);
        self.heap_bytes = self.heap_bytes - before + after;
        Some((changed, after.saturating_sub(before)))
    }

    /// Whether one more state fits into `cap_bytes`; if so, an item is reserved for it.
    pub(super) fn fits(&mut self, state: &QuotaState, cap_bytes: usize) -> bool {
        let Some(room) = cap_bytes.checked_sub(self.bytes() + heap_bytes(state)) else { return false };
        if self.free.is_empty() && self.items.len() == self.items.capacity() {
            let more = (room / ITEM_BYTES).min(self.items.len() / 8 + INITIAL_ITEMS);
            self.items.reserve_exact(more);
            self.free.reserve_exact(self.items.capacity());
            return more > 0;
        }
        true
    }

    /// Whether one more state fits into `cap_bytes`.
    pub(super) fn has_room_for(&self, state: &QuotaState, cap_bytes: usize) -> bool {
        let has_place = !self.free.is_empty() || self.items.len() < self.items.capacity();
        let index = if has_place { 0 } else { ITEM_BYTES };
        self.bytes() + heap_bytes(state) + index <= cap_bytes
    }

    /// The next few items that [`next`](Self::next) would return.
    pub(super) fn next_items(&self, count: usize) -> impl Iterator<Item = &WideEntry> {
        let count = count.min(self.items.len());
        let items = self.items.iter().cycle().skip(self.cursor + 1).take(count);
        items.inspect(|_| count_steps(1)).flatten()
    }

    /// Stores a state that fits; returns its index.
    pub(super) fn insert(&mut self, wide: WideEntry) -> u64 {
        self.heap_bytes += heap_bytes(&wide.state);
        let index = self.free.pop().unwrap_or_else(|| {
            self.items.push(None);
            self.items.len() - 1
        });
        self.items[index] = Some(wide);
        index as u64
    }

    pub(super) fn remove(&mut self, index: u64) {
        let Ok(index) = usize::try_from(index) else { return };
        if let Some(wide) = self.items.get_mut(index).and_then(Option::take) {
            self.heap_bytes -= heap_bytes(&wide.state);
            self.free.push(index);
        }
    }

    /// Frees the memory if no state is left.
    pub(super) fn shrink(&mut self) {
        if self.free.len() == self.items.len() {
            *self = Slab::default();
        }
    }

    /// Prefetches what the next calls of [`next`](Self::next) read.
    pub(super) fn prefetch_next(&self, count: usize) {
        if let Some(next) = self.items.get(self.cursor + 1) {
            let address = std::ptr::from_ref(next).addr();
            prefetch::prefetch_range(address, count * size_of::<Option<WideEntry>>());
        }
    }

    /// Iterates over all items cyclically, one at a time; skips `keep`.
    pub(super) fn next(&mut self, keep: Fingerprint) -> Option<&WideEntry> {
        count_steps(1);
        self.cursor = (self.cursor + 1).checked_rem(self.items.len())?;
        self.items[self.cursor].as_ref().filter(|wide| !wide.is_for(keep))
    }
}

/// The heap bytes of a state, at least those of its smallest form, so that a state which is merged to that form always
/// fits.
fn heap_bytes(state: &QuotaState) -> usize {
    state.heap_bytes().max(state.min_heap_bytes())
}
