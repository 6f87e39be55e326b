//! The buckets of a tiered window that a decision has read: coarse, and finer only where needed.

use tollgate::internal::algorithm::QuotaState;
use tollgate::internal::limit::Levels;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Bucket {
    pub level: usize,
    pub number: u64,
}

impl Bucket {
    /// The buckets of the next finer level that make up this one; none for the finest level.
    pub fn children(&self, levels: &Levels) -> impl Iterator<Item = Bucket> + use<> {
        let finer = self.level.checked_sub(1);
        let ratio = finer.map_or(0, |finer| levels.units()[self.level].secs() / levels.units()[finer].secs());
        let from = self.number * ratio;
        let level = finer.unwrap_or(0);
        (from..from + ratio).map(move |number| Bucket { level, number })
    }

    /// Its first step of the finest level.
    pub fn first_step(&self, levels: &Levels) -> u64 {
        self.number * levels.units()[self.level].secs() / levels.finest().secs()
    }
}

/// The window as read, and the same window with some buckets refined.
#[derive(Debug)]
pub struct Buckets {
    levels: Levels,
    read: Vec<(Bucket, u64)>,
    /// The same window with refined buckets; oldest first.
    timeline: Vec<(Bucket, u64)>,
}

impl Buckets {
    pub fn new(levels: Levels, mut read: Vec<(Bucket, u64)>) -> Buckets {
        read.sort_by_key(|(bucket, _)| bucket.first_step(&levels));
        Buckets { levels, timeline: read.clone(), read }
    }

    pub fn sum(&self) -> u64 {
        self.read.iter().map(|(_, count)| count).sum()
    }

    /// The buckets that are too coarse for exact times. When the window is empty again depends on the newest bucket with
    /// hits; when a denied cost will fit, on the bucket in which the oldest hits add up to `excess`.
    pub fn too_coarse(&self, excess: u64) -> Vec<Bucket> {
        let newest = self.timeline.iter().rev().find(|(_, count)| *count > 0);
        let mut left = 0;
        let freeing = self.timeline.iter().find(|(_, count)| {
            left += count;
            left >= excess
        });
        let mut coarse: Vec<_> = newest
            .into_iter()
            .chain(freeing.filter(|_| excess > 0))
            .map(|(bucket, _)| *bucket)
            .filter(|bucket| bucket.level > 0)
            .collect();
        coarse.dedup();
        coarse
    }

    /// Replaces a bucket by its parts. If their sum is lower, the difference is added to the last part: the parts were
    /// read later, or lost.
    pub fn refine(&mut self, bucket: &Bucket, mut parts: Vec<(Bucket, u64)>) {
        let Some(at) = self.timeline.iter().position(|(known, _)| known == bucket) else { return };
        let found: u64 = parts.iter().map(|(_, count)| count).sum();
        if let Some((_, last)) = parts.last_mut() {
            *last += self.timeline[at].1.saturating_sub(found);
        }
        self.timeline.splice(at..=at, parts);
    }

    /// The state that these counts represent, exact where they are refined: a coarse bucket is placed at its first
    /// step.
    pub fn state(&self) -> QuotaState {
        let finest = self.timeline.iter().map(|(bucket, count)| (bucket.first_step(&self.levels), *count));
        QuotaState::Tiers(finest.collect())
    }
}

#[cfg(test)]
mod tests {
    use tollgate::internal::algorithm::sliding_compact::StepCounts;

    use super::*;

    fn minutes_and_seconds() -> Buckets {
        // Two whole minutes between seconds.
        let bucket = |level, number, count| (Bucket { level, number }, count);
        Buckets::new(
            Levels::SMH,
            vec![bucket(0, 360, 2), bucket(0, 179, 1), bucket(1, 5, 3), bucket(1, 4, 0), bucket(1, 3, 4)],
        )
    }

    #[test]
    fn only_deciding_buckets_are_read_at_a_finer_level() {
        let mut buckets = minutes_and_seconds();
        assert_eq!(buckets.sum(), 10);
        assert_eq!(buckets.too_coarse(0), [], "the newest hit is known to the second");
        assert_eq!(buckets.too_coarse(1), [], "the oldest hit is known to the second");
        let coarse = Bucket { level: 1, number: 3 };
        assert_eq!(buckets.too_coarse(2), [coarse]);
        let seconds: Vec<_> = coarse.children(&Levels::SMH).collect();
        assert_eq!((seconds.len(), seconds[0]), (60, Bucket { level: 0, number: 180 }));
        let counts = seconds.into_iter().map(|second| (second, u64::from(second.number < 184)));
        buckets.refine(&coarse, counts.collect());
        assert_eq!(buckets.too_coarse(2), []);
        assert_eq!(buckets.sum(), 10);
    }

    #[test]
    fn what_the_parts_have_lost_counts_until_the_end() {
        let mut buckets = minutes_and_seconds();
        let coarse = Bucket { level: 1, number: 5 };
        buckets.refine(&coarse, coarse.children(&Levels::SMH).map(|second| (second, 0)).collect());
        let QuotaState::Tiers(tiers) = buckets.state() else { panic!("tiers") };
        let finest: Vec<_> = tiers.pairs().collect();
        assert_eq!(finest, [(179, 1), (180, 4), (359, 3), (360, 2)]);
    }
}
