//! A string that is stored inline while it is short: there may be a million of them, and each one on the heap is a
//! cache miss.
//!
//! Not `compact_str` (0.10): 24 bytes in every rule where this takes 16, and the interner could not share long ones.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use crate::collections::SharedStr;

#[derive(Clone)]
pub struct CompactText(TextRepr);

#[derive(Clone)]
enum TextRepr {
    Inline { length: u8, bytes: [u8; CompactText::INLINE] },
    Shared(SharedStr),
}

impl CompactText {
    /// Longer strings are on the heap.
    const INLINE: usize = 14;

    /// The string on the heap, if it is there: several texts may share it.
    pub(crate) fn shared_mut(&mut self) -> Option<&mut SharedStr> {
        match &mut self.0 {
            TextRepr::Inline { .. } => None,
            TextRepr::Shared(text) => Some(text),
        }
    }
}

impl From<&str> for CompactText {
    fn from(text: &str) -> CompactText {
        if text.len() > CompactText::INLINE {
            return CompactText(TextRepr::Shared(text.into()));
        }
        let mut bytes = [0; CompactText::INLINE];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        CompactText(TextRepr::Inline { length: text.len() as u8, bytes })
    }
}

impl Deref for CompactText {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        match &self.0 {
            // SAFETY: exactly `length` bytes were copied from a whole string.
            TextRepr::Inline { length, bytes } => unsafe {
                std::str::from_utf8_unchecked(bytes.get_unchecked(..usize::from(*length)))
            },
            TextRepr::Shared(text) => text,
        }
    }
}

impl PartialEq for CompactText {
    fn eq(&self, other: &CompactText) -> bool {
        **self == **other
    }
}

impl Eq for CompactText {}

impl PartialOrd for CompactText {
    fn partial_cmp(&self, other: &CompactText) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for CompactText {
    fn cmp(&self, other: &CompactText) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for CompactText {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Debug for CompactText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_all_lengths_come_back_and_compare_as_texts_do() {
        let long = "a".repeat(60) + "ü";
        let texts = ["", "a", "ann", "exactly-14-byt", "exactly-15-byte", &long];
        for text in texts {
            assert_eq!(&*CompactText::from(text), text);
            for other in texts {
                assert_eq!(CompactText::from(text).cmp(&CompactText::from(other)), text.cmp(other));
                assert_eq!(CompactText::from(text) == CompactText::from(other), text == other);
            }
        }
        assert_eq!(size_of::<Option<CompactText>>(), 16);
    }
}
