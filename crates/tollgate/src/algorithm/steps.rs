//! The counts of steps, oldest first: a few of them in place, more on the heap.

use std::collections::VecDeque;
use std::iter::Chain;
use std::slice;

use crate::algorithm::sliding_compact::StepCounts;
use crate::sync::count_steps;

/// A step and its count.
type Pair = (u64, u64);

/// Pairs that are stored in place. Most keys never have more, and are read without a further cache miss.
const INLINE_PAIRS: usize = 3;

/// The counts of all non-empty steps, oldest first; a range of them is found by binary search.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    pairs: Pairs,
    total: u64,
    /// The last step; stale if there is none.
    newest: u64,
}

#[derive(Clone, Debug)]
enum Pairs {
    Inline { len: u8, pairs: [Pair; INLINE_PAIRS] },
    Heap(VecDeque<Pair>),
}

impl Default for Pairs {
    fn default() -> Pairs {
        Pairs::Inline { len: 0, pairs: [(0, 0); INLINE_PAIRS] }
    }
}

impl Pairs {
    #[inline]
    fn as_slices(&self) -> (&[Pair], &[Pair]) {
        match self {
            Pairs::Inline { len, pairs } => (&pairs[..usize::from(*len).min(INLINE_PAIRS)], &[]),
            Pairs::Heap(pairs) => pairs.as_slices(),
        }
    }

    #[inline]
    fn iter(&self) -> Chain<slice::Iter<'_, Pair>, slice::Iter<'_, Pair>> {
        let (first, second) = self.as_slices();
        first.iter().chain(second)
    }

    #[inline]
    fn len(&self) -> usize {
        match self {
            Pairs::Inline { len, .. } => usize::from(*len),
            Pairs::Heap(pairs) => pairs.len(),
        }
    }

    #[inline]
    fn front(&self) -> Option<Pair> {
        match self {
            Pairs::Inline { len, pairs } => (*len > 0).then_some(pairs[0]),
            Pairs::Heap(pairs) => pairs.front().copied(),
        }
    }

    fn back(&self) -> Option<Pair> {
        match self {
            Pairs::Inline { len, pairs } => pairs.get(usize::from(*len).wrapping_sub(1)).copied(),
            Pairs::Heap(pairs) => pairs.back().copied(),
        }
    }

    /// The count of the last pair, of which there is at least one.
    #[inline]
    fn last_count_mut(&mut self) -> &mut u64 {
        self.count_mut(self.len() - 1)
    }

    #[inline]
    fn count_mut(&mut self, at: usize) -> &mut u64 {
        match self {
            Pairs::Inline { pairs, .. } => &mut pairs[at].1,
            Pairs::Heap(pairs) => &mut pairs[at].1,
        }
    }

    #[inline]
    fn push_back(&mut self, pair: Pair) {
        match self {
            Pairs::Inline { len, pairs } if usize::from(*len) < INLINE_PAIRS => {
                pairs[usize::from(*len)] = pair;
                *len += 1;
            }
            Pairs::Inline { pairs, .. } => *self = spilled(*pairs, pair),
            Pairs::Heap(pairs) => pairs.push_back(pair),
        }
    }

    fn remove(&mut self, at: usize) {
        match self {
            Pairs::Inline { len, pairs } => {
                pairs.copy_within(at + 1..usize::from(*len), at);
                *len -= 1;
            }
            Pairs::Heap(pairs) => {
                pairs.remove(at);
            }
        }
    }

    /// The number of pairs before the first one that does not satisfy `is_before`.
    fn partition_point(&self, is_before: impl Fn(u64) -> bool) -> usize {
        let (first, second) = self.as_slices();
        let in_first = first.partition_point(|(step, _)| is_before(*step));
        if in_first < first.len() {
            return in_first;
        }
        in_first + second.partition_point(|(step, _)| is_before(*step))
    }

