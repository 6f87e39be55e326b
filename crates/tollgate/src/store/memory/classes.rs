//! The numbers of classes: a slot names its class by one.
//!
//! A number is a place in a hash table without deletions, so that a class is found in few steps and read without a
//! lock. Parts of the table are made when they are needed.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::OnceLock;

use crate::store::memory::packed::Class;
use crate::store::memory::slot::KIND_BITS;

/// The kind of a slot whose word is the place of its state in the slab.
pub(super) const WIDE: u16 = Classes::MAX as u16;
const CHUNK: usize = 16;

type Chunk = Box<[OnceLock<Class>; CHUNK]>;

pub(crate) struct Classes(Box<[OnceLock<Chunk>]>);

impl Default for Classes {
    fn default() -> Self {
        Classes((0..Self::MAX.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect())
    }
}

impl Classes {
    /// As many as the kind of a tag can name, beside wide entries and empty slots.
    pub(crate) const MAX: usize = (1 << KIND_BITS) - 2;

    /// The class's number, given on first sight; `None` once all are taken.
    pub(crate) fn number(&self, class: Class) -> Option<u16> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(class) as usize;
        let mut numbers = (0..Self::MAX).map(|n| (hash % Self::MAX + n) % Self::MAX);
        let number = numbers.find(|number| {
            let chunk = self.0[number / CHUNK].get_or_init(|| Box::new([const { OnceLock::new() }; CHUNK]));
            *chunk[number % CHUNK].get_or_init(|| class) == class
        });
        number.map(|number| number as u16)
    }

    #[inline]
    pub(crate) fn get(&self, number: u16) -> Option<&Class> {
        let number = usize::from(number);
        self.0.get(number / CHUNK)?.get()?[number % CHUNK].get()
    }

    /// All classes in use, with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u16, &Class)> {
        (0..Self::MAX as u16).filter_map(|number| Some((number, self.get(number)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::packed::Form;

    #[test]
    fn classes_are_numbered_once_and_run_out() {
        let classes = Classes::default();
        let class = |n| Class { form: Form::counts(n * 1_000_000_000), capacity_log2: 3 };
        let numbers: Vec<u16> = (1..=Classes::MAX as u64).map_while(|n| classes.number(class(n))).collect();
        let different: std::collections::HashSet<_> = numbers.iter().collect();
        assert_eq!((numbers.len(), different.len()), (Classes::MAX, Classes::MAX));
        for (n, number) in (1..).zip(&numbers) {
            assert_eq!(classes.get(*number), Some(&class(n)));
        }
        assert_eq!(classes.number(class(1)), Some(numbers[0]));
        assert_eq!(classes.number(class(99_999)), None);
        assert_eq!(Classes::default().get(0), None);
        assert!(numbers.iter().all(|number| *number < WIDE));
    }
}
