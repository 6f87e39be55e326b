//! Charges that meet a full store: states that cannot grow, and new keys without room.

use std::sync::atomic::Ordering;

use crate::algorithm::{Admission, Algorithm as _, Decision, Grant};
use crate::fingerprint::Fingerprint;
use crate::store::Part;
use crate::store::memory::packed::Demand;
use crate::store::memory::room::Growth;
use crate::store::memory::shard::{Held, Kept, Replaced, Shape};
use crate::store::memory::slot::{Seen, Slot};
use crate::store::memory::table::kind_of;
use crate::store::memory::{MemoryFull, MemoryStore};
use crate::time::Time;

impl MemoryStore {
    /// Decides on a charge that the limit allows to a key that found no room.
    pub(super) fn run_unstored(&self, shape: &mut Shape, part: Part, demand: &Demand<'_>) -> Part {
        let charged = match self.full {
            MemoryFull::Open => return part,
            MemoryFull::Aggregate => shape.aggregate.charge(demand.quota, demand.cost, demand.now),
            MemoryFull::Closed => Err(MemoryFull::CLOSED_RETRY),
        };
        match charged {
            Ok((left, mark)) => {
                let grant = part.grant.map(|grant| Grant { mark, ..grant });
                Part { remaining: left.min(part.remaining), grant, ..part }
            }
            Err(wait) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                no_room(demand.now + wait, demand.now)
            }
        }
    }

    /// What [`run_unstored`](Self::run_unstored) would come to.
    pub(super) fn look_unstored(&self, shape: &Shape, part: Part, demand: &Demand<'_>) -> Part {
        let left = match self.full {
            MemoryFull::Open => return part,
            MemoryFull::Aggregate => shape.aggregate.look(demand.quota, demand.cost, demand.now),
            MemoryFull::Closed => Err(MemoryFull::CLOSED_RETRY),
        };
        match left {
            Ok(left) => Part { remaining: left.min(part.remaining), ..part },
            Err(wait) => no_room(demand.now + wait, demand.now),
        }
    }

    /// Runs a quota on a packed state, and keeps what comes of it in another form; `None` if the slot was changed
    /// meanwhile. A state that finds no room in the slab stays as it was, and denies.
    pub(super) fn run_replaced(
        &self,
        shape: &mut Shape,
        held: &Held<'_>,
        (slot, seen): (&Slot, Seen),
        fingerprint: Fingerprint,
        demand: &Demand<'_>,
    ) -> Option<Part> {
        let (tag, word) = seen.entry();
        let class = self.classes.get(kind_of(tag))?;
        let mut state = class.form.layout().unpack(word);
        let part = demand.run_state(&mut state);
        let mut kept = Kept::default();
        let replaced = shape.replace(held, (slot, seen), fingerprint, demand.quota, state, &mut kept);
        self.count(&kept);
        match replaced {
            Replaced::Done => Some(part),
            Replaced::Raced => None,
            Replaced::NoRoom if part.grant.is_some() => Some(no_room(class.form.fresh_at(word), demand.now)),
            Replaced::NoRoom => Some(part),
        }
    }

    pub(super) fn run_wide(
        &self,
        shape: &mut Shape,
        held: &Held<'_>,
        place: u64,
        demand: &Demand<'_>,
    ) -> Part {
        let changed = shape.change_wide(held, place, demand.quota, |state| demand.run_state(state));
        let (part, growth, kept) = changed.expect("a wide slot has its state in the slab");
        self.count(&kept);
        if growth == Growth::Fits {
            return part;
        }
        let Some(grant) = part.grant else {
            shape.merge_steps(held, place, demand.quota); // a denial that counts
            return part;
        };
        let undone = shape.change_wide(held, place, demand.quota, |state| {
            demand.quota.refund(state, &grant, grant.cost, demand.now);
            state.shrink();
            demand.quota.fresh_at(state)
        });
        let (fresh_at, ..) = undone.expect("the state is still there");
        no_room(fresh_at, demand.now)
    }
}

/// The denial of a charge that would be allowed, if only its state could grow.
fn no_room(fresh_at: Time, now: Time) -> Part {
    let wait = fresh_at.since(now);
    let decision = Decision { admission: Admission::Deny { retry_after: wait }, left: 0 };
    Part { decision, remaining: 0, reset_after: wait, grant: None }
}
