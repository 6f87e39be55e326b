//! Counters in memory: lock-free for stored keys, bounded in bytes, expiring without a sweeper.
//!
//! A hit on a stored key is one CAS of its slot; a denial writes nothing. New keys, growth and wide states take the
//! lock of a shard. The store knows fingerprints only: no rules, no identities.
//!
//! Linearization points of one charge: if admitted, the CAS of the word (`slot`); if denied, the load that confirms
//! the word it was decided on; for a new key, the CAS that writes its slot under the shard's lock; for a wide state,
//! the change under that lock. A lookup that misses proves nothing, because the entry may be moving (`relocation`),
//! so it is repeated under the lock.
//!
//! A request with several charges is all-or-nothing but not linearizable: all are decided first, then applied one by
//! one in the order of their fingerprints, and reverted if one of them is denied after all. A concurrent request may
//! see a charge that is reverted later: it can be denied by it, never admitted.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use crate::algorithm::Quota;
use crate::changes::Changes;
use crate::fingerprint::Fingerprint;
use crate::limit::Limit;
use crate::store::{
    Charge, ChargeItem, ChargeOutcome, ChargeRef, DeniedHits, Enforcement, LimitOutcome, Predecessor,
};
use crate::sync::{Mutex, MutexGuard, lock};
use crate::time::Time;

mod aggregate;
mod changes;
mod classes;
mod collect;
mod evicted_fractions;
mod fast_path;
mod full;
mod growth;
mod layout;
mod multi_charge;
mod packed;
mod peek;
mod region;
mod relocation;
mod saved;
mod saved_state;
mod settle;
mod shard;
mod single_key;
mod slab;
mod slab_eviction;
mod slot;
mod table;
mod usage;
mod used_fraction;

pub use aggregate::{AGGREGATE_CELLS, MemoryFull};
use classes::{Classes, WIDE};
pub(crate) use fast_path::{FastPath, FastPathResult, SlotHint};
pub(crate) use multi_charge::PolicyCheck;
use packed::{ChargeOp, ChargeOpKind, SlotEncoding};
use region::Region;
pub(crate) use saved_state::{EntryReader, Expired};
use shard::{PressureCounts, ShardContext, ShardInner};
use slot::{CacheLine, Slot};
pub(crate) use table::CandidateLines;
use table::{ShardTable, class_number, tag_matches};
pub use usage::Usage;

const SHARDS: usize = if cfg!(shuttle) { 2 } else { 64 };
/// Lines of a shard: reserved up to its cap, and bounded by the bits of a tag that address them. The model checker
/// needs few.
const MAX_LINES: usize = if cfg!(shuttle) { 8 } else { 1 << 27 };

/// The memory store. All operations are atomic and infallible.
pub struct MemoryStore {
    /// The number of lines that each shard uses; read by every decision, rarely written.
    tables: [ShardTable; SHARDS],
    region: Region,
    shards: Box<[CachePadded<Mutex<ShardInner>>]>,
    classes: Classes,
    cap_bytes: usize,
    evicted: AtomicU64,
    unstored: AtomicU64,
    coarsened: AtomicU64,
    denied_full: AtomicU64,
    /// When a new key last found no room and shared no counter, in Unix nanoseconds; 0 for never.
    unlimited_at: AtomicU64,
    full: MemoryFull,
}

/// Aligned to a cache line of its own, against false sharing.
#[repr(align(64))]
struct CachePadded<T>(T);

impl MemoryStore {
    /// With less, a shard could not store a key.
    pub const MIN_BYTES: usize = 1 << 20;

    /// A store that uses at most `cap_bytes` (at least a mebibyte).
    ///
    /// # Panics
    ///
    /// If [`try_new`](Self::try_new) fails.
    pub fn new(cap_bytes: usize) -> MemoryStore {
        Self::try_new(cap_bytes).expect("the address space has room for the memory cap")
    }

