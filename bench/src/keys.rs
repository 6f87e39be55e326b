//! Keys, and the order in which they are requested.
//!
//! Warm keys lie in memory in that order: a request that was just read is in the cache, whatever the
//! limiter then has to look up. Cold ones lie anywhere, which costs every contestant another miss.

/// A key of a kind that is measured.
pub trait Key: Clone + Send + Sync + 'static {
    const KIND: &'static str;

    fn nth(n: usize) -> Self;
}

impl Key for String {
    const KIND: &'static str = "strings";

    fn nth(n: usize) -> String {
        format!("user:{n:06}")
    }
}

impl Key for u64 {
    const KIND: &'static str = "u64";

    fn nth(n: usize) -> u64 {
        n as u64
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    Warm,
    Cold,
}

/// Requests to come: more than a measurement takes, or all of the keys.
pub struct Draws<K>(pub Vec<K>);

impl<K: Key> Draws<K> {
    const MIN: usize = 1 << 14;
    const MAX: usize = 2_000_000;

    fn count(keys: usize) -> usize {
        match keys {
            1 => Self::MIN,
            keys => keys.clamp(Self::MIN * 8, Self::MAX),
        }
    }

    /// Any key as likely as any other.
    pub fn uniform(keys: usize, layout: Layout) -> Draws<K> {
        let mut random = Random::new(1);
        Self::laid_out((0..Self::count(keys)).map(|_| random.below(keys)).collect(), layout)
    }

    /// The key of rank r with a likelihood of 1 / r^0.99.
    pub fn zipf(keys: usize, layout: Layout) -> Draws<K> {
        const SKEW: f64 = 0.99;
        let mut sum = 0.0;
        let reach: Vec<f64> = (1..=keys)
            .map(|rank| {
                sum += (rank as f64).powf(-SKEW);
                sum
            })
            .collect();
        let mut random = Random::new(2);
        let mut draw = || {
            let at = random.unit() * sum;
            let rank = reach.partition_point(|reached| *reached < at).min(keys - 1);
            scatter(rank, keys)
        };
        Self::laid_out((0..Self::count(keys)).map(|_| draw()).collect(), layout)
    }

    fn laid_out(numbers: Vec<usize>, layout: Layout) -> Draws<K> {
        if layout == Layout::Warm {
            return Draws(numbers.into_iter().map(K::nth).collect());
        }
        // Created in another order than they are requested.
        let mut places: Vec<usize> = (0..numbers.len()).collect();
        Random::new(4).shuffle(&mut places);
        let mut draws = vec![None; numbers.len()];
        for at in places {
            draws[at] = Some(K::nth(numbers[at]));
        }
        Draws(draws.into_iter().flatten().collect())
    }
}

/// Ranks spread over the keys, so that frequent ones were not inserted side by side.
fn scatter(rank: usize, keys: usize) -> usize {
    const PRIME: usize = 15_485_863; // greater than any number of keys, so prime to it
    rank * PRIME % keys
}

/// SplitMix64: the same numbers in every run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.word()) * bound as u128) >> 64) as usize
    }

    fn shuffle(&mut self, values: &mut [usize]) {
        for at in (1..values.len()).rev() {
            values.swap(at, self.below(at + 1));
        }
    }

    fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_scattered_over_all_keys() {
        let mut seen: Vec<usize> = (0..1000).map(|rank| scatter(rank, 1000)).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn cold_keys_are_requested_in_the_same_order() {
        let draws = |layout| Draws::<String>::uniform(100, layout).0;
        assert_eq!(draws(Layout::Cold), draws(Layout::Warm));
    }

    #[test]
    fn the_first_of_a_thousand_ranks_is_drawn_one_time_in_eight() {
        let draws = Draws::<u64>::zipf(1000, Layout::Warm).0;
        let share = draws.iter().filter(|key| **key == 0).count() as f64 / draws.len() as f64;
        assert!((0.12..0.14).contains(&share), "{share}");
    }
}