    /// Moves them back in place, if they fit.
    fn unspill(&mut self) {
        if let Pairs::Heap(heap) = self
            && heap.len() <= INLINE_PAIRS
        {
            let mut pairs = [(0, 0); INLINE_PAIRS];
            heap.iter().zip(&mut pairs).for_each(|(from, to)| *to = *from);
            *self = Pairs::Inline { len: heap.len() as u8, pairs };
        }
    }
}

/// The heap form of a full array and one more pair.
#[cold]
fn spilled(pairs: [Pair; INLINE_PAIRS], next: Pair) -> Pairs {
    let mut heap = VecDeque::with_capacity(Steps::MIN_HEAP_PAIRS);
    heap.extend(pairs);
    heap.push_back(next);
    Pairs::Heap(heap)
}

impl PartialEq for Steps {
    fn eq(&self, other: &Steps) -> bool {
        self.pairs.len() == other.pairs.len() && self.pairs.iter().eq(other.pairs.iter())
    }
}

impl Eq for Steps {}

impl Steps {
    /// The first allocation; the capacity grows by doubling.
    const MIN_HEAP_PAIRS: usize = 4;

    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pairs.len() == 0
    }

    /// Maximum heap bytes of `steps` steps.
    pub(crate) fn max_bytes(steps: u64) -> u64 {
        if steps <= INLINE_PAIRS as u64 {
            return 0;
        }
        let capacity = steps.checked_next_power_of_two().unwrap_or(u64::MAX);
        capacity.saturating_mul(size_of::<Pair>() as u64)
    }

    pub(crate) fn shrink(&mut self) {
        self.pairs.unspill();
        if let Pairs::Heap(pairs) = &mut self.pairs {
            pairs.shrink_to_fit();
        }
    }

    /// Removes the oldest steps, of which there are `count`.
    fn remove_oldest(&mut self, count: usize) {
        match &mut self.pairs {
            Pairs::Inline { len, pairs } => {
                pairs.copy_within(count..usize::from(*len), 0);
                *len -= count as u8;
            }
            Pairs::Heap(pairs) => {
                pairs.drain(..count);
                if pairs.capacity() > 4 * pairs.len().max(Self::MIN_HEAP_PAIRS) {
                    pairs.shrink_to(2 * pairs.len());
                }
                // Not as soon as they fit: the next step would allocate again.
                if 2 * pairs.len() <= INLINE_PAIRS {
                    self.pairs.unspill();
                }
            }
        }
    }
}

impl FromIterator<Pair> for Steps {
    fn from_iter<I: IntoIterator<Item = Pair>>(pairs: I) -> Steps {
        let mut steps = Steps::default();
        pairs.into_iter().for_each(|(step, count)| steps.add(step, count));
        steps
    }
}

impl StepCounts for Steps {
    fn pairs(&self) -> impl Iterator<Item = Pair> + '_ {
        self.pairs.iter().inspect(|_| count_steps(1)).copied()
    }

    #[inline]
    fn total(&self) -> u64 {
        self.total
    }

    #[inline]
    fn heap_bytes(&self) -> usize {
        match &self.pairs {
            Pairs::Inline { .. } => 0,
            Pairs::Heap(pairs) => pairs.capacity() * size_of::<Pair>(),
        }
    }

    #[inline]
    fn forget_before(&mut self, from: u64) {
        if self.pairs.front().is_some_and(|(step, _)| step < from) {
            self.forget_expired(from);
        }
    }

    #[inline]
    fn add(&mut self, step: u64, count: u64) {
        if count == 0 {
            return;
        }
        if self.total > 0 && self.newest >= step {
            *self.pairs.last_count_mut() += count;
        } else {
            self.pairs.push_back((step, count));
            self.newest = step;
        }
        self.total += count;
    }

    fn take(&mut self, step: u64, count: u64) -> u64 {
        let at = self.pairs.partition_point(|before| before < step);
        let Some((_, units)) = self.pairs.iter().nth(at).copied().filter(|(found, _)| *found == step) else {
            return 0;
        };
        let taken = count.min(units);
        self.total -= taken;
        *self.pairs.count_mut(at) -= taken;
        if taken == units {
            self.pairs.remove(at);
            self.newest = self.pairs.back().map_or(0, |(step, _)| step);
        }
        taken
    }

    fn take_oldest(&mut self, count: u64) {
        let mut left = count.min(self.total);
        self.total -= left;
        let mut gone = 0;
        for (_, units) in self.pairs.iter() {
            if *units > left {
                break;
            }
            left -= units;
            gone += 1;
        }
        count_steps(gone);
        if gone > 0 {
            self.remove_oldest(gone);
        }
        if left > 0 {
            *self.pairs.count_mut(0) -= left;
        }
    }

    #[inline]
    fn newest(&self) -> Option<u64> {
        (self.total > 0).then_some(self.newest)
    }

    #[inline]
    fn oldest(&self) -> Option<Pair> {
        self.pairs.front()
    }

    #[inline]
    fn sum_from(&self, from: u64) -> u64 {
        if self.pairs.front().is_some_and(|(step, _)| step < from) {
            return self.sum_of_part(from);
        }
        self.total
    }
}