    /// As [`new`](Self::new). Address space is reserved; pages are committed as keys arrive. Fails where the system
    /// does not grant that much address space, and on an x86-64 processor without CMPXCHG16B.
    pub fn try_new(cap_bytes: usize) -> io::Result<MemoryStore> {
        let cap_bytes = cap_bytes.max(Self::MIN_BYTES);
        let shard_bytes = cap_bytes / SHARDS;
        let lines = (shard_bytes / size_of::<CacheLine>()).min(MAX_LINES);
        let region = Region::reserve(lines)?;
        Ok(MemoryStore {
            tables: std::array::from_fn(|_| ShardTable::new(lines)),
            region,
            shards: (0..SHARDS).map(|_| CachePadded(Mutex::new(ShardInner::new(shard_bytes)))).collect(),
            classes: Classes::new(lines * SHARDS),
            cap_bytes,
            evicted: AtomicU64::new(0),
            unstored: AtomicU64::new(0),
            coarsened: AtomicU64::new(0),
            denied_full: AtomicU64::new(0),
            unlimited_at: AtomicU64::new(0),
            full: MemoryFull::default(),
        })
    }

    /// The memory that a key of this limit needs at its limit, in whole mebibytes. A store with less stores a coarser
    /// state.
    pub fn min_bytes_for(limit: &Limit) -> usize {
        let state = Quota::new(limit).max_heap_bytes();
        let shard = ShardInner::min_bytes_for(state);
        shard
            .saturating_mul(SHARDS)
            .checked_next_multiple_of(1 << 20)
            .unwrap_or(usize::MAX)
            .max(Self::MIN_BYTES)
    }

    /// Sets what happens to new keys while memory is full.
    #[must_use]
    pub fn when_full(self, full: MemoryFull) -> MemoryStore {
        MemoryStore { full, ..self }
    }

    /// If enabled, records which keys change from now on, for a log that is written while the store is in use.
    #[must_use]
    pub fn recording(mut self, changes: Changes) -> MemoryStore {
        if changes == Changes::Recorded {
            self.region.record_changes();
        }
        self
    }

    /// Decides all charges of one request and applies all or none.
    pub fn charge(&self, charges: &[Charge], now: Time) -> ChargeOutcome {
        ChargeOutcome::written_by(charges, |items| self.charge_while(items, now, &PolicyCheck::always()))
    }

    /// As [`charge`](Self::charge), where the charges are, while the limits are in force; if [`PolicyCheck`] finds
    /// that they are not, nothing is charged. Returns whether the request is admitted.
    ///
    /// A state moves from the counter of a limit to that of its successor, and a charge planned under the old limit
    /// would create a second counter. So a counter is created only after checking, under the lock of the shard, that
    /// the limit is in force: the move takes the same lock, after the successor came into force.
    #[inline(always)]
    pub(crate) fn charge_while<I: ChargeItem>(
        &self,
        items: &mut [I],
        now: Time,
        policy_check: &PolicyCheck<'_>,
    ) -> bool {
        let [item] = items else { return self.charge_several(items, now, policy_check) };
        let Some(charge) = item.charge() else { return true };
        match self.charge_bucket(&charge, now) {
            Some(charged) => {
                *item.outcome() = charged;
                true
            }
            None => self.charge_single(item, now, policy_check),
        }
    }

    /// Prefetches the cache lines of a key that will be charged soon.
    #[inline]
    pub fn prefetch(&self, fingerprint: Fingerprint) {
        self.candidates(fingerprint);
    }

    /// The number of keys that have not expired at `now`; expired slots are free. Scans every entry.
    pub fn live_keys(&self, now: Time) -> usize {
        (0..SHARDS).map(|n| self.shard_context(n, now).live_entries(&self.lock(n)).count()).sum()
    }

