//! A string that is stored inline while it is short: there may be a million of them, and each that lies elsewhere is
//! a cache miss.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use crate::rule::shared_str::SharedStr;

#[derive(Clone)]
pub struct Text(Kept);

#[derive(Clone)]
enum Kept {
    Inline { length: u8, bytes: [u8; Text::INLINE] },
    Shared(SharedStr),
}

impl Text {
    /// Longer ones are in the heap.
    const INLINE: usize = 14;

    /// The string in the heap, if it is there: several texts may share it.
    pub(crate) fn shared_mut(&mut self) -> Option<&mut SharedStr> {
        match &mut self.0 {
            Kept::Inline { .. } => None,
            Kept::Shared(text) => Some(text),
        }
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Text {
        if text.len() > Text::INLINE {
            return Text(Kept::Shared(text.into()));
        }
        let mut bytes = [0; Text::INLINE];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Text(Kept::Inline { length: text.len() as u8, bytes })
    }
}

impl Deref for Text {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        match &self.0 {
            // SAFETY: so many bytes were copied from a whole string.
            Kept::Inline { length, bytes } => unsafe {
                std::str::from_utf8_unchecked(bytes.get_unchecked(..usize::from(*length)))
            },
            Kept::Shared(text) => text,
        }
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        **self == **other
    }
}

impl Eq for Text {}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Text) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text {
    fn cmp(&self, other: &Text) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Debug for Text {
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
            assert_eq!(&*Text::from(text), text);
            for other in texts {
                assert_eq!(Text::from(text).cmp(&Text::from(other)), text.cmp(other));
                assert_eq!(Text::from(text) == Text::from(other), text == other);
            }
        }
        assert_eq!(size_of::<Option<Text>>(), 16);
    }
}
