//! Counters in memory: lock-free for keys that are there, bounded in bytes, expiring without a sweeper.
//!
//! A hit on a known key is one compare-and-swap of its slot; a denial writes nothing. New keys, growth
//! and wide states take the lock of a shard. Several charges are all taken or none: they are asked
//! first, then taken one by one, and given back if one of them is denied after all. In between others
//! may see a charge that does not last: they can be denied by it, never let through. The store knows
//! fingerprints only: no rules, no identities.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use crate::algorithm::{Algorithm, Quota, State};
use crate::changes::Changes;
use crate::fingerprint::Fingerprint;
use crate::limit::Limit;
use crate::store::{Charge, DeniedHits, Outcome, Part, Predecessor, Receipt, ReceiptItem, Weight};
use crate::sync::{Mutex, MutexGuard, lock};
use crate::time::Time;

mod aggregate;
mod changes;
mod classes;
mod collect;
mod full;
mod layout;
mod lone;
mod look;
mod moves;
mod packed;
mod region;
mod room;
mod saved;
mod shard;
mod share;
mod slab;
mod slot;
mod snapshot;
mod table;
mod together;
mod usage;

use aggregate::is_from_cell;
pub use aggregate::{CELLS, MemoryFull};
use classes::{Classes, WIDE};
pub(crate) use lone::{Asked, Lone, Spot};
use packed::{Demand, Form, Intent, Run};
use region::Region;
use room::Growth;
use shard::{Held, Kept, Replaced, Shape};
use slot::{Line, Slot};
pub(crate) use snapshot::{EntryReader, Expired};
pub(crate) use table::Place;
use table::{Table, belongs_to, kind_of};
pub(crate) use together::InForce;
pub use usage::Usage;

const SHARDS: usize = if cfg!(shuttle) { 2 } else { 64 };
/// A shard's lines are reserved up to its cap, as far as the bits of a tag name them; the model checker needs few.
const MAX_LINES: usize = if cfg!(shuttle) { 8 } else { 1 << 27 };

/// The memory store. All its operations are atomic, and none can fail.
pub struct MemoryStore {
    /// How much of its lines each shard uses; read with every decision, and seldom written.
    tables: [Table; SHARDS],
    region: Region,
    shapes: Box<[Padded<Mutex<Shape>>]>,
    classes: Classes,
    cap_bytes: usize,
    evicted: AtomicU64,
    unstored: AtomicU64,
    coarsened: AtomicU64,
    refused: AtomicU64,
    full: MemoryFull,
}

/// Alone on its cache line.
#[repr(align(64))]
struct Padded<T>(T);

impl MemoryStore {
    /// Below this a shard could not hold a key.
    pub const MIN_BYTES: usize = 1 << 20;

    /// A store that holds at most `cap_bytes` (at least a mebibyte).
    ///
    /// # Panics
    ///
    /// Where [`try_new`](Self::try_new) fails.
    pub fn new(cap_bytes: usize) -> MemoryStore {
        Self::try_new(cap_bytes).expect("the address space has room for the memory cap")
    }

    /// As [`new`](Self::new). Memory is reserved, not taken: that happens as keys come. Fails where the system
    /// does not give that much address space, and on an x86-64 processor without CMPXCHG16B or SSE4.1.
    pub fn try_new(cap_bytes: usize) -> io::Result<MemoryStore> {
        let cap_bytes = cap_bytes.max(Self::MIN_BYTES);
        let shard_bytes = cap_bytes / SHARDS;
        let lines = (shard_bytes / size_of::<Line>()).min(MAX_LINES);
        let region = Region::reserve(lines)?;
        Ok(MemoryStore {
            tables: std::array::from_fn(|_| Table::new(lines)),
            region,
            shapes: (0..SHARDS).map(|_| Padded(Mutex::new(Shape::new(shard_bytes)))).collect(),
            classes: Classes::new(lines * SHARDS),
            cap_bytes,
            evicted: AtomicU64::new(0),
            unstored: AtomicU64::new(0),
            coarsened: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            full: MemoryFull::default(),
        })
    }

    /// The least memory in which a key of this limit fits at its limit, in whole mebibytes. A store with less keeps
    /// it too, but coarser.
    pub fn least_bytes_for(limit: &Limit) -> usize {
        let state = Quota::new(limit).most_heap_bytes();
        let shard = Shape::least_bytes_for(state);
        shard
            .saturating_mul(SHARDS)
            .checked_next_multiple_of(1 << 20)
            .unwrap_or(usize::MAX)
            .max(Self::MIN_BYTES)
    }

