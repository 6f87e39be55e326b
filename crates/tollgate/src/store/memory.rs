//! Counters in memory: sharded, bounded in bytes, expiring without a sweeper.
//!
//! A request locks the shards of all its keys, in order, decides, and then charges all or none; nobody
//! sees the state in between. It knows fingerprints only: no rules, no identities.

use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use crate::algorithm::{Algorithm, Grant, Quota, State};
use crate::fingerprint::Fingerprint;
use crate::store::{Charge, DeniedHits, Outcome, Part, Receipt, Weight};
use crate::sync::{Mutex, MutexGuard, lock};
use crate::time::Time;

mod packed;
mod shard;
mod slab;
mod snapshot;

use packed::Classes;
use shard::Shard;

pub(crate) const SHARDS: usize = 64;

/// The memory store. All its operations are atomic, and none can fail.
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    classes: Classes,
    cap_bytes: usize,
    evicted: AtomicU64,
    unstored: AtomicU64,
}

/// What the store holds and has let go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    pub keys: u64,
    pub bytes: u64,
    pub cap_bytes: u64,
    /// Live entries that made room for one with more debt.
    pub evicted: u64,
    /// Charges decided but not kept, because everything around them owed as much or more.
    pub unstored: u64,
}

impl MemoryStore {
    /// Below this a shard could not hold a key.
    pub const MIN_BYTES: usize = 1 << 20;

    /// A store that holds at most `cap_bytes` (at least a mebibyte).
    pub fn new(cap_bytes: usize) -> MemoryStore {
        let cap_bytes = cap_bytes.max(Self::MIN_BYTES);
        let shards = (0..SHARDS).map(|_| Mutex::new(Shard::new(cap_bytes / SHARDS))).collect();
        let (evicted, unstored) = (AtomicU64::new(0), AtomicU64::new(0));
        MemoryStore { shards, classes: Classes::default(), cap_bytes, evicted, unstored }
    }

    /// Decides all charges of one request and takes all or none.
    pub fn charge(&self, charges: &[Charge], now: Time) -> Outcome {
        let mut locked = self.lock_all(charges);
        let mut states = self.states(&locked, charges, now);
        let (admitted, mut parts) = decide(charges, &states, now);
        for ((charge, part), state) in charges.iter().zip(&mut parts).zip(&mut states) {
            let passes = admitted && part.decision.is_allowed();
            let drains = !part.decision.is_allowed() && charge.denied == DeniedHits::Counted;
            if !passes && !drains {
                continue;
            }
            if passes {
                charge.quota.charge(state, now, charge.cost);
                let mark = charge.quota.mark(state);
                part.grant = Some(Grant { at: now, cost: charge.cost, mark });
                part.remaining = part.decision.left.saturating_sub(charge.cost);
            } else {
                charge.quota.drain(state, now, charge.cost);
                part.decision = charge.quota.decide(state, now, charge.cost); // the wait has grown
                part.remaining = part.decision.left;
            }
            part.reset_after = charge.quota.fresh_at(state).since(now);
            for predecessor in &charge.previous {
                locked.shard(predecessor.fingerprint).remove(predecessor.fingerprint);
            }
            self.put(&mut locked, charge.fingerprint, &charge.quota, state, now);
        }
        Outcome { admitted, parts }
    }

    /// Decides as [`charge`](Self::charge) would, and changes nothing.
    pub fn peek(&self, charges: &[Charge], now: Time) -> Outcome {
        let locked = self.lock_all(charges);
        let states = self.states(&locked, charges, now);
        let (admitted, parts) = decide(charges, &states, now);
        Outcome { admitted, parts }
    }

    /// Gives the charges of a receipt back, as far as time has not.
    pub fn refund(&self, receipt: Receipt, now: Time) {
        self.settle(receipt, 0, now);
    }

    /// Corrects the hit's cost after the fact: the difference is given back, or owed.
    pub fn settle(&self, receipt: Receipt, real_cost: u64, now: Time) {
        for item in receipt.items {
            let (quota, grant) = (item.quota, item.grant);
            let real_cost = item.unit_cost.saturating_mul(real_cost);
            self.update(item.fingerprint, &quota, now, |state| match real_cost.checked_sub(grant.cost) {
                Some(more) => quota.owe(state, now, more),
                None => quota.refund(state, &grant, grant.cost - real_cost, now),
            });
        }
    }

