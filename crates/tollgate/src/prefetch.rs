//! Prefetching: loads that are issued together overlap.

pub(crate) const CACHE_LINE_BYTES: usize = 64;

/// Prefetches the cache lines of `bytes` bytes from `address`. Never dereferences it, so a stale address is allowed.
#[inline(always)]
pub(crate) fn prefetch_range(address: usize, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(tollgate_portable)))]
    for line in (0..bytes).step_by(CACHE_LINE_BYTES) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let line_address = std::ptr::without_provenance::<i8>(address.wrapping_add(line));
        // SAFETY: a prefetch has no visible effect and never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line_address) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(tollgate_portable))))]
    let _ = (address, bytes, CACHE_LINE_BYTES);
}
