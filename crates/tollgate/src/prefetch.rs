//! Memory that will be needed soon: what is asked for together is waited for once.

pub(crate) const CACHE_LINE_BYTES: usize = 64;

/// Asks for so many bytes from an address on. Nothing is read, so what was there may be gone by now.
#[inline(always)]
pub(crate) fn prefetch_range(address: usize, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(tollgate_portable)))]
    for line in (0..bytes).step_by(CACHE_LINE_BYTES) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let place = std::ptr::without_provenance::<i8>(address.wrapping_add(line));
        // SAFETY: a prefetch reads nothing that a program could see, and any address will do.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(tollgate_portable))))]
    let _ = (address, bytes, CACHE_LINE_BYTES);
}
