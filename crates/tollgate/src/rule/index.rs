//! An index that is cheap to copy: items found by their hash, in a tree whose parts are shared.
//!
//! A copy shares everything; a change copies the few nodes above it that are shared, and none that are
//! not. Leaves are as long as what is in them. Whoever looks something up compares what it finds.

use std::sync::Arc;

use crate::near;

/// What an index holds: small, and knows its hash.
pub(crate) trait Hashed: Clone {
    fn hash(&self) -> u32;
}

#[derive(Clone)]
pub(crate) struct Index<T>(Branch<T>);

#[derive(Clone)]
enum Branch<T> {
    Empty,
    Leaf(Arc<[T]>),
    Fork(Arc<[Branch<T>; FORK]>),
}

/// Narrow forks: the leaves of one that was just split are an eighth full, not a sixty-fourth.
const BITS: u32 = 3;
const FORK: usize = 1 << BITS;
/// A longer leaf is split, as long as there are bits left to tell its items apart.
const MAX_LEAF: usize = 64;

/// FNV-1a: as fast as any for a word or two. What is looked up comes from strangers, but what is put in
/// comes from the operator only, so the hash needs no secret.
pub(crate) fn hash(text: &str) -> u32 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    (hash ^ hash >> 32) as u32
}

/// Takes a word into a hash: both halves of a product, folded.
#[inline]
pub(crate) fn fold(state: u64, word: u64) -> u64 {
    let product = u128::from(state ^ 0x9e37_79b9_7f4a_7c15) * u128::from(word ^ 0xd1b5_4a32_d192_ed03);
    product as u64 ^ (product >> 64) as u64
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Index(Branch::Empty)
    }
}

impl<T: Hashed> Index<T> {
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.0, Branch::Empty)
    }

    /// All items with this hash, in no order.
    #[inline]
    pub(crate) fn find(&self, hash: u32) -> impl Iterator<Item = &T> {
        self.prefetched(hash).iter().filter(move |item| item.hash() == hash)
    }

    /// Asks for the memory that [`find`](Self::find) will read.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u32) {
        self.prefetched(hash);
    }

    /// The leaf that items with this hash are in, asked for.
    #[inline]
    fn prefetched(&self, hash: u32) -> &[T] {
        let mut branch = &self.0;
        let mut rest = hash;
        while let Branch::Fork(below) = branch {
            branch = &below[rest as usize % FORK];
            rest >>= BITS;
        }
        let items = if let Branch::Leaf(items) = branch { &items[..] } else { &[] };
        near::fetch(items.as_ptr().addr(), size_of_val(items));
        items
    }

    pub(crate) fn insert(&mut self, item: T) {
        self.0.insert(item, 0);
    }

    /// An item to be changed, but for its hash.
    pub(crate) fn find_mut(&mut self, hash: u32, is: impl Fn(&T) -> bool) -> Option<&mut T> {
        self.find(hash).find(|item| is(item))?;
        let items = self.0.leaf_mut(hash)?;
        Arc::make_mut(items).iter_mut().find(|item| item.hash() == hash && is(item))
    }

    /// Takes an item out.
    pub(crate) fn remove(&mut self, hash: u32, is: impl Fn(&T) -> bool) -> Option<T> {
        let found = self.find(hash).find(|item| is(item))?.clone();
        self.0.remove(hash, 0, &is);
        Some(found)
    }
}

impl<T: Hashed> Branch<T> {
    fn leaf_mut(&mut self, hash: u32) -> Option<&mut Arc<[T]>> {
        let (mut branch, mut rest) = (self, hash);
        while let Branch::Fork(below) = branch {
            branch = &mut Arc::make_mut(below)[rest as usize % FORK];
            rest >>= BITS;
        }
        if let Branch::Leaf(items) = branch { Some(items) } else { None }
    }

    fn insert(&mut self, item: T, depth: u32) {
        match self {
            Branch::Empty => *self = Branch::Leaf([item].into()),
            Branch::Fork(below) => {
                Arc::make_mut(below)[child(item.hash(), depth)].insert(item, depth + 1);
            }
            Branch::Leaf(items) if items.len() < MAX_LEAF || depth * BITS >= u32::BITS => {
                *items = items.iter().cloned().chain([item]).collect();
            }
            Branch::Leaf(items) => {
                let mut below = [const { Branch::Empty }; FORK];
                for item in items.iter().cloned().chain([item]) {
                    below[child(item.hash(), depth)].insert(item, depth + 1);
                }
                *self = Branch::Fork(Arc::new(below));
            }
        }
    }

    /// Takes out the item that is there; a fork whose items would fit a leaf becomes one.
    fn remove(&mut self, hash: u32, depth: u32, is: &impl Fn(&T) -> bool) {
        match self {
            Branch::Empty => {}
            Branch::Leaf(items) if items.len() == 1 => *self = Branch::Empty,
            Branch::Leaf(items) => {
                let at = items.iter().position(|item| item.hash() == hash && is(item));
                let kept = items.iter().enumerate().filter(|(n, _)| Some(*n) != at);
                *items = kept.map(|(_, item)| item.clone()).collect();
            }
            Branch::Fork(below) => {
                let below = Arc::make_mut(below);
                below[child(hash, depth)].remove(hash, depth + 1, is);
                if let Some(leaf) = joined(below) {
                    *self = leaf;
                }
            }
        }
    }
}

/// The one leaf in place of a fork, where that is half full at the most: the next item must not split it.
fn joined<T: Hashed>(below: &[Branch<T>; FORK]) -> Option<Branch<T>> {
    let mut count = 0;
    for branch in below {
        count += match branch {
            Branch::Empty => 0,
            Branch::Leaf(items) => items.len(),
            Branch::Fork(_) => return None,
        };
    }
    let items = below.iter().filter_map(|branch| match branch {
        Branch::Leaf(items) => Some(items.iter().cloned()),
        _ => None,
    });
    match count {
        0 => Some(Branch::Empty),
        _ if count <= MAX_LEAF / 2 => Some(Branch::Leaf(items.flatten().collect())),
        _ => None,
    }
}

fn child(hash: u32, depth: u32) -> usize {
    (hash >> (depth * BITS)) as usize % FORK
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    impl Hashed for (u32, u16) {
        fn hash(&self) -> u32 {
            self.0
        }
    }

    fn all(index: &Index<(u32, u16)>, hash: u32) -> BTreeSet<(u32, u16)> {
        index.find(hash).copied().collect()
    }

    proptest! {
        #[test]
        fn an_index_holds_what_was_put_in_and_a_copy_what_was_there(
            steps in prop::collection::vec((0u32..40, 0u16..4, any::<bool>()), 0..400),
            spread in prop::sample::select(vec![1u32, 0x1111_1111, 0x9e37_79b9, 0]),
        ) {
            let (mut index, mut model) = (Index::default(), BTreeSet::new());
            let mut before = (index.clone(), model.clone());
            for (n, (key, value, put)) in steps.into_iter().enumerate() {
                let item = (key.wrapping_mul(spread), value);
                if n % 50 == 0 {
                    before = (index.clone(), model.clone());
                }
                if put && model.insert(item) {
                    index.insert(item);
                } else if !put {
                    let removed = index.remove(item.0, |each| *each == item);
                    prop_assert_eq!(removed.is_some(), model.remove(&item));
                }
                for (index, model) in [(&index, &model), (&before.0, &before.1)] {
                    let expected = model.iter().filter(|each| each.0 == item.0).copied().collect();
                    prop_assert_eq!(all(index, item.0), expected);
                    prop_assert_eq!(index.is_empty(), model.is_empty());
                }
            }
        }
    }
}
