//! How much of its limit an entry has used. At the cap it decides which entries give way.
//!
//! Shares compare entries of all rules, whatever their periods and numbers. An entry that has used a quarter of its
//! limit or more gives way to none, so no flood displaces a client at its limit (I8).

/// A part of a limit, in sixty-fourths, rounded up. More than four limits are as good as four.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Share(u8);

impl Share {
    pub(super) const NONE: Share = Share(0);
    const WHOLE: Share = Share(64);
    /// A resident gives way if it has used less than one part in this many of what a newcomer has.
    const CLEARLY_MORE: u32 = 4;

    pub(super) fn of(used: u64, capacity: u64) -> Share {
        let parts = (u128::from(used) * u128::from(Self::WHOLE.0)).div_ceil(u128::from(capacity.max(1)));
        Share(u8::try_from(parts).unwrap_or(u8::MAX))
    }

    /// The byte that a wide entry keeps. Zero was written by versions that knew no shares: such an entry counts
    /// as one at its limit.
    pub(super) fn from_byte(byte: u8) -> Share {
        if byte == 0 { Self::WHOLE } else { Share(byte) }
    }

    pub(super) fn byte(self) -> u8 {
        self.0.max(1)
    }

    pub(super) fn gives_way_to(self, newcomer: Share) -> bool {
        u32::from(self.0) * Self::CLEARLY_MORE < u32::from(newcomer.min(Self::WHOLE).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_a_limit_gives_way_to_nothing() {
        let [fresh, quarter, whole, owed] = [1, 25, 100, 200].map(|used| Share::of(used, 100));
        assert!(fresh.gives_way_to(whole) && fresh.gives_way_to(quarter) && fresh.gives_way_to(owed));
        for newcomer in [fresh, quarter, whole, owed] {
            assert!(!quarter.gives_way_to(newcomer) && !whole.gives_way_to(newcomer));
        }
        assert!(Share::of(1, 1_000_000) > Share::NONE);
        assert_eq!(Share::from_byte(whole.byte()), whole);
    }
}
