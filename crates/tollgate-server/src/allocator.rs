//! Memory that a long job has left free goes back to the system: the allocator would keep it for the next one.

/// Takes as long as there is memory to look through: not for the path of a request.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> i32;
        }
        // SAFETY: the C library's own function; it takes its locks itself and may be called at any time.
        unsafe { malloc_trim(0) };
    }
}
