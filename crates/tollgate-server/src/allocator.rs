//! The allocator of static builds, and memory maintenance after a long job: returns free memory to the system, and moves
//! the heap to huge pages.
//!
//! Maintenance neither reads nor writes memory that is in use. It takes time and does not belong on the request path.

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Returns free memory to the system; the allocator would keep it for later allocations.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> i32;
        }
        // SAFETY: a function of the C library; it takes its own locks and may be called at any time.
        unsafe { malloc_trim(0) };
    }
    #[cfg(target_env = "musl")]
    {
        unsafe extern "C" {
            fn mi_collect(force: bool);
        }
        // SAFETY: a function of the allocator; it may be called by any thread at any time.
        unsafe { mi_collect(true) };
    }
}

/// Asks the kernel to move the heap to huge pages where nearly all of such a page is resident already: decisions with a
/// million rules then have fewer TLB misses. Linux 6.1 and later; has no effect elsewhere.
pub fn use_huge_pages() {
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    huge_pages::collapse();
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod huge_pages {
    use std::fs;
    use std::ops::Range;

    /// The size of a huge page on x86-64, and on ARM with pages of 4 KiB.
    const HUGE: usize = 2 << 20;
    /// The smallest page size.
    const PAGE: usize = 4 << 10;
    /// Up to this many small pages of a huge page may be missing; they become resident.
    const MAX_MISSING: usize = 4;
    /// After this many failures the kernel does not support it, or has no huge page left.
    const MAX_FAILURES: usize = 8;
    /// From `linux/mman.h`.
    const MADV_COLLAPSE: i32 = 25;

    unsafe extern "C" {
        fn mincore(address: usize, length: usize, resident: *mut u8) -> i32;
        fn madvise(address: usize, length: usize, advice: i32) -> i32;
    }

    pub(super) fn collapse() {
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mut failures = 0;
        for page in maps.lines().filter_map(private_memory).flat_map(huge_pages) {
            // SAFETY: this changes how memory is mapped, never its contents; a range that is no longer mapped is an
            // error.
            if is_resident(page) && unsafe { madvise(page, HUGE, MADV_COLLAPSE) } != 0 {
                failures += 1;
            }
            if failures == MAX_FAILURES {
                return;
            }
        }
    }

    /// The range of a line, if it is private anonymous memory.
    fn private_memory(line: &str) -> Option<Range<usize>> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let is_writable = words.next() == Some("rw-p");
        let name = words.nth(3);
        let address = |text| usize::from_str_radix(text, 16).ok();
        let is_heap = name.is_none_or(|name| name == "[heap]" || name.starts_with("[anon"));
        (is_writable && is_heap).then_some(address(start)?..address(end)?)
    }

    /// The addresses of the huge pages within a range.
    fn huge_pages(range: Range<usize>) -> impl Iterator<Item = usize> {
        let first = range.start.next_multiple_of(HUGE);
        (first..range.end).step_by(HUGE).take_while(move |page| page + HUGE <= range.end)
    }

    fn is_resident(page: usize) -> bool {
        let mut resident = [0; HUGE / PAGE];
        // SAFETY: the kernel writes at most one byte for each page.
        let known = unsafe { mincore(page, HUGE, resident.as_mut_ptr()) } == 0;
        known && resident.iter().filter(|state| **state & 1 == 0).count() <= MAX_MISSING
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn anonymous_memory_is_distinguished_from_other_mappings() {
            let line = "7f21c0000000-7f21c3e21000 rw-p 00000000 00:00 0 ";
            assert_eq!(private_memory(line), Some(0x7f21_c000_0000..0x7f21_c3e2_1000));
            let line = "55d0a0000000-55d0a0021000 rw-p 00000000 00:00 0                    [heap]";
            assert_eq!(private_memory(line), Some(0x55d0_a000_0000..0x55d0_a002_1000));
            for line in [
                "7ffd1c000000-7ffd1c021000 rw-p 00000000 00:00 0 [stack]",
                "7f21c0000000-7f21c3e21000 r--p 00000000 00:00 0",
                "7f21c0000000-7f21c3e21000 rw-s 00000000 00:00 0",
                "7f21c0000000-7f21c3e21000 rw-p 00002000 08:01 77 /usr/lib/libc.so.6",
                "",
            ] {
                assert_eq!(private_memory(line), None, "{line}");
            }
        }

        #[test]
        fn a_heap_in_huge_pages_holds_what_it_held() {
            let memory: Vec<u64> = (0..1 << 20).collect();
            collapse();
            assert!(memory.iter().copied().eq(0..1 << 20));
        }
    }
}