    /// Says what becomes of new keys while memory is full.
    #[must_use]
    pub fn when_full(self, full: MemoryFull) -> MemoryStore {
        MemoryStore { full, ..self }
    }

    /// Notes from now on which keys change, if it is told to: for a log that is written while the store is in use.
    #[must_use]
    pub fn recording(mut self, changes: Changes) -> MemoryStore {
        if changes == Changes::Recorded {
            self.region.record_changes();
        }
        self
    }

    /// Decides all charges of one request and takes all or none.
    pub fn charge(&self, charges: &[Charge], now: Time) -> Outcome {
        self.charge_while(charges, now, &InForce::always())
    }

    /// As [`charge`](Self::charge), but only while the limits are in force. Where [`InForce`] says that they were replaced
    /// nothing is charged, and the outcome has no meaning.
    ///
    /// A state moves from the counter of a limit to that of its successor. A charge planned under the old limit would
    /// begin a second counter. So whether the limit is in force is asked under the lock of the shard before a counter is
    /// begun: the move takes the same lock, after the successor came into force.
    #[inline]
    pub(crate) fn charge_while(&self, charges: &[Charge], now: Time, in_force: &InForce<'_>) -> Outcome {
        if let [charge] = charges {
            let part = self.run(charge, intent(charge), now, in_force);
            let part = part.unwrap_or_else(|| in_force.replaced());
            let admitted = part.decision.is_allowed() || charge.weight == Weight::Shadow;
            let mut parts = SmallVec::new();
            parts.push(part);
            return Outcome { admitted, parts };
        }
        // Asked first: a request that is denied charges nothing, not even for a moment (I3).
        let denies = |charge: &Charge| charge.weight == Weight::Enforced && !self.allows(charge, now);
        let mut outcome = if charges.iter().any(denies) {
            self.peek(charges, now)
        } else {
            Outcome { admitted: true, parts: SmallVec::from_elem(Part::UNASKED, charges.len()) }
        };
        if outcome.admitted {
            self.take_all(charges, &mut outcome, now, in_force);
        }
        if !outcome.admitted && !in_force.was_replaced() {
            self.drain_denied(charges, &mut outcome, now, in_force);
        }
        outcome
    }

    /// Brings the places of a key nearer, for those who will charge it soon.
    #[inline]
    pub fn prefetch(&self, fingerprint: Fingerprint) {
        self.place(fingerprint);
    }

    /// Gives the charges of a receipt back, as far as time has not.
    pub fn refund(&self, receipt: Receipt, now: Time) {
        self.settle(receipt, 0, now);
    }

    /// Corrects the hit's cost after the fact: the difference is given back, or owed.
    pub fn settle(&self, receipt: Receipt, real_cost: u64, now: Time) {
        receipt
            .items
            .iter()
            .for_each(|item| self.settle_item(item, item.unit_cost.saturating_mul(real_cost), now));
    }

    /// Forgets a key; says whether it was there.
    pub fn reset(&self, fingerprint: Fingerprint) -> bool {
        let n = shard_of(fingerprint);
        let mut shape = self.lock(n);
        let was_there = shape.remove(&self.held(n, Time::EPOCH), fingerprint);
        self.region.note_removed(fingerprint);
        was_there
    }

    /// How many keys still count at `now`; the room of all others is free. Looks at every entry.
    pub fn live_keys(&self, now: Time) -> usize {
        (0..SHARDS).map(|n| self.held(n, now).live(&self.lock(n)).count()).sum()
    }

    /// `None` if the key is new and its limit is not in force any more.
    fn run(&self, charge: &Charge, intent: Intent, now: Time, in_force: &InForce<'_>) -> Option<Part> {
        let demand = Demand { quota: &charge.quota, cost: charge.cost, intent, now };
        self.run_key(charge.fingerprint, &demand, &charge.previous, in_force)
    }

    fn run_key(
        &self,
        fingerprint: Fingerprint,
        demand: &Demand<'_>,
        previous: &[Predecessor],
        in_force: &InForce<'_>,
    ) -> Option<Part> {
        self.run_packed(fingerprint, demand)
            .or_else(|| self.run_locked(fingerprint, demand, previous, in_force))
    }