    /// The state that a charge would find.
    pub fn state_of(&self, charge: &Charge, now: Time) -> State {
        let locked = self.lock_all(std::slice::from_ref(charge));
        self.state(&locked, charge, now)
    }

    /// Forgets a key; says whether it was there.
    pub fn reset(&self, fingerprint: Fingerprint) -> bool {
        lock(&self.shards[shard_of(fingerprint)]).remove(fingerprint)
    }

    pub fn usage(&self) -> Usage {
        let mut usage = Usage {
            cap_bytes: self.cap_bytes as u64,
            evicted: self.evicted.load(Ordering::Relaxed),
            unstored: self.unstored.load(Ordering::Relaxed),
            ..Usage::default()
        };
        for shard in &self.shards {
            let shard = lock(shard);
            usage.keys += shard.entries() as u64;
            usage.bytes += shard.bytes() as u64;
        }
        usage
    }

    fn lock_all(&self, charges: &[Charge]) -> Locked<'_> {
        let mut wanted: SmallVec<[usize; 8]> = SmallVec::new();
        for charge in charges {
            wanted.push(shard_of(charge.fingerprint));
            wanted.extend(charge.previous.iter().map(|previous| shard_of(previous.fingerprint)));
        }
        wanted.sort_unstable(); // one order for all: no two requests wait for each other
        wanted.dedup();
        Locked(wanted.into_iter().map(|n| (n, lock(&self.shards[n]))).collect())
    }

    fn states(&self, locked: &Locked<'_>, charges: &[Charge], now: Time) -> SmallVec<[State; 4]> {
        charges.iter().map(|charge| self.state(locked, charge, now)).collect()
    }

    fn state(&self, locked: &Locked<'_>, charge: &Charge, now: Time) -> State {
        let find = |fingerprint| locked.get(fingerprint).get(&self.classes, fingerprint);
        if let Some(state) = find(charge.fingerprint) {
            return state;
        }
        let inherited = charge
            .previous
            .iter()
            .find_map(|previous| Some(charge.quota.adopt(&previous.quota, find(previous.fingerprint)?, now)));
        inherited.unwrap_or_else(|| charge.quota.fresh())
    }

    fn update(&self, fingerprint: Fingerprint, quota: &Quota, now: Time, change: impl FnOnce(&mut State)) {
        let n = shard_of(fingerprint);
        let mut locked = Locked(SmallVec::from_iter([(n, lock(&self.shards[n]))]));
        let found = locked.get(fingerprint).get(&self.classes, fingerprint);
        let mut state = found.unwrap_or_else(|| quota.fresh());
        change(&mut state);
        self.put(&mut locked, fingerprint, quota, &state, now);
    }

    fn put(
        &self,
        locked: &mut Locked<'_>,
        fingerprint: Fingerprint,
        quota: &Quota,
        state: &State,
        now: Time,
    ) {
        let kept = locked.shard(fingerprint).put(&self.classes, fingerprint, quota, state, now);
        self.evicted.fetch_add(kept.evicted, Ordering::Relaxed);
        self.unstored.fetch_add(kept.unstored, Ordering::Relaxed);
    }
}

/// Whether all enforced charges pass, and the answer to each as it would be if nothing is charged.
fn decide(charges: &[Charge], states: &[State], now: Time) -> (bool, SmallVec<[Part; 4]>) {
    let mut admitted = true;
    let parts = charges
        .iter()
        .zip(states)
        .map(|(charge, state)| {
            let decision = charge.quota.decide(state, now, charge.cost);
            admitted &= decision.is_allowed() || charge.weight == Weight::Shadow;
            let reset_after = charge.quota.fresh_at(state).since(now);
            Part { decision, remaining: decision.left, reset_after, grant: None }
        })
        .collect();
    (admitted, parts)
}

fn shard_of(fingerprint: Fingerprint) -> usize {
    (fingerprint.0 >> (64 - SHARDS.ilog2())) as usize
}

/// The shards of one request, locked in ascending order.
struct Locked<'a>(SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>);

impl Locked<'_> {
    fn at(&self, fingerprint: Fingerprint) -> usize {
        let wanted = shard_of(fingerprint);
        self.0.iter().position(|(n, _)| *n == wanted).expect("the shards of all charges are locked")
    }

    fn get(&self, fingerprint: Fingerprint) -> &Shard {
        &self.0[self.at(fingerprint)].1
    }

    fn shard(&mut self, fingerprint: Fingerprint) -> &mut Shard {
        let at = self.at(fingerprint);
        &mut self.0[at].1
    }
}
