//! The floor: what the machine allows. A flat table of 16-byte entries, fingerprint and state.
//!
//! It is not a limiter: it cannot grow, forgets nothing, takes two keys of one fingerprint for one, and
//! has neither rules nor answers beyond yes and no.

use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ahash::RandomState;

use crate::contestant::{Allowance, BATCH, Contestant};
use crate::tsc::Ticks;

pub struct Floor {
    slots: Box<[Slot]>,
    hasher: RandomState,
    ticks: Ticks,
    /// Ticks that one hit costs, and that a burst may reach ahead.
    each: u64,
    span: u64,
}

#[derive(Default)]
#[repr(align(16))]
struct Slot {
    /// 0 is free.
    fingerprint: AtomicU64,
    /// When the bucket will be full again, in ticks.
    full_at: AtomicU64,
}

impl Floor {
    /// Two slots of three are taken when all keys are there.
    const SLOTS_PER_KEY: f64 = 1.5;
    const MIN_SLOTS: usize = 64;

    fn first_slot(&self, fingerprint: u64) -> usize {
        ((u128::from(fingerprint) * self.slots.len() as u128) >> 64) as usize
    }

    fn charge(&self, fingerprint: u64, cost: u64, now: u64) -> bool {
        let slot = self.find(fingerprint);
        let mut full_at = slot.full_at.load(Relaxed);
        loop {
            let next = full_at.max(now) + self.each * cost;
            if next > now + self.span {
                return false;
            }
            match slot.full_at.compare_exchange_weak(full_at, next, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(seen) => full_at = seen,
            }
        }
    }

    fn find(&self, fingerprint: u64) -> &Slot {
        let mut at = self.first_slot(fingerprint);
        for _ in 0..self.slots.len() {
            let slot = &self.slots[at];
            match slot.fingerprint.load(Relaxed) {
                found if found == fingerprint => return slot,
                0 => match slot.fingerprint.compare_exchange(0, fingerprint, Relaxed, Relaxed) {
                    Ok(_) => return slot,
                    Err(found) if found == fingerprint => return slot,
                    Err(_) => {}
                },
                _ => {}
            }
            at = if at + 1 == self.slots.len() { 0 } else { at + 1 };
        }
        unreachable!("the table was made for all keys")
    }
}

impl<K: Hash> Contestant<K> for Floor {
    fn new(allowance: Allowance, keys: usize) -> Self {
        let count = ((keys as f64 * Self::SLOTS_PER_KEY) as usize).max(Self::MIN_SLOTS);
        let ticks = Ticks::new();
        let day = ticks.per_second() * Allowance::DAY_S as f64;
        let each = (day / f64::from(allowance.per_day())) as u64;
        let span = each * u64::from(allowance.per_day());
        Floor {
            slots: (0..count).map(|_| Slot::default()).collect(),
            hasher: RandomState::new(),
            ticks,
            each,
            span,
        }
    }

    #[inline(always)]
    fn check(&self, key: &K) -> bool {
        self.charge(self.hasher.hash_one(key) | 1, 1, self.ticks.now())
    }

    fn admit(&self, key: &K, cost: u32) -> bool {
        self.charge(self.hasher.hash_one(key) | 1, u64::from(cost), self.ticks.now())
    }

    fn check_batch(&self, keys: &[K; BATCH]) -> usize {
        let now = self.ticks.now();
        let mut fingerprints = [0; BATCH];
        for (fingerprint, key) in fingerprints.iter_mut().zip(keys) {
            *fingerprint = self.hasher.hash_one(key) | 1;
            prefetch(&self.slots[self.first_slot(*fingerprint)]);
        }
        fingerprints.iter().filter(|fingerprint| self.charge(**fingerprint, 1, now)).count()
    }
}

fn prefetch(slot: &Slot) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that a program could see, and the address is valid.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(slot).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(slot);
}
