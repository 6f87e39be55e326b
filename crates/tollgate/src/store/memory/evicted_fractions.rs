//! The used fractions of evicted entries: new keys of the same limit begin with them.
//!
//! An entry that has used less than a quarter of its limit may be evicted. Without this a client could have itself
//! forgotten again and again, and use a quarter of its limit each time. So a shard remembers the largest used fraction
//! that it has evicted under a limit until that would have expired, and a new key starts there, which is stricter and never
//! looser: a key gets at most its limit and what it had used when it was first evicted.
//!
//! A limit is known here by what its entries tell: packed ones by their class; wide ones by the kind of their state, and
//! by the time until they expire, to a factor of two. Limits that are alike in that share a fraction.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::mem;

use crate::algorithm::{Algorithm as _, Quota, QuotaState};
use crate::store::memory::packed::Class;
use crate::store::memory::used_fraction::UsedFraction;
use crate::time::Time;

/// Limits whose fractions a shard remembers at the same time. Those of further limits apply to all limits.
const MAX_LIMITS: usize = 15;

/// The largest fraction that was evicted under one limit.
#[derive(Clone, Copy, PartialEq, Eq)]
struct EvictedFraction {
    limit: EvictedLimit,
    fraction: UsedFraction,
    expires_at: Time,
}

/// What is known of the limit of an evicted entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EvictedLimit {
    /// The hash of its class.
    Packed(u32),
    Wide {
        /// The hash of the kind of its state.
        state: u16,
        /// The logarithm of the nanoseconds that were left of it.
        life_log2: u8,
    },
    Any,
}

/// The fractions of a shard. All are allocated up front.
pub(super) struct EvictedFractions {
    fractions: [EvictedFraction; MAX_LIMITS],
    /// Those of limits that found no place.
    others: EvictedFraction,
    /// When the last of them expires.
    expires_at: Time,
}

impl EvictedFraction {
    const NONE: EvictedFraction =
        EvictedFraction { limit: EvictedLimit::Any, fraction: UsedFraction::NONE, expires_at: Time::EPOCH };

    /// The larger fraction and the later expiry of both.
    fn widen(&mut self, fraction: UsedFraction, expires_at: Time, now: Time) {
        if self.expires_at <= now {
            self.fraction = UsedFraction::NONE;
        }
        self.fraction = self.fraction.max(fraction.min(UsedFraction::MAX_EVICTABLE));
        self.expires_at = self.expires_at.max(expires_at);
    }
}

impl Default for EvictedFractions {
    fn default() -> Self {
        let none = EvictedFraction::NONE;
        EvictedFractions { fractions: [none; MAX_LIMITS], others: none, expires_at: Time::EPOCH }
    }
}

impl EvictedFractions {
    pub(super) const BYTES: usize = size_of::<EvictedFractions>();
    /// The least store has 16 KiB for a shard.
    const _SMALL: () = assert!(Self::BYTES <= 512);

    /// Remembers an evicted packed entry.
    pub(super) fn add_packed(&mut self, class: &Class, fraction: UsedFraction, expires_at: Time, now: Time) {
        self.add(packed(class), fraction, expires_at, now);
    }

    /// Remembers an evicted wide entry.
    pub(super) fn add_wide(
        &mut self,
        state: &QuotaState,
        fraction: UsedFraction,
        expires_at: Time,
        now: Time,
    ) {
        let life_log2 = nanos(expires_at, now).max(1).ilog2() as u8;
        self.add(EvictedLimit::Wide { state: kind(state), life_log2 }, fraction, expires_at, now);
    }

    fn add(&mut self, limit: EvictedLimit, fraction: UsedFraction, expires_at: Time, now: Time) {
        if expires_at <= now {
            return;
        }
        self.expires_at = self.expires_at.max(expires_at);
        let known = self.fractions.iter().position(|known| known.limit == limit && known.expires_at > now);
        let place = known.or_else(|| self.fractions.iter().position(|known| known.expires_at <= now));
        match place {
            Some(place) => {
                self.fractions[place].limit = limit;
                self.fractions[place].widen(fraction, expires_at, now);
            }
            None => self.others.widen(fraction, expires_at, now),
        }
    }

