//! A hash array mapped trie: items found by their hash, in a tree with structural sharing.
//!
//! A clone shares everything; a change copies only the shared nodes on its path. Leaves are sorted by hash and have
//! some spare capacity, so that most items are inserted in place. A lookup may return another item with the same hash:
//! the caller compares.
//!
//! The maps of `imbl` and `rpds` own their keys and hash them. Here an item is a few bytes that refer to a rule and have its
//! hash, a lookup is by hash alone, and the nodes of several lookups are prefetched together.

use std::iter::repeat_n;
use std::sync::Arc;

use crate::prefetch;

/// An item of the trie: small, and with a hash of its own.
pub(crate) trait Hashed: Copy {
    fn hash(&self) -> u32;
}

#[derive(Clone)]
pub(crate) struct Hamt<T>(HamtNode<T>);

#[derive(Clone)]
enum HamtNode<T> {
    Empty,
    /// The first `len` are items; the others are spare capacity with any value.
    Leaf {
        items: Arc<[T]>,
        len: u32,
    },
    /// One child for each value of the bits at this depth.
    Branch(Arc<[HamtNode<T>]>),
}

/// The widths of the first branches, in bits. With a million items all but the last of them stay in the cache, and a
/// leaf is read where the hash is expected: a lookup has one or two cache misses. Branches are no wider, because a
/// change copies one per level; deeper ones are narrow, so that the leaves of a newly split one are not nearly empty.
const FIRST_BITS: [u32; 3] = [5, 5, 4];
const NARROW_BITS: u32 = 3;
/// A longer leaf is split, as long as there are hash bits left.
const MAX_LEAF: usize = if cfg!(test) { 16 } else { 256 };
/// Cache lines prefetched before and after the expected one: items are a few positions away from where they are
/// expected.
const LINES_AROUND: usize = 2;

/// The width of a branch at this depth, in bits; 0 if the hash has no more.
const fn bits(depth: u32) -> u32 {
    if (depth as usize) < FIRST_BITS.len() {
        FIRST_BITS[depth as usize]
    } else if shift(depth) < u32::BITS {
        NARROW_BITS
    } else {
        0
    }
}

/// The number of hash bits that the branches above have used.
const fn shift(depth: u32) -> u32 {
    let [first, second, third] = FIRST_BITS;
    match depth {
        0 => 0,
        1 => first,
        2 => first + second,
        _ => first + second + third + (depth - 3) * NARROW_BITS,
    }
}

/// The capacity of a leaf for `len` items. Few distinct sizes, so that the allocator can reuse freed leaves.
const fn room(len: usize) -> usize {
    if len <= 8 { len.next_multiple_of(2) } else { len.next_multiple_of(4) }
}

/// FNV-1a: as fast as any for a word or two. Lookups come from clients, but only the operator inserts, so the hash
/// needs no secret.
pub(crate) fn hash(text: &str) -> u32 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    (hash ^ hash >> 32) as u32
}

/// Mixes a word into a hash: both halves of a product, folded.
#[inline]
pub(crate) fn fold(state: u64, word: u64) -> u64 {
    let product = u128::from(state ^ 0x9e37_79b9_7f4a_7c15) * u128::from(word ^ 0xd1b5_4a32_d192_ed03);
    product as u64 ^ (product >> 64) as u64
}

impl<T> Default for Hamt<T> {
    fn default() -> Self {
        Hamt(HamtNode::Empty)
    }
}