    /// Meets a demand on a packed state that is there, without a lock.
    #[inline]
    fn run_packed(&self, fingerprint: Fingerprint, demand: &Demand<'_>) -> Option<Part> {
        let place = self.place(fingerprint);
        match demand.quota {
            Quota::Bucket(meter) => {
                let run = |kind, full_at| (kind != WIDE).then(|| demand.run_bucket(meter, full_at));
                try_packed(&self.region, &place, run)
            }
            _ => try_packed(&self.region, &place, |kind, word| self.classes.brief(kind)?.run(word, demand)),
        }
    }

    /// The same for keys that are new, wide, or have a predecessor.
    #[cold]
    fn run_locked(
        &self,
        fingerprint: Fingerprint,
        demand: &Demand<'_>,
        previous: &[Predecessor],
        in_force: &InForce<'_>,
    ) -> Option<Part> {
        if self.classes.is_due() {
            self.collect_classes(demand.now);
        }
        let mut locked = self.lock_all(fingerprint, previous);
        let n = shard_of(fingerprint);
        let (held, quota, now) = (self.held(n, demand.now), demand.quota, demand.now);
        while let Some(slot) = held.look_again(fingerprint) {
            let seen = slot.load();
            let (tag, word) = seen.entry();
            if kind_of(tag) == WIDE {
                let part = self.run_wide(locked.shape(n), &held, word, demand);
                if demand.has_changed(&part) {
                    self.region.mark(slot);
                }
                return Some(part);
            }
            let class = self.classes.get(kind_of(tag));
            match class.and_then(|class| class.run(word, demand)) {
                Some(run) => match run.next {
                    Some(next) if slot.set(seen, next).is_err() => {}
                    _ => {
                        self.region.mark(slot);
                        return Some(run.part);
                    }
                },
                // The state has outgrown its slot, or its limit was changed.
                None if class.is_some_and(|class| Form::of(quota) == Some(class.form)) => {
                    let at = (slot, seen);
                    if let Some(part) = self.run_replaced(locked.shape(n), &held, at, fingerprint, demand) {
                        return Some(part);
                    }
                }
                // It belongs to another key with the same tag, which starts over.
                None => {
                    locked.shape(n).take(slot);
                    return Some(self.run_new(locked.shape(n), &held, fingerprint, quota.fresh(), demand));
                }
            }
        }
        if !in_force.holds() {
            return None;
        }
        let inherited = previous.iter().find_map(|previous| {
            let n = shard_of(previous.fingerprint);
            let state = locked.shape(n).take_state(&self.held(n, now), previous.fingerprint)?;
            Some(quota.adopt(&previous.quota, state, now))
        });
        let state = inherited.unwrap_or_else(|| quota.fresh());
        Some(self.run_new(locked.shape(n), &held, fingerprint, state, demand))
    }

    /// Runs a quota on a state that has no slot, and gives it one.
    fn run_new(
        &self,
        shape: &mut Shape,
        held: &Held<'_>,
        fingerprint: Fingerprint,
        mut state: State,
        demand: &Demand<'_>,
    ) -> Part {
        let part = demand.run_state(&mut state);
        let kept = shape.insert(held, fingerprint, demand.quota, state);
        self.count(&kept);
        if kept.unstored == 0 || part.grant.is_none() { part } else { self.run_unstored(shape, part, demand) }
    }

    fn settle_item(&self, item: &ReceiptItem, real_cost: u64, now: Time) {
        let (quota, grant) = (&item.quota, &item.grant);
        if is_from_cell(grant) {
            return self.lock(shard_of(item.fingerprint)).aggregate.settle(quota, grant, real_cost, now);
        }
        self.change(item.fingerprint, quota, now, |state| match real_cost.checked_sub(grant.cost) {
            Some(more) => quota.owe(state, now, more),
            None => quota.refund(state, grant, grant.cost - real_cost, now),
        });
    }

