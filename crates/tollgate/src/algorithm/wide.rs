//! What a store asks of an algorithm whose states it keeps in its slab.

use crate::algorithm::sliding_compact::{StepCounts, StepStorage, StepWindow};
use crate::algorithm::tiered_window::TieredWindow;
use crate::algorithm::{Algorithm, Quota, QuotaState, Steps};
use crate::time::Time;

/// An algorithm with a state of any size. For a window of steps every call is inlined where it is known by type, so that
/// a charge dispatches once.
pub(crate) trait WideAlgorithm: Algorithm {
    /// The most that can be used at once.
    fn capacity(&self) -> u64;

    /// See [`Quota::clamp_window`].
    fn clamp(&self, state: &mut Self::State, now: Time) -> bool;

    /// See [`Quota::used_upper_bound`].
    fn used_upper_bound(&self, state: &Self::State, now: Time) -> u64;

    /// See [`Quota::mark`].
    fn mark(&self, state: &Self::State) -> u64;

    /// Heap bytes of the state.
    fn heap_bytes(state: &Self::State) -> usize;
}

impl WideAlgorithm for Quota {
    fn capacity(&self) -> u64 {
        self.capacity()
    }

    fn clamp(&self, state: &mut QuotaState, now: Time) -> bool {
        self.clamp_window(state, now)
    }

    fn used_upper_bound(&self, state: &QuotaState, now: Time) -> u64 {
        self.used_upper_bound(state, now)
    }

    fn mark(&self, state: &QuotaState) -> u64 {
        self.mark(state)
    }

    fn heap_bytes(state: &QuotaState) -> usize {
        state.heap_bytes()
    }
}

impl<K: StepStorage> WideAlgorithm for StepWindow<K> {
    #[inline]
    fn capacity(&self) -> u64 {
        self.limit
    }

    #[inline]
    fn clamp(&self, state: &mut K::Container, now: Time) -> bool {
        self.clamp(state, now)
    }

    #[inline]
    fn used_upper_bound(&self, state: &K::Container, _now: Time) -> u64 {
        state.total()
    }

    #[inline]
    fn mark(&self, state: &K::Container) -> u64 {
        state.newest().unwrap_or(0)
    }

    #[inline]
    fn heap_bytes(state: &K::Container) -> usize {
        state.heap_bytes()
    }
}

impl WideAlgorithm for TieredWindow {
    #[inline]
    fn capacity(&self) -> u64 {
        self.limit()
    }

    #[inline]
    fn clamp(&self, state: &mut Steps, now: Time) -> bool {
        self.clamp(state, now)
    }

    #[inline]
    fn used_upper_bound(&self, state: &Steps, _now: Time) -> u64 {
        state.total()
    }

    /// Its receipts need none: the step follows from the timestamp.
    #[inline]
    fn mark(&self, _state: &Steps) -> u64 {
        0
    }

    #[inline]
    fn heap_bytes(state: &Steps) -> usize {
        state.heap_bytes()
    }
}