impl<T: Hashed> Hamt<T> {
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.0, HamtNode::Empty)
    }

    /// All items with this hash, in no order.
    #[inline]
    pub(crate) fn find(&self, hash: u32) -> impl Iterator<Item = &T> {
        let items = self.0.leaf(hash);
        items[first(items, hash)..].iter().take_while(move |item| item.hash() == hash)
    }

    /// Any item with this hash.
    #[inline(always)]
    pub(crate) fn get(&self, hash: u32) -> Option<&T> {
        let items = self.0.leaf(hash);
        items.get(first(items, hash)).filter(|item| item.hash() == hash)
    }

    /// Whether a lookup is likely to miss the cache: a small trie stays cached.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        matches!(self.0, HamtNode::Branch(_))
    }

    /// Prefetches the nodes that [`prefetch`](Self::prefetch) reads.
    #[inline]
    pub(crate) fn prefetch_branch(&self, hash: u32) {
        let mut branch = &self.0;
        for depth in 0..FIRST_BITS.len() as u32 {
            let HamtNode::Branch(below) = branch else { return };
            branch = &below[child(hash, depth)];
        }
        prefetch::prefetch_range(std::ptr::from_ref(branch).addr(), size_of::<HamtNode<T>>());
    }

    /// Prefetches what [`find`](Self::find) is likely to read: not a whole leaf, because a core has a limited number
    /// of outstanding loads.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u32) {
        let items = self.0.leaf(hash);
        let expected = items.as_ptr().addr() + expected_index(items.len(), hash) * size_of::<T>();
        let around = LINES_AROUND * prefetch::CACHE_LINE_BYTES;
        prefetch::prefetch_range(expected.wrapping_sub(around), 2 * around + prefetch::CACHE_LINE_BYTES);
    }

    pub(crate) fn insert(&mut self, item: T) {
        self.0.insert(item, 0);
    }

    /// A mutable item; its hash must not change.
    pub(crate) fn find_mut(&mut self, hash: u32, is: impl Fn(&T) -> bool) -> Option<&mut T> {
        self.find(hash).find(|item| is(item))?;
        self.0.find_mut(hash).iter_mut().find(|item| is(item))
    }

    /// Removes an item.
    pub(crate) fn remove(&mut self, hash: u32, is: impl Fn(&T) -> bool) -> Option<T> {
        let found = self.find(hash).copied().find(|item| is(item))?;
        self.0.remove(hash, 0, &is);
        Some(found)
    }
}

/// The expected position of this hash among `len` items: hashes are uniform, and a leaf is sorted by them.
#[inline]
fn expected_index(len: usize, hash: u32) -> usize {
    ((u64::from(hash) * len as u64) >> u32::BITS) as usize
}

/// The first item whose hash is not below: a linear search from the expected position, a few items at most.
#[inline]
fn first<T: Hashed>(items: &[T], hash: u32) -> usize {
    let mut at = expected_index(items.len(), hash);
    while at > 0 && items[at - 1].hash() >= hash {
        at -= 1;
    }
    while items.get(at).is_some_and(|item| item.hash() < hash) {
        at += 1;
    }
    at
}

impl<T: Hashed> HamtNode<T> {
    /// The leaf for this hash.
    #[inline]
    fn leaf(&self, hash: u32) -> &[T] {
        let mut branch = self;
        let mut rest = hash;
        while let HamtNode::Branch(below) = branch {
            branch = &below[rest as usize & (below.len() - 1)];
            rest >>= below.len().trailing_zeros();
        }
        branch.items()
    }

    /// The items of a leaf.
    #[inline]
    fn items(&self) -> &[T] {
        if let HamtNode::Leaf { items, len } = self { &items[..*len as usize] } else { &[] }
    }

    /// The items with this hash, mutable; their hashes must not change.
    fn find_mut(&mut self, hash: u32) -> &mut [T] {
        let mut branch = self;
        let mut rest = hash;
        while let HamtNode::Branch(below) = branch {
            let at = rest as usize & (below.len() - 1);
            rest >>= below.len().trailing_zeros();
            branch = &mut Arc::make_mut(below)[at];
        }
        let HamtNode::Leaf { items, len } = branch else { return &mut [] };
        let start = first(&items[..*len as usize], hash);
        let items = &mut Arc::make_mut(items)[start..*len as usize];
        let count = items.iter().take_while(|item| item.hash() == hash).count();
        &mut items[..count]
    }

