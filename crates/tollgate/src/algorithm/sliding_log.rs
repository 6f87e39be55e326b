//! Sliding window log: the timestamps of the last window, to ten microseconds.
//!
//! A log is a sliding window whose step is the resolution of time itself. Its memory grows with the limit, so each hit
//! is stored as the distance from the previous one, in as few nibbles as possible: six for a few hundred hits an hour.
//!
//! A long log is a queue of runs. A refund finds its run by binary search and rewrites that one alone; runs that leave the
//! window are dropped as a whole.

use crate::algorithm::sliding_compact::{StepCounts, StepStorage, StepWindow};
use crate::sync::count_steps;
use crate::time::Period;

mod older_runs;
mod run;

use older_runs::{MAX_PAIR_BYTES, OlderRuns};
use run::{LogRun, MAX_BYTES, MAX_ENTRY_BYTES, MAX_NUMBER, SLACK};

/// The unit of a log, in nanoseconds.
pub const STEP_NS: u64 = 10_000;

pub type SlidingLog = StepWindow<NibbleStorage>;

/// A window over steps of ten microseconds.
pub fn window(limit: u64, period: Period) -> SlidingLog {
    StepWindow::new(limit, period.nanos() / STEP_NS, STEP_NS)
}

/// The maximum bytes of the entries of a full log.
///
/// A distance d takes at most log16(d) + 1 nibbles, which is concave: the sum is largest where hits are evenly spread.
/// One more nibble for each is the length of the number, and another covers the counts of hits in one step.
pub(crate) fn max_bytes(window: &SlidingLog) -> u64 {
    let half_bytes = |number: u64| u64::from((u64::BITS - number.leading_zeros()).div_ceil(4));
    let entries = window.limit.clamp(1, window.steps);
    let distance = half_bytes(window.steps / entries) + 1;
    let count = if window.limit > entries { 2 + half_bytes(window.limit / entries) + 1 } else { 1 };
    let bytes = entries.saturating_mul(1 + distance + count) / 2;
    let slack = 2 * (bytes / SLACK as u64 + MAX_ENTRY_BYTES as u64 + 1);
    // Two neighbours that are short are merged, but for the first pair and the last.
    let runs = bytes.saturating_add(slack) / (MAX_PAIR_BYTES as u64 / 2);
    let one_run = bytes.saturating_add(slack) <= MAX_BYTES as u64;
    let older = if one_run { 0 } else { OlderRuns::max_bytes(runs + 4).saturating_add(MAX_BYTES as u64) };
    bytes.saturating_add(slack).saturating_add(older)
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NibbleStorage;

impl StepStorage for NibbleStorage {
    type Container = Log;
}

/// The steps of a window with their counts, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// The newest steps; empty only if the log is.
    newest: LogRun,
    /// Earlier runs, none of them empty.
    older: Option<Box<OlderRuns>>,
}

impl PartialEq for Log {
    fn eq(&self, other: &Log) -> bool {
        self.pairs().eq(other.pairs())
    }
}

impl Eq for Log {}

impl Log {
    #[cold]
    fn begin_run(&mut self) {
        self.newest.shrink();
        self.older.get_or_insert_default().push(std::mem::take(&mut self.newest));
    }

    /// Changes the older runs, if there are any. The last of them becomes the newest if that is empty.
    #[inline]
    fn change_older<T: Default>(&mut self, change: impl FnOnce(&mut OlderRuns) -> T) -> T {
        match &mut self.older {
            None => T::default(),
            Some(older) => {
                let result = change(older);
                self.settle();
                result
            }
        }
    }

    fn settle(&mut self) {
        let Some(older) = &mut self.older else { return };
        if self.newest.is_empty() {
            self.newest = older.pop_back().unwrap_or_default();
        }
        if older.runs().is_empty() {
            self.older = None;
        }
    }

    /// Whether there is a step before `from`.
    #[inline]
    fn begins_before(&self, from: u64) -> bool {
        let first = self.older.as_ref().and_then(|older| older.runs().front()).unwrap_or(&self.newest);
        !first.is_empty() && first.oldest() < from
    }

    #[inline(never)]
    fn forget_expired(&mut self, from: u64) {
        self.change_older(|older| older.forget_before(from));
        if self.older.is_none() {
            self.newest.forget_before(from);
        }
    }

    #[inline(never)]
    fn sum_before(&self, from: u64) -> u64 {
        let before = self.runs().take_while(|run| run.oldest() < from);
        before.map(|run| if run.newest() < from { run.total() } else { run.sum_before(from) }).sum()
    }

    fn runs(&self) -> impl Iterator<Item = &LogRun> {
        let older = self.older.iter().flat_map(|older| older.runs());
        older.chain([&self.newest]).filter(|run| !run.is_empty()).inspect(|_| count_steps(1))
    }
}