    /// A single charge that is not [the most common one](Self::charge_bucket).
    #[inline(never)]
    fn charge_single(&self, item: &mut impl ChargeItem, now: Time, policy_check: &PolicyCheck<'_>) -> bool {
        let Some(charge) = item.charge() else { return true };
        let is_enforced = charge.enforcement == Enforcement::Enforced;
        let limit = self.run(&charge, charge_op_kind(&charge), now, policy_check);
        let limit = limit.unwrap_or_else(|| policy_check.note_replaced());
        *item.outcome() = limit;
        limit.decision.is_allowed() || !is_enforced
    }

    /// The most common operation, inlined: a stored bucket is charged. `None` if it is not.
    #[inline(always)]
    fn charge_bucket(&self, charge: &ChargeRef<'_>, now: Time) -> Option<LimitOutcome> {
        let Quota::Bucket(meter) = charge.quota else { return None };
        let op = ChargeOp { quota: charge.quota, cost: charge.cost, kind: ChargeOpKind::Charge, now };
        let slot = self.find(charge.fingerprint)?;
        let now_units = meter.units_at(now);
        let mut loaded = slot.load_unconfirmed();
        while tag_matches(loaded.tag(), charge.fingerprint) && class_number(loaded.tag()) != WIDE {
            let (decision, next) = meter.try_charge_units(loaded.state(), now_units, charge.cost)?;
            match self.region.change(slot, || slot.cas_state(loaded, next)) {
                Ok(()) => return Some(op.charged_bucket(meter, decision, next)),
                Err(current) => loaded = current, // lost the race: retry on the new value
            }
        }
        None
    }

    /// `None` if the key is new and its limit is no longer in force.
    fn run(
        &self,
        charge: &ChargeRef<'_>,
        kind: ChargeOpKind,
        now: Time,
        policy_check: &PolicyCheck<'_>,
    ) -> Option<LimitOutcome> {
        let op = ChargeOp { quota: charge.quota, cost: charge.cost, kind, now };
        self.run_key(charge.fingerprint, &op, charge.predecessors, policy_check)
    }

    /// Runs an operation on a key, given its lines, which may be stale.
    #[inline(always)]
    fn run_candidates(
        &self,
        candidates: CandidateLines<'_>,
        op: &ChargeOp<'_>,
        predecessors: &[Predecessor],
        policy_check: &PolicyCheck<'_>,
    ) -> Option<LimitOutcome> {
        let fingerprint = candidates.fingerprint();
        let found = match candidates.slot() {
            Some(slot) if class_number(slot.tag()) == WIDE => self.run_wide_slot(slot, fingerprint, op),
            Some(slot) => self.run_packed_slot(slot, fingerprint, op),
            None => None,
        };
        found.or_else(|| self.run_locked(fingerprint, op, predecessors, policy_check))
    }

    /// Runs an operation on a wide state, in the slot where a lock-free lookup has found it. `None` if the slot was
    /// reused since.
    #[inline(always)]
    fn run_wide_slot(
        &self,
        slot: &Slot,
        fingerprint: Fingerprint,
        op: &ChargeOp<'_>,
    ) -> Option<LimitOutcome> {
        let n = shard_of(fingerprint);
        let mut inner = self.lock(n);
        // Not torn if it is wide: the slot of a wide state changes under the lock only.
        let (tag, word) = slot.load_unconfirmed().entry();
        if class_number(tag) != WIDE || !tag_matches(tag, fingerprint) {
            return None;
        }
        let outcome = self.run_wide(&mut inner, n, word, op);
        if op.has_changed(&outcome) {
            self.region.mark(slot);
        }
        Some(outcome)
    }

    /// Runs an operation on a stored packed state, without a lock. `None`: the slow path decides.
    #[inline]
    fn run_packed(&self, fingerprint: Fingerprint, op: &ChargeOp<'_>) -> Option<LimitOutcome> {
        self.run_packed_slot(self.find(fingerprint)?, fingerprint, op)
    }

