//! A list on the stack that spills to the heap.
//!
//! Adding an item is a comparison and a store: `SmallVec` first finds out where its items are, each time.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::slice;

pub(crate) struct InlineList<T: Copy, const INLINE: usize> {
    /// Written up to `len`.
    inline: [MaybeUninit<T>; INLINE],
    /// The items in `inline`; once there are more than fit, all of them are in `spilled` instead.
    len: usize,
    spilled: Vec<T>,
}

impl<T: Copy, const INLINE: usize> InlineList<T, INLINE> {
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        InlineList { inline: [const { MaybeUninit::uninit() }; INLINE], len: 0, spilled: Vec::new() }
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, item: T) {
        match self.inline.get_mut(self.len) {
            Some(free) => {
                free.write(item);
                self.len += 1;
            }
            None => self.spill(item),
        }
    }

    #[cold]
    fn spill(&mut self, item: T) {
        if self.spilled.is_empty() {
            self.spilled = self.to_vec();
        }
        self.spilled.push(item);
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(T) -> bool) {
        let kept: Vec<T> = self.iter().copied().filter(|item| keep(*item)).collect();
        *self = InlineList::new();
        kept.into_iter().for_each(|item| self.push(item));
    }
}

impl<T: Copy, const INLINE: usize> Deref for InlineList<T, INLINE> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        if !self.spilled.is_empty() {
            return &self.spilled;
        }
        // SAFETY: the first `len` items were written by `push`.
        unsafe { slice::from_raw_parts(self.inline.as_ptr().cast(), self.len) }
    }
}

impl<T: Copy, const INLINE: usize> DerefMut for InlineList<T, INLINE> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        if !self.spilled.is_empty() {
            return &mut self.spilled;
        }
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.inline.as_mut_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_in_the_order_in_which_they_were_added_also_on_the_heap() {
        let mut list = InlineList::<usize, 4>::new();
        for n in 0..20 {
            assert_eq!(list.len(), n);
            list.push(n);
            assert!(list.iter().copied().eq(0..=n));
        }
        list.sort_unstable_by_key(|n| usize::MAX - n);
        assert_eq!((list[0], list[19]), (19, 0));
    }

    #[test]
    fn a_list_that_has_shrunk_grows_again() {
        let mut list = InlineList::<usize, 4>::new();
        (0..9).for_each(|n| list.push(n));
        list.retain(|n| n % 4 == 0);
        assert_eq!(*list, [0, 4, 8]);
        (0..3).for_each(|n| list.push(n));
        assert_eq!(*list, [0, 4, 8, 0, 1, 2]);
    }
}
