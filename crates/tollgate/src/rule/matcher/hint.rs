//! Where something is in memory, in four bytes: enough to prefetch it.

use crate::prefetch;

/// Bits 4 to 35 of an address; the others are taken from an address nearby.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Hint(u32);

impl Hint {
    pub(super) const NONE: Hint = Hint(0);

    pub(super) fn at(address: usize) -> Hint {
        Hint((address >> 4) as u32)
    }

    /// `nearby` must be less than 2^35 bytes away from the target, or the prefetch is useless.
    #[inline]
    pub(super) fn prefetch(self, nearby: usize) {
        let distance = self.0.wrapping_sub((nearby >> 4) as u32) as i32;
        let address = (nearby & !0xf).wrapping_add_signed(distance as isize * 16);
        // A rule, or a text of usual length, is within two cache lines.
        prefetch::prefetch_range(address, prefetch::CACHE_LINE_BYTES + 1);
    }
}