impl Steps {
    #[inline(never)]
    fn forget_expired(&mut self, from: u64) {
        let expired = self.pairs.partition_point(|step| step < from);
        count_steps(expired);
        self.total -= self.pairs.iter().take(expired).map(|(_, count)| count).sum::<u64>();
        self.remove_oldest(expired);
    }

    /// Adds up what is outside or what is inside, whichever is fewer steps.
    #[inline(never)]
    fn sum_of_part(&self, from: u64) -> u64 {
        let outside = self.pairs.partition_point(|step| step < from);
        count_steps(outside.min(self.pairs.len() - outside));
        let count = |(_, count): &Pair| *count;
        if 2 * outside > self.pairs.len() {
            self.pairs.iter().skip(outside).map(count).sum()
        } else {
            self.total - self.pairs.iter().take(outside).map(count).sum::<u64>()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn steps_are_the_pairs_that_were_added_less_what_was_taken_and_forgotten() {
        let mut below = crate::algorithm::repeatable_draws();
        for round in 0..200 {
            let mut steps = Steps::default();
            let mut model = BTreeMap::<u64, u64>::new();
            let mut now = 1_000;
            for _ in 0..300 {
                now += below(3);
                let span = 1 + round % 20;
                match below(10) {
                    0 | 1 => {
                        let from = now - below(span);
                        assert_eq!(steps.sum_from(from), model.range(from..).map(|(_, count)| count).sum());
                        steps.forget_before(from);
                        model = model.split_off(&from);
                    }
                    2 => {
                        let step = now - below(span);
                        let known = model.get(&step).copied().unwrap_or(0);
                        assert_eq!(steps.take(step, 2), known.min(2));
                        model.entry(step).and_modify(|count| *count -= known.min(2));
                    }
                    3 => {
                        let mut count = below(4);
                        steps.take_oldest(count);
                        for units in model.values_mut() {
                            let taken = count.min(*units);
                            *units -= taken;
                            count -= taken;
                        }
                    }
                    4 => steps.shrink(),
                    _ => {
                        let count = below(4);
                        steps.add(now, count);
                        *model.entry(now).or_default() += count;
                    }
                }
                model.retain(|_, count| *count > 0);
                assert!(steps.pairs().eq(model.iter().map(|(step, count)| (*step, *count))));
                assert_eq!((steps.len(), steps.total()), (model.len(), model.values().sum()));
                assert_eq!(steps.newest(), model.keys().next_back().copied());
                assert_eq!(steps, model.iter().map(|(step, count)| (*step, *count)).collect());
            }
        }
    }

    #[test]
    fn a_few_steps_take_no_heap_and_many_give_theirs_back() {
        let mut steps: Steps = (1..=INLINE_PAIRS as u64).map(|step| (step, 1)).collect();
        assert_eq!(steps.heap_bytes(), 0);
        for step in 4..=100 {
            steps.add(step, 1);
            assert!(steps.heap_bytes() as u64 <= Steps::max_bytes(step), "{step} steps");
        }
        steps.forget_before(100);
        assert_eq!((steps.len(), steps.heap_bytes()), (1, 0));
    }
}