impl StepCounts for Log {
    fn pairs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.runs().flat_map(LogRun::pairs)
    }

    #[inline]
    fn total(&self) -> u64 {
        self.newest.total() + self.older.as_ref().map_or(0, |older| older.total())
    }

    #[inline]
    fn heap_bytes(&self) -> usize {
        self.newest.heap_bytes() + self.older.as_ref().map_or(0, |older| older.heap_bytes())
    }

    #[inline]
    fn forget_before(&mut self, from: u64) {
        if self.begins_before(from) {
            self.forget_expired(from);
        }
    }

    #[inline]
    fn add(&mut self, step: u64, count: u64) {
        if self.newest.is_full() && count > 0 && step.min(MAX_NUMBER) > self.newest.newest() {
            self.begin_run();
        }
        self.newest.add(step, count);
    }

    fn take(&mut self, step: u64, count: u64) -> u64 {
        if self.newest.is_empty() || step >= self.newest.oldest() {
            let taken = self.newest.take(step, count);
            self.settle();
            return taken;
        }
        self.change_older(|older| older.take(step, count))
    }

    fn take_oldest(&mut self, count: u64) {
        let left = match &mut self.older {
            Some(older) => older.take_oldest(count),
            None => count,
        };
        self.newest.take_oldest(left);
        self.settle();
    }

    #[inline]
    fn newest(&self) -> Option<u64> {
        (!self.newest.is_empty()).then_some(self.newest.newest())
    }

    #[inline]
    fn sum_from(&self, from: u64) -> u64 {
        if self.begins_before(from) { self.total() - self.sum_before(from) } else { self.total() }
    }

    fn step_freeing(&self, from: u64, count: u64) -> Option<u64> {
        let mut freed = 0;
        for run in self.runs().filter(|run| run.newest() >= from) {
            if run.oldest() >= from && freed + run.total() < count {
                freed += run.total();
                continue;
            }
            for (step, units) in run.pairs().filter(|(step, _)| *step >= from) {
                freed += units;
                if freed >= count {
                    return Some(step);
                }
            }
        }
        None
    }
}