    fn insert(&mut self, item: T, depth: u32) {
        match self {
            HamtNode::Empty => *self = HamtNode::leaf_of(&[item]),
            HamtNode::Branch(below) => {
                Arc::make_mut(below)[child(item.hash(), depth)].insert(item, depth + 1);
            }
            HamtNode::Leaf { items, len } if (*len as usize) < MAX_LEAF || bits(depth) == 0 => {
                let count = *len as usize;
                let at = first(&items[..count], item.hash());
                if count == items.len() {
                    *items = with_room(items, room(count + 1));
                }
                let items = Arc::make_mut(items);
                items.copy_within(at..count, at + 1);
                items[at] = item;
                *len += 1;
            }
            HamtNode::Leaf { items, .. } => {
                let mut below: Vec<HamtNode<T>> = (0..1 << bits(depth)).map(|_| HamtNode::Empty).collect();
                for item in items.iter().copied().chain([item]) {
                    below[child(item.hash(), depth)].insert(item, depth + 1);
                }
                *self = HamtNode::Branch(below.into());
            }
        }
    }

    /// Removes an existing item; a branch whose items would fit a leaf becomes one.
    fn remove(&mut self, hash: u32, depth: u32, is: &impl Fn(&T) -> bool) {
        match self {
            HamtNode::Empty => {}
            HamtNode::Leaf { len: 1, .. } => *self = HamtNode::Empty,
            HamtNode::Leaf { items, len } => {
                let count = *len as usize;
                let found = items[..count].iter().position(|item| item.hash() == hash && is(item));
                let Some(at) = found else { return };
                Arc::make_mut(items).copy_within(at + 1..count, at);
                *len -= 1;
                if items.len() > 2 * room(count - 1) {
                    *self = HamtNode::leaf_of(&items[..count - 1]);
                }
            }
            HamtNode::Branch(below) => {
                let below = Arc::make_mut(below);
                below[child(hash, depth)].remove(hash, depth + 1, is);
                if let Some(leaf) = merged_leaf(below) {
                    *self = leaf;
                }
            }
        }
    }

    /// At least one item, sorted by hash.
    fn leaf_of(items: &[T]) -> HamtNode<T> {
        HamtNode::Leaf { items: with_room(items, room(items.len())), len: items.len() as u32 }
    }
}

/// At least one item, and spare room.
fn with_room<T: Copy>(items: &[T], room: usize) -> Arc<[T]> {
    items.iter().copied().chain(repeat_n(items[0], room - items.len())).collect()
}

/// A single leaf in place of a branch, if it is at most half full: the next insert must not split it again.
fn merged_leaf<T: Hashed>(below: &[HamtNode<T>]) -> Option<HamtNode<T>> {
    let mut count = 0;
    for branch in below {
        count += match branch {
            HamtNode::Empty => 0,
            HamtNode::Leaf { len, .. } => *len as usize,
            HamtNode::Branch(_) => return None,
        };
    }
    match count {
        0 => Some(HamtNode::Empty),
        _ if count <= MAX_LEAF / 2 => {
            let mut items: Vec<T> = below.iter().flat_map(HamtNode::items).copied().collect();
            items.sort_by_key(Hashed::hash);
            Some(HamtNode::leaf_of(&items))
        }
        _ => None,
    }
}

fn child(hash: u32, depth: u32) -> usize {
    (hash >> shift(depth)) as usize & ((1 << bits(depth)) - 1)
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

    fn all(index: &Hamt<(u32, u16)>, hash: u32) -> BTreeSet<(u32, u16)> {
        index.find(hash).copied().collect()
    }

    proptest! {
        #[test]
        fn an_index_holds_what_was_put_in_and_a_copy_what_was_there(
            steps in prop::collection::vec((0u32..40, 0u16..4, any::<bool>()), 0..400),
            spread in prop::sample::select(vec![1u32, 0x1111_1111, 0x9e37_79b9, 0]),
        ) {
            let mut index = Hamt::default();
            let mut model = BTreeSet::new();
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
