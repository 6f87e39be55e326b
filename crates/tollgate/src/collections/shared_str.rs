//! An immutable string behind one pointer with its reference count and length in front of the bytes.
//!
//! An `Arc<str>` takes two words inline and two more on the heap; this takes one, and 6 bytes on the heap. The one-word
//! pointers of crates (`triomphe::ThinArc`, `arcstr`) have 16 bytes of header. A million rules have several strings each.

use std::alloc::{self, Layout, handle_alloc_error};
use std::borrow::Borrow;
use std::cmp::Ordering as Order;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::mem;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Followed by the bytes.
#[repr(C)]
struct Header {
    count: AtomicU32,
    length: u16,
}

/// Where the bytes start: two bytes less a string are a 16-byte step of the allocator less for every eighth string.
const TEXT_OFFSET: usize = mem::offset_of!(Header, length) + size_of::<u16>();

pub struct SharedStr(NonNull<Header>);

// SAFETY: the bytes are never written after construction, and the count is atomic.
unsafe impl Send for SharedStr {}
// SAFETY: as above.
unsafe impl Sync for SharedStr {}

/// More references than this are a leak; the count must not wrap.
const MAX_COUNT: u32 = i32::MAX as u32;

impl SharedStr {
    pub fn new(text: &str) -> SharedStr {
        let length = u16::try_from(text.len()).expect("ids, paths, hosts and users of rules are bounded");
        let layout = layout(text.len());
        // SAFETY: the size of the layout is not zero.
        let memory = unsafe { alloc::alloc(layout) }.cast::<Header>();
        let Some(header) = NonNull::new(memory) else { handle_alloc_error(layout) };
        // SAFETY: the allocation has room for the header and the bytes, and is aligned for the header.
        unsafe {
            header.write(Header { count: AtomicU32::new(1), length });
            // After the header: its padding is part of the text.
            let bytes = header.cast::<u8>().add(TEXT_OFFSET);
            ptr::copy_nonoverlapping(text.as_ptr(), bytes.as_ptr(), text.len());
        }
        SharedStr(header)
    }

    /// Whether another reference exists. `false` is stable if the caller has the only reference and does not clone it.
    pub(crate) fn is_shared(&self) -> bool {
        // Acquire pairs with the release of a reference dropped by another thread.
        self.header().count.load(Ordering::Acquire) > 1
    }

    /// The address, for a prefetch.
    pub(crate) fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }

    fn header(&self) -> &Header {
        // SAFETY: the allocation lives as long as a reference to it.
        unsafe { self.0.as_ref() }
    }
}

fn layout(length: usize) -> Layout {
    let header = Layout::new::<Header>();
    // At least the header, so that a reference to it covers nothing else.
    let size = header.size().max(TEXT_OFFSET + length);
    Layout::from_size_align(size, header.align()).expect("the length fits 16 bits")
}

impl Deref for SharedStr {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        let length = usize::from(self.header().length);
        // SAFETY: `new` copied `length` bytes of a string behind the header.
        unsafe {
            let bytes = std::slice::from_raw_parts(self.0.cast::<u8>().add(TEXT_OFFSET).as_ptr(), length);
            std::str::from_utf8_unchecked(bytes)
        }
    }
}

impl Clone for SharedStr {
    fn clone(&self) -> SharedStr {
        // Relaxed: this reference keeps the allocation alive while the new one is made.
        if self.header().count.fetch_add(1, Ordering::Relaxed) > MAX_COUNT {
            std::process::abort();
        }
        SharedStr(self.0)
    }
}

impl Drop for SharedStr {
    fn drop(&mut self) {
        // Release: reads through this reference happen before the memory is freed by the last one.
        if self.header().count.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        let layout = layout(self.len());
        // SAFETY: this was the last reference, and the layout is that of `new`.
        unsafe { alloc::dealloc(self.0.as_ptr().cast(), layout) };
    }
}

impl From<&str> for SharedStr {
    fn from(text: &str) -> SharedStr {
        SharedStr::new(text)
    }
}

impl Borrow<str> for SharedStr {
    fn borrow(&self) -> &str {
        self
    }
}

impl PartialEq for SharedStr {
    #[inline]
    fn eq(&self, other: &SharedStr) -> bool {
        self.0 == other.0 || **self == **other
    }
}

impl Eq for SharedStr {}

impl PartialOrd for SharedStr {
    fn partial_cmp(&self, other: &SharedStr) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl Ord for SharedStr {
    fn cmp(&self, other: &SharedStr) -> Order {
        (**self).cmp(&**other)
    }
}

impl Hash for SharedStr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Debug for SharedStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_string_survives_until_its_last_reference_is_dropped() {
        let text = SharedStr::new("api.example.com");
        assert!(!text.is_shared());
        thread::scope(|scope| {
            for _ in 0..4 {
                let mine = text.clone();
                scope.spawn(move || {
                    for _ in 0..1_000 {
                        let again = mine.clone();
                        assert_eq!(&*again, "api.example.com");
                    }
                });
            }
        });
        assert!(!text.is_shared());
        let other = text.clone();
        drop(text);
        assert_eq!((&*other, other.is_shared()), ("api.example.com", false));
    }

    #[test]
    fn it_compares_as_its_text_does_and_takes_one_word() {
        for text in ["", "a", "ü", &"long".repeat(100)] {
            assert_eq!(&*SharedStr::new(text), text);
            assert_eq!(SharedStr::new(text), SharedStr::new(text));
        }
        assert!(SharedStr::new("a") < SharedStr::new("b"));
        assert_eq!(size_of::<Option<SharedStr>>(), size_of::<usize>());
    }
}