    /// As above, in the slot where a lookup has found the key.
    #[inline]
    fn run_packed_slot(
        &self,
        slot: &Slot,
        fingerprint: Fingerprint,
        op: &ChargeOp<'_>,
    ) -> Option<LimitOutcome> {
        match op.quota {
            Quota::Bucket(meter) => {
                let run = |class_no, full_at| {
                    (class_no != WIDE).then(|| op.run_bucket(meter, full_at).into_parts())
                };
                try_packed(&self.region, slot, fingerprint, run)
            }
            _ => try_packed(&self.region, slot, fingerprint, |class_no, word| {
                Some(self.classes.summary(class_no)?.run(word, op)?.into_parts())
            }),
        }
    }

    /// The slow path, under the lock: keys that are new, wide, moving, or have a predecessor.
    #[cold]
    fn run_locked(
        &self,
        fingerprint: Fingerprint,
        op: &ChargeOp<'_>,
        predecessors: &[Predecessor],
        policy_check: &PolicyCheck<'_>,
    ) -> Option<LimitOutcome> {
        if self.classes.is_due() {
            self.collect_classes(op.now);
        }
        let mut locked = self.lock_all(fingerprint, predecessors);
        let n = shard_of(fingerprint);
        let shard = self.shard_context(n, op.now);
        let quota = op.quota;
        let now = op.now;
        while let Some(slot) = shard.find_locked(fingerprint) {
            let loaded = slot.load();
            let (tag, word) = loaded.entry();
            if class_number(tag) == WIDE {
                let outcome = self.run_wide(locked.inner(n), n, word, op);
                if op.has_changed(&outcome) {
                    self.region.mark(slot);
                }
                return Some(outcome);
            }
            let class = self.classes.get(class_number(tag));
            match class.and_then(|class| class.run(word, op)) {
                Some(run) => match run.next {
                    Some(next) if slot.cas_state(loaded, next).is_err() => {}
                    _ => {
                        self.region.mark(slot);
                        return Some(run.outcome);
                    }
                },
                // The state has outgrown its slot, or its limit was changed.
                None if class.is_some_and(|class| SlotEncoding::of(quota) == Some(class.encoding)) => {
                    let at = (slot, loaded);
                    if let Some(outcome) = self.run_replaced(locked.inner(n), &shard, at, fingerprint, op) {
                        return Some(outcome);
                    }
                }
                // The owner collides with that of a key whose states have another encoding: the slot is reused.
                None => {
                    locked.inner(n).take(slot);
                    return Some(self.run_new(locked.inner(n), &shard, fingerprint, op));
                }
            }
        }
        if !policy_check.is_current() {
            return None;
        }
        let inherited = predecessors.iter().find_map(|predecessor| {
            let n = shard_of(predecessor.fingerprint);
            let state = locked.inner(n).take_state(&self.shard_context(n, now), predecessor.fingerprint)?;
            Some((predecessor, state))
        });
        Some(match inherited {
            Some((predecessor, state)) => {
                self.run_inherited(&mut locked, fingerprint, predecessor, state, op)
            }
            None => self.run_new(locked.inner(n), &shard, fingerprint, op),
        })
    }

    /// Runs a quota on the first state of a new key, and stores it.
    fn run_new(
        &self,
        inner: &mut ShardInner,
        shard: &ShardContext<'_>,
        fingerprint: Fingerprint,
        op: &ChargeOp<'_>,
    ) -> LimitOutcome {
        let mut state = inner.evicted_fractions.first_state(op.quota, op.now);
        let outcome = op.run_state(&mut state);
        let pressure = inner.insert(shard, fingerprint, op.quota, state);
        self.count_pressure(&pressure);
        if pressure.unstored == 0 || outcome.grant.is_none() {
            outcome
        } else {
            self.charge_without_entry(inner, outcome, op)
        }
    }

