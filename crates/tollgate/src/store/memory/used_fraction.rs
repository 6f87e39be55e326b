//! The fraction of its limit that an entry has used. At the cap it decides which entries are evicted.
//!
//! Fractions are comparable across rules, whatever their periods and numbers. An entry that has used a quarter of its
//! limit or more is never evicted by a new key, so no flood evicts a client at its limit (I8).

/// A fraction of a limit, in sixty-fourths, rounded up, and capped at four limits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct UsedFraction(u8);

impl UsedFraction {
    pub(super) const NONE: UsedFraction = UsedFraction(0);
    const FULL: UsedFraction = UsedFraction(64);
    /// The largest fraction that a new key evicts.
    pub(super) const MAX_EVICTABLE: UsedFraction = UsedFraction(15);
    /// An entry is evicted if the new one has used more than this many times its fraction.
    const EVICTION_RATIO: u32 = 4;

    #[inline]
    pub(super) fn of(used: u64, capacity: u64) -> UsedFraction {
        let capacity = capacity.max(1);
        let full = u64::from(Self::FULL.0);
        let parts = match used.checked_mul(full) {
            Some(product) => product.div_ceil(capacity),
            None => u64::try_from((u128::from(used) * u128::from(full)).div_ceil(u128::from(capacity)))
                .unwrap_or(u64::MAX),
        };
        UsedFraction(u8::try_from(parts).unwrap_or(u8::MAX))
    }

    /// As [`of`](Self::of), without a division if the fraction has not changed.
    #[inline]
    pub(super) fn updated(self, used: u64, capacity: u64) -> UsedFraction {
        let parts = used.checked_mul(u64::from(Self::FULL.0));
        let bound = capacity.checked_mul(u64::from(self.0));
        let below_bound = bound.zip(parts).and_then(|(bound, parts)| bound.checked_sub(parts));
        if below_bound.is_some_and(|below| below < capacity) { self } else { Self::of(used, capacity) }
    }

    /// The byte that a wide entry stores. Zero was written by versions that stored no fractions: such an entry is
    /// treated as one at its limit.
    pub(super) fn from_byte(byte: u8) -> UsedFraction {
        if byte == 0 { Self::FULL } else { UsedFraction(byte) }
    }

    pub(super) fn byte(self) -> u8 {
        self.0.max(1)
    }

    /// The tokens of a limit that the fraction stands for, rounded down: never less than what it was made of.
    pub(super) fn tokens(self, capacity: u64) -> u64 {
        let tokens = u128::from(self.0) * u128::from(capacity) / u128::from(Self::FULL.0);
        u64::try_from(tokens).unwrap_or(u64::MAX)
    }

    pub(super) fn is_evictable_by(self, new: UsedFraction) -> bool {
        u32::from(self.0) * Self::EVICTION_RATIO < u32::from(new.min(Self::FULL).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_a_quarter_of_their_limit_used_are_not_evicted() {
        let [fresh, quarter, whole, owed] = [1, 25, 100, 200].map(|used| UsedFraction::of(used, 100));
        assert!(
            fresh.is_evictable_by(whole) && fresh.is_evictable_by(quarter) && fresh.is_evictable_by(owed)
        );
        for new in [fresh, quarter, whole, owed] {
            assert!(!quarter.is_evictable_by(new) && !whole.is_evictable_by(new));
        }
        assert!(UsedFraction::of(1, 1_000_000) > UsedFraction::NONE);
        for capacity in [0, 1, 7, 63, 64, 65, 100, u64::MAX / 100, u64::MAX] {
            for used in [0, 1, 2, 6, 7, 8, 63, 64, 65, 99, 300, u64::MAX / 64, u64::MAX] {
                for before in 0..=u8::MAX {
                    let fraction = UsedFraction(before).updated(used, capacity);
                    assert_eq!(fraction, UsedFraction::of(used, capacity), "{before}, {used} of {capacity}");
                }
            }
        }
        assert_eq!(UsedFraction::from_byte(whole.byte()), whole);
    }
}
