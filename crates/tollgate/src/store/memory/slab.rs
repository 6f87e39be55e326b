//! The slab of a shard: states that do not fit eight bytes, each at a fixed index.
//!
//! It grows only within the budget of its caller, accounts for its own memory, and never moves a state. An item has room
//! for a state of a few steps, so that most are read with the item.

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
    pub(super) fn from_saved(key: u64, state: QuotaState, fresh_at: Time) -> WideEntry {
        WideEntry { key, state, expires_at: fresh_at }
    }

    /// The key as a saved state stores it: the stored bits of the fingerprint, and the used fraction.
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
    items: Vec<Item>,
    first_free: Option<usize>,
    /// Items in use.
    used: usize,
    /// Bytes on the heap that the states own.
    heap_bytes: usize,
    /// Where [`Slab::next`] continues.
    cursor: usize,
}

/// The result of a change of a wide state, and its entry since.
pub(super) struct ChangedEntry<T> {
    pub(super) result: T,
    pub(super) has_grown: bool,
    pub(super) fingerprint: Fingerprint,
    pub(super) used_fraction: UsedFraction,
}

enum Item {
    Used(WideEntry),
    /// With the index of the next free item.
    Free(Option<usize>),
}

impl Item {
    #[inline]
    fn used(&self) -> Option<&WideEntry> {
        match self {
            Item::Used(wide) => Some(wide),
            Item::Free(_) => None,
        }
    }
}

const ITEM_BYTES: usize = size_of::<Item>();
/// At any multiple of it an item is in two cache lines, not three.
const _: () = assert!(ITEM_BYTES == 96);

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
        self.items.get(usize::try_from(index).ok()?)?.used()
    }

    /// Changes the state at an index.
    #[inline]
    pub(super) fn change<T>(
        &mut self,
        index: u64,
        quota: &Quota,
        now: Time,
        change: impl FnOnce(&mut QuotaState) -> T,
    ) -> Option<ChangedEntry<T>> {
        let item = self.items.get_mut(usize::try_from(index).ok()?)?;
        // The lines of the item overlap, instead of one when its first field is read and another with a later one.
        prefetch::prefetch_range(
            std::ptr::from_ref(item).addr(),
            ITEM_BYTES + prefetch::CACHE_LINE_BYTES - 1,
        );
        let Item::Used(wide) = item else { return None };
        let before = wide.state.heap_bytes();
        count_steps(1 + before / STEP_BYTES);
        let result = change(&mut wide.state);
        wide.refresh(quota, now);
        let after = wide.state.heap_bytes();
        self.heap_bytes = self.heap_bytes - before + after;
        Some(ChangedEntry {
            result,
            has_grown: after > before,
            fingerprint: wide.fingerprint(),
            used_fraction: wide.used_fraction(),
        })
    }

    /// Whether one more state fits into `cap_bytes`; if so, an item is reserved for it.
    pub(super) fn fits(&mut self, state: &QuotaState, cap_bytes: usize) -> bool {
        let Some(room) = cap_bytes.checked_sub(self.bytes() + state.heap_bytes()) else { return false };
        if !self.has_free_item() {
            let more = (room / ITEM_BYTES).min(self.items.len() / 8 + INITIAL_ITEMS);
            self.items.reserve_exact(more);
            return more > 0;
        }
        true
    }

    /// Whether one more state fits into `cap_bytes`.
    pub(super) fn has_room_for(&self, state: &QuotaState, cap_bytes: usize) -> bool {
        let item = if self.has_free_item() { 0 } else { ITEM_BYTES };
        self.bytes() + state.heap_bytes() + item <= cap_bytes
    }

    fn has_free_item(&self) -> bool {
        self.used < self.items.capacity()
    }

    /// The next few items that [`next`](Self::next) would return.
    pub(super) fn next_items(&self, count: usize) -> impl Iterator<Item = &WideEntry> {
        let count = count.min(self.items.len());
        let items = self.items.iter().cycle().skip(self.cursor + 1).take(count);
        items.inspect(|_| count_steps(1)).filter_map(Item::used)
    }

    /// Stores a state that fits; returns its index.
    pub(super) fn insert(&mut self, wide: WideEntry) -> u64 {
        self.heap_bytes += wide.state.heap_bytes();
        self.used += 1;
        let Some(index) = self.first_free else {
            self.items.push(Item::Used(wide));
            return self.items.len() as u64 - 1;
        };
        let free = std::mem::replace(&mut self.items[index], Item::Used(wide));
        self.first_free = match free {
            Item::Free(next) => next,
            Item::Used(_) => unreachable!("the free list has free items only"),
        };
        index as u64
    }

    pub(super) fn remove(&mut self, index: u64) {
        let Ok(index) = usize::try_from(index) else { return };
        let Some(item @ Item::Used(_)) = self.items.get_mut(index) else { return };
        if let Item::Used(wide) = std::mem::replace(item, Item::Free(self.first_free)) {
            self.heap_bytes -= wide.state.heap_bytes();
            self.first_free = Some(index);
            self.used -= 1;
        }
    }

    /// Frees the memory if no state is left.
    #[inline]
    pub(super) fn shrink(&mut self) {
        if self.used == 0 {
            *self = Slab::default();
        }
    }

    /// Prefetches what the next calls of [`next`](Self::next) read.
    #[inline]
    pub(super) fn prefetch_next(&self, count: usize) {
        if let Some(next) = self.items.get(self.cursor + 1) {
            let address = std::ptr::from_ref(next).addr();
            prefetch::prefetch_range(address, count * ITEM_BYTES);
        }
    }

    /// Iterates over all items cyclically, one at a time; skips `keep`.
    #[inline]
    pub(super) fn next(&mut self, keep: Fingerprint) -> Option<&WideEntry> {
        count_steps(1);
        self.cursor = if self.cursor + 1 < self.items.len() { self.cursor + 1 } else { 0 };
        self.items.get(self.cursor)?.used().filter(|wide| !wide.is_for(keep))
    }
}