    fn shard_context(&self, n: usize, now: Time) -> ShardContext<'_> {
        let region = &self.region;
        ShardContext {
            region,
            table: &self.tables[n],
            lines: region.shard_lines(n),
            classes: &self.classes,
            now,
        }
    }

    fn lock(&self, n: usize) -> MutexGuard<'_, ShardInner> {
        lock(&self.shards[n].0)
    }

    fn find(&self, fingerprint: Fingerprint) -> Option<&Slot> {
        self.candidates(fingerprint).slot()
    }

    fn lock_all(&self, fingerprint: Fingerprint, predecessors: &[Predecessor]) -> ShardGuards<'_> {
        if predecessors.is_empty() {
            return ShardGuards::One(self.lock(shard_of(fingerprint)));
        }
        let all = predecessors.iter().map(|predecessor| predecessor.fingerprint).chain([fingerprint]);
        let mut wanted: SmallVec<[usize; 4]> = all.map(shard_of).collect();
        wanted.sort_unstable(); // one lock order for all requests: no deadlock
        wanted.dedup();
        ShardGuards::Several(wanted.into_iter().map(|n| (n, self.lock(n))).collect())
    }

    fn count_pressure(&self, pressure: &PressureCounts) {
        if pressure.evicted > 0 {
            self.evicted.fetch_add(pressure.evicted, Ordering::Relaxed);
        }
        if pressure.unstored > 0 {
            self.unstored.fetch_add(pressure.unstored, Ordering::Relaxed);
        }
        if pressure.coarsened > 0 {
            self.coarsened.fetch_add(pressure.coarsened, Ordering::Relaxed);
        }
    }
}

/// Runs an operation on the packed state of a key, and retries until its result is valid: a CAS has replaced the state
/// that it was run on or, if nothing changes, the state was confirmed. `run` returns its result and the next state.
/// `None` if the slot is not that of the key any more, or if `run` does not handle its class.
#[inline(always)]
fn try_packed<R>(
    region: &Region,
    slot: &Slot,
    fingerprint: Fingerprint,
    run: impl Fn(u16, u64) -> Option<(R, Option<u64>)>,
) -> Option<R> {
    let mut loaded = slot.load_unconfirmed();
    while tag_matches(loaded.tag(), fingerprint) {
        let (outcome, next) = run(class_number(loaded.tag()), loaded.state())?;
        let result = match next {
            Some(next) => region.change(slot, || slot.cas_state(loaded, next)),
            None => slot.confirm(loaded),
        };
        match result {
            Ok(()) => return Some(outcome),
            Err(current) => loaded = current, // lost the race: retry on the new value
        }
    }
    None
}

fn charge_op_kind(charge: &ChargeRef<'_>) -> ChargeOpKind {
    match charge.denied_hits {
        DeniedHits::Free => ChargeOpKind::Charge,
        DeniedHits::Counted => ChargeOpKind::ChargeOrDrain,
    }
}

const SHARD_SHIFT: u32 = 64 - SHARDS.ilog2();

#[inline]
fn shard_of(fingerprint: Fingerprint) -> usize {
    (fingerprint.0 >> SHARD_SHIFT) as usize
}

/// The lowest fingerprint of a shard.
fn first_fingerprint(shard: usize) -> Fingerprint {
    Fingerprint((shard as u64) << SHARD_SHIFT)
}

/// The shards of a key and its predecessors.
enum ShardGuards<'a> {
    One(MutexGuard<'a, ShardInner>),
    /// Locked in ascending order.
    Several(Vec<(usize, MutexGuard<'a, ShardInner>)>),
}

impl ShardGuards<'_> {
    fn inner(&mut self, n: usize) -> &mut ShardInner {
        match self {
            ShardGuards::One(inner) => inner,
            ShardGuards::Several(shards) => {
                let shard = shards.iter_mut().find(|(shard, _)| *shard == n);
                &mut shard.expect("the shards of a key and its predecessors are locked").1
            }
        }
    }
}