    /// The state that a new key of a quota begins with.
    #[inline]
    pub(super) fn first_state(&self, quota: &Quota, now: Time) -> QuotaState {
        if self.expires_at <= now { quota.fresh() } else { self.used_state(quota, now) }
    }

    #[cold]
    fn used_state(&self, quota: &Quota, now: Time) -> QuotaState {
        let mut state = quota.fresh();
        let class = Class::of(quota).map(|class| packed(&class));
        let kind = kind(&state);
        let mut filled = quota.fresh();
        quota.charge(&mut filled, now, quota.capacity());
        // A state that was evicted had no longer to live; the lives that are remembered are up to twice as long.
        let longest = nanos(quota.expires_at(&filled), now).saturating_mul(2);
        let applies = |evicted: &&EvictedFraction| match evicted.limit {
            _ if evicted.expires_at <= now => false,
            EvictedLimit::Packed(_) => class == Some(evicted.limit),
            EvictedLimit::Wide { state, .. } => state == kind && nanos(evicted.expires_at, now) <= longest,
            EvictedLimit::Any => true,
        };
        let fractions = self.fractions.iter().chain([&self.others]).filter(applies);
        let fraction = fractions.map(|evicted| evicted.fraction).max().unwrap_or(UsedFraction::NONE);
        match fraction.tokens(quota.capacity()) {
            0 => {}
            tokens => quota.charge(&mut state, now, tokens),
        }
        state
    }
}

fn nanos(until: Time, now: Time) -> u64 {
    until.nanos().saturating_sub(now.nanos())
}

fn packed(class: &Class) -> EvictedLimit {
    EvictedLimit::Packed(hash(class) as u32)
}

fn kind(state: &QuotaState) -> u16 {
    hash(&mem::discriminant(state)) as u16
}

fn hash(value: &impl std::hash::Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(value)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limit::{Limit, Shape};

    const NOW: Time = Time::from_secs(1_800_000_000);
    const DAY: Duration = Duration::from_secs(86_400);

    fn quota(rate: &str, shape: Shape) -> Quota {
        Quota::new(&Limit::new(rate.parse().expect("a rate"), shape).expect("a valid limit"))
    }

    fn evict(fractions: &mut EvictedFractions, quota: &Quota, used: u64, now: Time) {
        let mut state = quota.fresh();
        quota.charge(&mut state, now, used);
        let fraction = UsedFraction::of(used, quota.capacity());
        let expires_at = quota.expires_at(&state);
        match Class::of(quota) {
            Some(class) => fractions.add_packed(&class, fraction, expires_at, now),
            None => fractions.add_wide(&state, fraction, expires_at, now),
        }
    }

    fn used(fractions: &EvictedFractions, quota: &Quota, now: Time) -> u64 {
        quota.used(&fractions.first_state(quota, now), now)
    }

    #[test]
    fn a_new_key_begins_with_the_largest_fraction_until_it_would_have_expired() {
        for shape in [Shape::SlidingCounter, Shape::SlidingLog] {
            let mut fractions = EvictedFractions::default();
            let [daily, other] = ["100/d", "10/m"].map(|rate| quota(rate, shape));
            [7, 20, 3].iter().for_each(|used| evict(&mut fractions, &daily, *used, NOW));
            assert!((20..=25).contains(&used(&fractions, &daily, NOW)), "{shape:?}");
            assert_eq!(used(&fractions, &other, NOW), 0, "{shape:?}: another limit");
            assert_eq!(used(&fractions, &daily, NOW + DAY * 2), 0, "{shape:?}: by then it has expired");
        }
    }

    #[test]
    fn limits_beyond_the_bound_are_not_forgotten() {
        let mut fractions = EvictedFractions::default();
        let quotas: Vec<Quota> =
            (0..2 * MAX_LIMITS).map(|n| quota(&format!("100/{}s", 100 + n), Shape::SlidingCounter)).collect();
        quotas.iter().for_each(|quota| evict(&mut fractions, quota, 20, NOW));
        assert!(quotas.iter().all(|quota| used(&fractions, quota, NOW) >= 20));
    }
}
