//! What a charge would find and come to, without making it.

use smallvec::SmallVec;

use crate::algorithm::{Algorithm as _, Quota, State};
use crate::store::memory::classes::WIDE;
use crate::store::memory::packed::{Demand, Intent};
use crate::store::memory::shard::{Held, Shape};
use crate::store::memory::table::{belongs_to, kind_of};
use crate::store::memory::{MemoryStore, shard_of};
use crate::store::{Charge, Outcome, Part, Weight};
use crate::time::Time;

/// A key that has no entry, in its shard.
struct New<'s> {
    shape: &'s Shape,
    held: Held<'s>,
}

impl MemoryStore {
    /// Decides as [`charge`](Self::charge) would, and changes nothing.
    pub fn peek(&self, charges: &[Charge], now: Time) -> Outcome {
        let mut outcome = Outcome { admitted: true, parts: SmallVec::new() };
        for charge in charges {
            let part = self.look(charge, now);
            outcome.admitted &= part.decision.is_allowed() || charge.weight == Weight::Shadow;
            outcome.parts.push(part);
        }
        outcome
    }

    /// The state that a charge would find.
    pub fn state_of(&self, charge: &Charge, now: Time) -> State {
        self.with_state(charge, now, |state, _| state.clone())
    }

    /// Whether a charge alone would be allowed.
    pub(super) fn allows(&self, charge: &Charge, now: Time) -> bool {
        if let Quota::Bucket(meter) = &charge.quota
            && let Some(slot) = self.find(charge.fingerprint)
        {
            let (tag, full_at) = slot.load().entry();
            if kind_of(tag) != WIDE && belongs_to(tag, charge.fingerprint) {
                return meter.decided(full_at, now, charge.cost).1.is_some();
            }
        }
        self.look(charge, now).decision.is_allowed()
    }

    pub(super) fn look(&self, charge: &Charge, now: Time) -> Part {
        let demand = Demand { quota: &charge.quota, cost: charge.cost, intent: Intent::Look, now };
        self.run_packed(charge.fingerprint, &demand).unwrap_or_else(|| {
            self.with_state(charge, now, |state, new| {
                let mut charged = state.clone();
                let part = demand.run_state(&mut charged);
                let Some(New { shape, held }) = new.filter(|_| part.decision.is_allowed()) else {
                    return part;
                };
                charge.quota.charge(&mut charged, now, charge.cost.max(1));
                match shape.has_room_for(&held, charge.fingerprint, &charge.quota, charged) {
                    true => part,
                    false => self.look_unstored(shape, part, &demand),
                }
            })
        })
    }

    /// Calls `look` with the state that a charge would find, and with its shard if the key has no entry.
    fn with_state<T>(
        &self,
        charge: &Charge,
        now: Time,
        look: impl FnOnce(&State, Option<New<'_>>) -> T,
    ) -> T {
        let n = shard_of(charge.fingerprint);
        if let Some(slot) = self.find(charge.fingerprint) {
            let seen = slot.load();
            let (tag, word) = seen.entry();
            if belongs_to(tag, charge.fingerprint)
                && let Some(brief) = self.classes.brief(kind_of(tag))
                && slot.confirm(seen).is_ok()
            {
                return look(&brief.layout.unpack(word), None);
            }
        }
        let mut locked = self.lock_all(charge.fingerprint, &charge.previous);
        if let Some(slot) = self.find(charge.fingerprint) {
            let entry = slot.load().entry();
            if let Some(wide) = locked.shape(n).wide(entry) {
                return look(&wide.state, None);
            }
            if let Some(class) = self.classes.get(kind_of(entry.0)) {
                return look(&class.form.layout().unpack(entry.1), None);
            }
        }
        let inherited = charge.previous.iter().find_map(|previous| {
            let n = shard_of(previous.fingerprint);
            let state = locked.shape(n).state(&self.held(n, now), previous.fingerprint)?;
            Some(charge.quota.adopt(&previous.quota, state, now))
        });
        let state = inherited.unwrap_or_else(|| charge.quota.fresh());
        look(&state, Some(New { shape: locked.shape(n), held: self.held(n, now) }))
    }
}