    /// Changes the state of a key, fresh if it is not there.
    fn change(&self, fingerprint: Fingerprint, quota: &Quota, now: Time, change: impl Fn(&mut State)) {
        let n = shard_of(fingerprint);
        let held = self.held(n, now);
        let mut shape = self.lock(n);
        let mut kept = Kept::default();
        while let Some(slot) = held.table.find(held.lines, fingerprint) {
            let seen = slot.load();
            let (tag, word) = seen.entry();
            if kind_of(tag) == WIDE {
                let Some(((), growth, kept)) = shape.change_wide(&held, word, quota, change) else { return };
                if growth == Growth::NoRoom {
                    shape.merge_steps(&held, word, quota);
                }
                self.region.mark(slot);
                return self.count(&kept);
            }
            let Some(class) = self.classes.get(kind_of(tag)) else { return };
            let mut state = class.form.layout().unpack(word);
            change(&mut state);
            if let Some(next) = class.form.layout().pack(&state) {
                match slot.set(seen, next) {
                    Ok(()) => return self.region.mark(slot),
                    Err(_) => continue, // charged meanwhile: look again
                }
            }
            let saturated = class.form.layout().pack_saturated(&state);
            match shape.replace(&held, (slot, seen), fingerprint, quota, state, &mut kept) {
                Replaced::Done => return self.count(&kept),
                Replaced::Raced => {}
                Replaced::NoRoom if saturated.is_none_or(|next| slot.set(seen, next).is_ok()) => {
                    self.region.mark(slot);
                    return self.count(&kept);
                }
                Replaced::NoRoom => {}
            }
        }
        let mut state = quota.fresh();
        change(&mut state);
        self.count(&kept);
        self.count(&shape.insert(&held, fingerprint, quota, state));
    }

    fn held(&self, n: usize, now: Time) -> Held<'_> {
        let region = &self.region;
        Held { region, table: &self.tables[n], lines: region.shard(n), classes: &self.classes, now }
    }

    fn lock(&self, n: usize) -> MutexGuard<'_, Shape> {
        lock(&self.shapes[n].0)
    }

    fn find(&self, fingerprint: Fingerprint) -> Option<&Slot> {
        self.place(fingerprint).slot()
    }

    fn lock_all(&self, fingerprint: Fingerprint, previous: &[Predecessor]) -> Locked<'_> {
        let all = previous.iter().map(|previous| previous.fingerprint).chain([fingerprint]);
        let mut wanted: SmallVec<[usize; 4]> = all.map(shard_of).collect();
        wanted.sort_unstable(); // one order for all: no two requests wait for each other
        wanted.dedup();
        Locked(wanted.into_iter().map(|n| (n, self.lock(n))).collect())
    }

    fn count(&self, kept: &Kept) {
        if kept.evicted > 0 {
            self.evicted.fetch_add(kept.evicted, Ordering::Relaxed);
        }
        if kept.unstored > 0 {
            self.unstored.fetch_add(kept.unstored, Ordering::Relaxed);
        }
        if kept.coarsened > 0 {
            self.coarsened.fetch_add(kept.coarsened, Ordering::Relaxed);
        }
    }
}

/// Acts on the packed state of a key. What came of it counts once the state that it was run on is replaced
/// by the next one, or still there if there is none. `None` if the key is not there, or not what `run`
/// expects.
#[inline]
fn try_packed(region: &Region, place: &Place<'_>, run: impl Fn(u16, u64) -> Option<Run>) -> Option<Part> {
    let slot = place.slot()?;
    let mut seen = slot.glance();
    while belongs_to(seen.tag(), place.fingerprint()) {
        let Run { part, next } = run(kind_of(seen.tag()), seen.state())?;
        let stands = match next {
            Some(next) => slot.set(seen, next).inspect(|()| region.mark(slot)),
            None => slot.confirm(seen),
        };
        match stands {
            Ok(()) => return Some(part),
            Err(now) => seen = now, // somebody was faster: act on what they left
        }
    }
    None
}

fn intent(charge: &Charge) -> Intent {
    match charge.denied {
        DeniedHits::Free => Intent::Take,
        DeniedHits::Counted => Intent::TakeOrDrain,
    }
}

const SHARD_AT: u32 = 64 - SHARDS.ilog2();

#[inline]
fn shard_of(fingerprint: Fingerprint) -> usize {
    (fingerprint.0 >> SHARD_AT) as usize
}

/// The lowest fingerprint of a shard.
fn first_fingerprint(shard: usize) -> Fingerprint {
    Fingerprint((shard as u64) << SHARD_AT)
}

/// The shards of a key and its predecessors, locked in ascending order.
struct Locked<'a>(SmallVec<[(usize, MutexGuard<'a, Shape>); 2]>);

impl Locked<'_> {
    fn shape(&mut self, n: usize) -> &mut Shape {
        let held = self.0.iter_mut().find(|(held, _)| *held == n);
        &mut held.expect("the shards of a key and its predecessors are locked").1
    }
}
