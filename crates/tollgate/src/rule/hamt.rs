//! An index that is cheap to copy: items found by their hash, in a tree whose parts are shared.
//!
//! A copy shares everything; a change copies the few nodes above it that are shared, and none that are
//! not. Leaves are sorted by hash and have a little spare room, so that most items are inserted in place. A lookup
//! may find another item with the same hash: the caller compares.

use std::iter::repeat_n;
use std::sync::Arc;

use crate::prefetch;

/// What an index holds: small, and knows its hash.
pub(crate) trait Hashed: Copy {
    fn hash(&self) -> u32;
}

#[derive(Clone)]
pub(crate) struct Hamt<T>(HamtNode<T>);

#[derive(Clone)]
enum HamtNode<T> {
    Empty,
    /// The first `len` are items; the others are spare room with any value.
    Leaf {
        items: Arc<[T]>,
        len: u32,
    },
    /// As many as there are values of so many bits.
    Branch(Arc<[HamtNode<T>]>),
}

/// The widths of the first forks, in bits. Among a million items all but the last of them stay in the cache, and a leaf is read
/// where the hash is expected: a lookup misses the cache once or twice. Forks are no wider, as a change copies one
/// of each level; deeper ones are narrow, so that the leaves of one that was just split are not nearly empty.
const FIRST_BITS: [u32; 3] = [5, 5, 4];
const NARROW_BITS: u32 = 3;
/// A longer leaf is split, as long as there are bits left to tell its items apart.
const MAX_LEAF: usize = if cfg!(test) { 16 } else { 256 };
/// Cache lines prefetched before and after the expected one: items are a few places away from where they are expected.
const LINES_AROUND: usize = 2;

/// The width of a fork so deep below the root, in bits; 0 where a hash has no more.
const fn bits(depth: u32) -> u32 {
    if (depth as usize) < FIRST_BITS.len() {
        FIRST_BITS[depth as usize]
    } else if shift(depth) < u32::BITS {
        NARROW_BITS
    } else {
        0
    }
}

/// The bits of a hash that the forks above have used.
const fn shift(depth: u32) -> u32 {
    let [first, second, third] = FIRST_BITS;
    match depth {
        0 => 0,
        1 => first,
        2 => first + second,
        _ => first + second + third + (depth - 3) * NARROW_BITS,
    }
}

/// The room of a leaf for so many items. Few different sizes: the allocator finds the room of another leaf for it.
const fn room(len: usize) -> usize {
    if len <= 8 { len.next_multiple_of(2) } else { len.next_multiple_of(8) }
}

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

    /// Whether a lookup is likely to miss the cache: a few items are used too often for that.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        matches!(self.0, HamtNode::Branch(_))
    }

    /// Prefetches what [`prefetch`](Self::prefetch) reads.
    #[inline]
    pub(crate) fn prefetch_branch(&self, hash: u32) {
        let mut branch = &self.0;
        for depth in 0..FIRST_BITS.len() as u32 {
            let HamtNode::Branch(below) = branch else { return };
            branch = &below[child(hash, depth)];
        }
        prefetch::prefetch_range(std::ptr::from_ref(branch).addr(), size_of::<HamtNode<T>>());
    }

    /// Prefetches what [`find`](Self::find) is likely to read: not all of a leaf, as a core has few requests for memory in
    /// flight.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u32) {
        let items = self.0.leaf(hash);
        let expected = items.as_ptr().addr() + guess(items.len(), hash) * size_of::<T>();
        let around = LINES_AROUND * prefetch::CACHE_LINE_BYTES;
        prefetch::prefetch_range(expected.wrapping_sub(around), 2 * around + prefetch::CACHE_LINE_BYTES);
    }

    pub(crate) fn insert(&mut self, item: T) {
        self.0.insert(item, 0);
    }

    /// An item to be changed, but for its hash.
    pub(crate) fn find_mut(&mut self, hash: u32, is: impl Fn(&T) -> bool) -> Option<&mut T> {
        self.find(hash).find(|item| is(item))?;
        self.0.find_mut(hash).iter_mut().find(|item| is(item))
    }

    /// Takes an item out.
    pub(crate) fn remove(&mut self, hash: u32, is: impl Fn(&T) -> bool) -> Option<T> {
        let found = self.find(hash).copied().find(|item| is(item))?;
        self.0.remove(hash, 0, &is);
        Some(found)
    }
}

/// Where an item with this hash is expected among so many: hashes are uniform, and a leaf is sorted by them.
#[inline]
fn guess(len: usize, hash: u32) -> usize {
    ((u64::from(hash) * len as u64) >> u32::BITS) as usize
}

/// The first item whose hash is not below: found from where it is expected, a few items away at the most.
#[inline]
fn first<T: Hashed>(items: &[T], hash: u32) -> usize {
    let mut at = guess(items.len(), hash);
    while at > 0 && items[at - 1].hash() >= hash {
        at -= 1;
    }
    while items.get(at).is_some_and(|item| item.hash() < hash) {
        at += 1;
    }
    at
}

impl<T: Hashed> HamtNode<T> {
    /// The leaf that items with this hash are in.
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

    /// The items with this hash, to be changed but for their hashes.
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

    /// Takes out the item that is there; a fork whose items would fit a leaf becomes one.
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

/// The one leaf in place of a fork, where that is half full at the most: the next item must not split it.
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
