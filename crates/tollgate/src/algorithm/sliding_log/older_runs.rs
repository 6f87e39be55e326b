//! The runs of a sliding log but for the newest one, oldest first, with their sums.

use std::collections::VecDeque;

use crate::algorithm::sliding_log::run::{LogRun, MAX_BYTES};
use crate::sync::count_steps;

/// Neighbours of at most so many bytes together are merged.
pub(super) const MAX_PAIR_BYTES: usize = MAX_BYTES / 3;

#[derive(Clone, Debug, Default)]
pub(super) struct OlderRuns {
    runs: VecDeque<LogRun>,
    /// Of all of them.
    total: u64,
    /// Their heap bytes.
    run_bytes: usize,
}

impl OlderRuns {
    #[inline]
    pub(super) fn runs(&self) -> &VecDeque<LogRun> {
        &self.runs
    }

    #[inline]
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<OlderRuns>() + self.runs.capacity() * size_of::<LogRun>() + self.run_bytes
    }

    /// Maximum bytes of so many runs, without their entries.
    pub(super) const fn max_bytes(runs: u64) -> u64 {
        let capacity = runs + runs / 8 + 1;
        (size_of::<OlderRuns>() as u64).saturating_add(capacity.saturating_mul(size_of::<LogRun>() as u64))
    }

    pub(super) fn push(&mut self, run: LogRun) {
        if self.runs.len() == self.runs.capacity() {
            self.runs.reserve_exact(self.runs.len() / 8 + 1);
        }
        self.total += run.total();
        self.run_bytes += run.heap_bytes();
        self.runs.push_back(run);
    }

    /// Takes the newest of them.
    pub(super) fn pop_back(&mut self) -> Option<LogRun> {
        let run = self.runs.pop_back()?;
        self.total -= run.total();
        self.run_bytes -= run.heap_bytes();
        Some(run)
    }

    fn pop_front(&mut self) {
        if let Some(run) = self.runs.pop_front() {
            self.total -= run.total();
            self.run_bytes -= run.heap_bytes();
        }
    }

    pub(super) fn forget_before(&mut self, from: u64) {
        while self.runs.front().is_some_and(|run| run.newest() < from) {
            count_steps(1);
            self.pop_front();
        }
        self.change(0, |run| run.forget_before_in_full(from));
        self.shrink();
    }

    /// Subtracts up to `count` from the oldest steps; returns how much was not there.
    pub(super) fn take_oldest(&mut self, count: u64) -> u64 {
        let mut left = count;
        while let Some(run) = self.runs.front().filter(|run| run.total() <= left) {
            count_steps(1);
            left -= run.total();
            self.pop_front();
        }
        if left > 0 && !self.runs.is_empty() {
            self.change(0, |run| run.take_oldest(left));
            left = 0;
        }
        self.shrink();
        left
    }

    /// Subtracts up to `count` from a step; returns how much was subtracted.
    pub(super) fn take(&mut self, step: u64, count: u64) -> u64 {
        let at = self.runs.partition_point(|run| run.newest() < step);
        let taken = self.change(at, |run| run.take(step, count)).unwrap_or(0);
        if taken > 0 && !self.merge(at) {
            self.merge(at.wrapping_sub(1));
        }
        taken
    }

    /// Changes a run, which may become empty.
    fn change<T>(&mut self, at: usize, change: impl FnOnce(&mut LogRun) -> T) -> Option<T> {
        let run = self.runs.get_mut(at)?;
        self.total -= run.total();
        self.run_bytes -= run.heap_bytes();
        let result = change(run);
        self.total += run.total();
        self.run_bytes += run.heap_bytes();
        if run.is_empty() {
            self.remove(at);
        }
        Some(result)
    }

    fn remove(&mut self, at: usize) {
        if let Some(run) = self.runs.remove(at) {
            self.total -= run.total();
            self.run_bytes -= run.heap_bytes();
        }
        self.shrink();
    }

    /// Merges a run and the next one, if they fit one run: refunds do not leave many short runs. Returns whether they
    /// do.
    fn merge(&mut self, at: usize) -> bool {
        let Some((first, second)) = self.runs.get(at).zip(self.runs.get(at.wrapping_add(1))) else {
            return false;
        };
        if first.live_bytes() + second.live_bytes() > MAX_PAIR_BYTES {
            return false;
        }
        let merged = first.merged(second);
        self.remove(at + 1);
        self.change(at, |run| *run = merged);
        true
    }

    fn shrink(&mut self) {
        if self.runs.capacity() > 4 * self.runs.len().max(1) {
            self.runs.shrink_to(self.runs.len() + self.runs.len() / 8 + 1);
        }
    }
}