impl FromIterator<(u64, u64)> for Log {
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(pairs: I) -> Log {
        let mut log = Log::default();
        pairs.into_iter().for_each(|(step, count)| log.add(step, count));
        log
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::algorithm::{Admission, Algorithm};
    use crate::sync::steps;
    use crate::time::Time;

    #[test]
    fn a_counted_denial_takes_time_linear_in_the_log() {
        // A regression: one hit of cost 40,000 held the lock of a shard for 21 seconds.
        let read = |limit: u64| {
            let log = window(limit, Period::HOUR);
            let mut state = log.fresh();
            let mut now = Time::from_secs(1_800_000_000);
            for _ in 0..limit {
                now = now + Duration::from_micros(100);
                log.charge(&mut state, now, 1);
            }
            let drain = || {
                log.drain(&mut state, now, limit - 1);
                assert_eq!(state.total(), limit);
                log.drain(&mut state, now, limit / 2);
                assert_eq!((state.total(), state.pairs().count()), (limit, 1));
            };
            steps::measure(drain).total
        };
        let single = read(20_000);
        let double = read(40_000);
        assert!(double * 10 <= single * 22, "{double} entries read for twice the input of {single}");
    }

    #[test]
    fn a_log_in_half_the_steps_counts_as_much_for_as_long() {
        for len in 2..12 {
            let log: Log = (0..len).map(|n| (1_000 + 10 * n, n + 1)).collect();
            let halved = log.halved().expect("there are two steps");
            assert_eq!((halved.total(), halved.newest()), (log.total(), log.newest()));
            assert_eq!(halved.pairs().count() as u64, len.div_ceil(2));
            for from in 1_000..1_000 + 10 * len {
                assert!(halved.sum_from(from) >= log.sum_from(from), "looser from {from} on");
            }
        }
        assert_eq!(Log::from_iter([(7, 3)]).halved(), None);
    }

    #[test]
    fn the_one_above_the_limit_within_the_window_is_denied() {
        let log = window(3, Period::MINUTE);
        let mut state = log.fresh();
        let start = Time::from_secs(1_800_000_000);
        for n in [0, 10, 10] {
            let now = start + Duration::from_secs(n);
            assert!(log.decide(&state, now, 1).is_allowed());
            log.charge(&mut state, now, 1);
        }
        let retry_after = Duration::from_micros(30_000_010);
        let now = start + Duration::from_micros(29_999_990);
        assert_eq!(log.decide(&state, now, 1).admission, Admission::Deny { retry_after });
        assert!(log.decide(&state, now + retry_after, 1).is_allowed());
        let two_leave_together = Duration::from_micros(40_000_010);
        assert_eq!(log.decide(&state, now, 2).admission, Admission::Deny { retry_after: two_leave_together });
    }

    #[test]
    fn a_log_is_the_pairs_that_were_added_less_what_was_taken_and_forgotten() {
        let mut below = crate::algorithm::repeatable_draws();
        for _ in 0..200 {
            let mut log = Log::default();
            let mut model = BTreeMap::new();
            let mut now = 1_800_000_000_000_000;
            for _ in 0..300 {
                let apart = [3, 100, 10_000_000, 1 << 40][below(4) as usize];
                now += below(apart);
                match below(8) {
                    0 => {
                        let from = now - below(4 * apart);
                        log.forget_before(from);
                        model = model.split_off(&from);
                    }
                    1 => {
                        let nth = below(model.len() as u64 + 1) as usize;
                        let step = model.keys().nth(nth).copied().unwrap_or(7);
                        let taken = log.take(step, 2);
                        let left = model.remove(&step).unwrap_or(0u64);
                        assert_eq!(taken, left.min(2));
                        if left > 2 {
                            model.insert(step, left - 2);
                        }
                    }
                    _ => {
                        let count = [1, 1, 1, 0, 5, 1 << 58][below(6) as usize];
                        log.add(now, count);
                        *model.entry(now).or_default() += count;
                        model.retain(|_, count| *count > 0);
                    }
                }
                assert!(log.pairs().eq(model.iter().map(|(step, count)| (*step, *count))));
                assert_eq!(log.total(), model.values().sum());
                assert_eq!(log.newest(), model.keys().next_back().copied());
            }
        }
    }

    #[test]
    fn a_long_log_is_the_pairs_that_were_added_less_what_was_taken_and_forgotten() {
        let mut below = crate::algorithm::repeatable_draws();
        for refunds in [0, 2, 9] {
            let mut log = Log::default();
            let mut model = BTreeMap::new();
            let mut now = 1_800_000_000_000;
            let mut longest = 0;
            for round in 0..20_000 {
                now += 1 + below(3_000);
                let count = [1, 1, 1, 40][below(4) as usize];
                log.add(now, count);
                model.insert(now, count);
                for _ in 0..below(refunds + 1) {
                    let step = now - below(10_000_000);
                    let step = model.range(step..).next().map_or(step, |(step, _)| *step + below(9) / 8);
                    let units = 1 + below(60);
                    let known = model.get(&step).copied().unwrap_or(0);
                    assert_eq!(log.take(step, units), known.min(units));
                    model.entry(step).and_modify(|count| *count -= known.min(units));
                    model.retain(|at, count| *at != step || *count > 0);
                }
                if round % 64 == 0 {
                    let from = now - 9_000_000 - below(1_000_000);
                    assert_eq!(log.sum_from(from), model.range(from..).map(|(_, count)| count).sum::<u64>());
                    log.forget_before(from);
                    model = model.split_off(&from);
                    let oldest = below(100);
                    log.take_oldest(oldest);
                    take_oldest(&mut model, oldest);
                    assert!(log.pairs().eq(model.iter().map(|(step, count)| (*step, *count))));
                    let from = now - below(9_000_000);
                    let excess = 1 + below(2_000);
                    assert_eq!(log.step_freeing(from, excess), step_freeing(&model, from, excess));
                    let fresh: usize = log.runs().map(LogRun::heap_bytes).sum();
                    assert!((fresh..fresh + fresh / 4 + 500).contains(&log.heap_bytes()));
                    longest = longest.max(log.runs().count());
                }
                assert_eq!(
                    (log.total(), log.newest()),
                    (model.values().sum(), model.keys().next_back().copied())
                );
            }
            assert!(longest > 5 || refunds > 2, "{longest} runs");
        }
    }

    fn take_oldest(model: &mut BTreeMap<u64, u64>, mut count: u64) {
        for units in model.values_mut() {
            let taken = count.min(*units);
            *units -= taken;
            count -= taken;
        }
        model.retain(|_, count| *count > 0);
    }

    fn step_freeing(model: &BTreeMap<u64, u64>, from: u64, excess: u64) -> Option<u64> {
        let mut freed = 0;
        model.range(from..).find_map(|(step, count)| {
            freed += count;
            (freed >= excess).then_some(*step)
        })
    }

    /// A regression: a refund decoded and wrote every entry of the log, under the lock of a shard.
    #[test]
    fn a_refund_visits_as_many_entries_of_a_long_log_as_of_a_short_one() {
        for entries in [1_000, 100_000] {
            let mut log: Log = (0..entries).map(|n| (1_800_000_000_000 + 300 * n, 1)).collect();
            for n in (0..entries).step_by(97) {
                let refund = || assert_eq!(log.take(1_800_000_000_000 + 300 * n, 1), 1);
                let visited = steps::measure(refund).total;
                assert!(visited <= 2 * MAX_BYTES, "{visited} of {entries} entries");
            }
        }
    }

    #[test]
    fn a_hit_takes_little_more_than_three_bytes() {
        let log = window(500, Period::HOUR);
        let mut state = log.fresh();
        let mut now = Time::from_secs(1_800_000_000);
        for n in 0..20_000u64 {
            now = now + Duration::from_nanos(7_200_000_000 + n * 7_919_777 % 3_000_000_000);
            if log.decide(&state, now, 1).is_allowed() {
                log.charge(&mut state, now, 1);
            }
            assert!(state.heap_bytes() <= 1_700, "{} bytes", state.heap_bytes());
        }
        assert!(state.total() > 400);
    }
}
