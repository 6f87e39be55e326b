//! A persistent vector: items by index, in a tree with structural sharing.
//!
//! A change copies only the shared nodes on its path. The vectors of `imbl` and `rpds` can also be split and joined, which
//! nothing here needs; each crate would be one more dependency of every program that embeds the library.

use std::sync::Arc;

#[derive(Clone)]
pub struct PersistentVec<T> {
    root: VecNode<T>,
    len: usize,
    /// The levels of branches above the leaves.
    depth: u32,
}

#[derive(Clone)]
enum VecNode<T> {
    Empty,
    Leaf(Arc<[Option<T>; WIDTH]>),
    Branch(Arc<[VecNode<T>; WIDTH]>),
}

const BITS: u32 = 7;
const WIDTH: usize = 1 << BITS;

impl<T> Default for PersistentVec<T> {
    fn default() -> Self {
        PersistentVec { root: VecNode::Empty, len: 0, depth: 0 }
    }
}

impl<T> PersistentVec<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub fn get(&self, number: usize) -> Option<&T> {
        let mut slot = &self.root;
        let mut depth = self.depth;
        while let VecNode::Branch(below) = slot {
            slot = &below[number >> (depth * BITS) & (WIDTH - 1)];
            depth -= 1;
        }
        match slot {
            VecNode::Leaf(items) if number < self.len => items[number & (WIDTH - 1)].as_ref(),
            _ => None,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        (0..self.len).filter_map(|number| self.get(number))
    }
}

impl<T: Clone> PersistentVec<T> {
    pub(crate) fn push(&mut self, item: T) {
        if self.len == WIDTH << (self.depth * BITS) {
            let mut below = [const { VecNode::Empty }; WIDTH];
            below[0] = std::mem::replace(&mut self.root, VecNode::Empty);
            self.root = VecNode::Branch(Arc::new(below));
            self.depth += 1;
        }
        self.len += 1;
        self.set(self.len - 1, Some(item));
    }

    pub(crate) fn replace(&mut self, number: usize, item: T) {
        debug_assert!(number < self.len);
        self.set(number, Some(item));
    }

    pub(crate) fn pop(&mut self) {
        if let Some(last) = self.len.checked_sub(1) {
            self.set(last, None);
            self.len = last;
        }
    }

    fn set(&mut self, number: usize, item: Option<T>) {
        let mut slot = &mut self.root;
        let mut depth = self.depth;
        loop {
            if matches!(slot, VecNode::Empty) {
                *slot = match depth {
                    0 => VecNode::Leaf(Arc::new([const { None }; WIDTH])),
                    _ => VecNode::Branch(Arc::new([const { VecNode::Empty }; WIDTH])),
                };
            }
            match slot {
                VecNode::Empty => return,
                VecNode::Leaf(items) => {
                    Arc::make_mut(items)[number & (WIDTH - 1)] = item;
                    return;
                }
                VecNode::Branch(below) => {
                    slot = &mut Arc::make_mut(below)[number >> (depth * BITS) & (WIDTH - 1)];
                    depth -= 1;
                }
            }
        }
    }
}

impl<T> std::ops::Index<usize> for PersistentVec<T> {
    type Output = T;

    fn index(&self, number: usize) -> &T {
        self.get(number).expect("the number is below the length")
    }
}

impl<T: PartialEq> PartialEq for PersistentVec<T> {
    fn eq(&self, other: &PersistentVec<T>) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_holds_what_was_put_in_and_a_copy_what_was_there() {
        let mut slots = PersistentVec::default();
        let mut copies = Vec::new();
        for n in 0..40_000 {
            if [0, 1, 31, 32, 33, 1_023, 1_024, 1_025, 32_768].contains(&n) {
                copies.push(slots.clone());
            }
            slots.push(n);
        }
        slots.replace(7, 70);
        assert_eq!((slots.len(), slots[7], slots[39_999], slots.get(40_000)), (40_000, 70, 39_999, None));
        for copy in copies {
            assert!(copy.iter().copied().eq(0..copy.len()));
        }
        (0..39_990).for_each(|_| slots.pop());
        assert!(slots.iter().copied().eq([0, 1, 2, 3, 4, 5, 6, 70, 8, 9]));
    }
}
