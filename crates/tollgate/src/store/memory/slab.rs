//! The slab of a shard: states that do not fit eight bytes, each at a fixed index.
//!
//! It grows only within the budget of its caller, accounts for its own memory, and never moves a state. An item has room
//! for a state of a few steps, so that most are read with the item.

use crate::algorithm::{Quota, QuotaState, WideAlgorithm};
use crate::fingerprint::Fingerprint;
use crate::prefetch;
use crate::store::LimitOutcome;
use crate::store::memory::packed::ChargeOp;
use crate::store::memory::table::DISCARDED_MASK;
use crate::store::memory::used_fraction::UsedFraction;
use crate::sync::count_steps;
use crate::time::Time;

#[derive(Clone)]
pub(super) struct WideEntry {
    head: EntryHead,
    pub(super) state: QuotaState,
}

/// What is known of an entry without reading its state.
#[derive(Clone)]
struct EntryHead {
    /// The fingerprint, with the used fraction of the limit in the bits that a table does not store.
    key: u64,
    expires_at: Time,
}

impl EntryHead {
    fn used_fraction(&self) -> UsedFraction {
        UsedFraction::from_byte((self.key & DISCARDED_MASK) as u8)
    }

    /// Updates expiry and used fraction after a change of the state.
    #[inline(always)]
    fn refresh<A: WideAlgorithm>(&mut self, algorithm: &A, state: &A::State, now: Time) {
        let used = algorithm.used_upper_bound(state, now);
        let fraction = self.used_fraction().updated(used, algorithm.capacity());
        self.key = self.key & !DISCARDED_MASK | u64::from(fraction.byte());
        self.expires_at = algorithm.expires_at(state);
    }

    /// Changes the state of the entry.
    #[inline(always)]
    fn change<A: WideAlgorithm, T>(
        &mut self,
        algorithm: &A,
        state: &mut A::State,
        now: Time,
        change: impl FnOnce(&mut A::State) -> T,
    ) -> ChangedState<T> {
        let heap_bytes_before = A::heap_bytes(state);
        count_steps(1); // and the steps that the change visits
        let result = change(state);
        self.refresh(algorithm, state, now);
        ChangedState {
            result,
            heap_bytes_before,
            heap_bytes: A::heap_bytes(state),
            expires_at: self.expires_at,
        }
    }
}

impl WideEntry {
    pub(super) fn new(fingerprint: Fingerprint, state: QuotaState, quota: &Quota, now: Time) -> WideEntry {
        let mut head = EntryHead { key: fingerprint.0, expires_at: Time::EPOCH };
        head.refresh(quota, &state, now);
        WideEntry { head, state }
    }

    /// From its saved form; see [`key`](Self::key).
    pub(super) fn from_saved(key: u64, state: QuotaState, fresh_at: Time) -> WideEntry {
        WideEntry { head: EntryHead { key, expires_at: fresh_at }, state }
    }

    /// The key as a saved state stores it: the stored bits of the fingerprint, and the used fraction.
    pub(super) fn key(&self) -> u64 {
        self.head.key
    }

    pub(super) fn expires_at(&self) -> Time {
        self.head.expires_at
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        Fingerprint(self.head.key & !DISCARDED_MASK)
    }

    fn is_for(&self, fingerprint: Fingerprint) -> bool {
        self.head.key & !DISCARDED_MASK == fingerprint.0 & !DISCARDED_MASK
    }

    pub(super) fn used_fraction(&self) -> UsedFraction {
        self.head.used_fraction()
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
    /// No entry expires earlier.
    earliest_expiry: Time,
    /// The same of the entries that [`Slab::next`] has returned since it last began at the front.
    cycle_earliest_expiry: Time,
}

/// The result of a change of a wide state.
pub(super) struct ChangedEntry<T> {
    pub(super) result: T,
    pub(super) has_grown: bool,
}

struct ChangedState<T> {
    result: T,
    heap_bytes_before: usize,
    heap_bytes: usize,
    expires_at: Time,
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
        let WideEntry { head, state } = self.entry_mut(index)?;
        let changed = head.change(quota, state, now, change);
        Some(self.note_change(changed))
    }

    /// Runs an operation on the state at an index.
    #[inline(always)]
    pub(super) fn run(&mut self, index: u64, op: &ChargeOp<'_>) -> Option<ChangedEntry<LimitOutcome>> {
        let WideEntry { head, state } = self.entry_mut(index)?;
        // One dispatch for the whole operation, where the state is of the quota's kind.
        let changed = match (op.quota, state) {
            (Quota::Log(window), QuotaState::Log(log)) => {
                head.change(window, log, op.now, |log| op.run_wide(window, log))
            }
            (Quota::Steps(window), QuotaState::Steps(steps)) => {
                head.change(window, steps, op.now, |steps| op.run_wide(window, steps))
            }
            (Quota::Tiers(window), QuotaState::Tiers(steps)) => {
                head.change(window, steps, op.now, |steps| op.run_wide(window, steps))
            }
            (quota, state) => head.change(quota, state, op.now, |state| op.run_wide(quota, state)),
        };
        Some(self.note_change(changed))
    }

    #[inline(always)]
    fn entry_mut(&mut self, index: u64) -> Option<&mut WideEntry> {
        let item = self.items.get_mut(usize::try_from(index).ok()?)?;
        // The lines of the item overlap, instead of one when its first field is read and another with a later one.
        prefetch::prefetch_range(
            std::ptr::from_ref(item).addr(),
            ITEM_BYTES + prefetch::CACHE_LINE_BYTES - 1,
        );
        match item {
            Item::Used(wide) => Some(wide),
            Item::Free(_) => None,
        }
    }

    #[inline(always)]
    fn note_change<T>(&mut self, changed: ChangedState<T>) -> ChangedEntry<T> {
        let ChangedState { result, heap_bytes_before, heap_bytes, expires_at } = changed;
        self.heap_bytes = self.heap_bytes - heap_bytes_before + heap_bytes;
        self.note_expiry(expires_at);
        ChangedEntry { result, has_grown: heap_bytes > heap_bytes_before }
    }

    /// An entry expires then.
    #[inline(always)]
    fn note_expiry(&mut self, expires_at: Time) {
        self.earliest_expiry = self.earliest_expiry.min(expires_at);
        self.cycle_earliest_expiry = self.cycle_earliest_expiry.min(expires_at);
    }

    /// Whether an entry may have expired.
    #[inline(always)]
    pub(super) fn may_have_expired(&self, now: Time) -> bool {
        self.earliest_expiry <= now
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
        self.note_expiry(wide.expires_at());
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

    /// Removes a state. The memory is freed if no other is left.
    pub(super) fn remove(&mut self, index: u64) {
        let Ok(index) = usize::try_from(index) else { return };
        let Some(item @ Item::Used(_)) = self.items.get_mut(index) else { return };
        if let Item::Used(wide) = std::mem::replace(item, Item::Free(self.first_free)) {
            self.heap_bytes -= wide.state.heap_bytes();
            self.first_free = Some(index);
            self.used -= 1;
        }
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
        self.cursor += 1;
        if self.cursor >= self.items.len() {
            self.cursor = 0;
            // All entries were passed since then, and those that were stored or changed later are noted.
            self.earliest_expiry = std::mem::replace(&mut self.cycle_earliest_expiry, Time::MAX);
        }
        let wide = self.items.get(self.cursor)?.used()?;
        self.cycle_earliest_expiry = self.cycle_earliest_expiry.min(wide.expires_at());
        (!wide.is_for(keep)).then_some(wide)
    }
}
