//! Keys that find no room share a state: what a flood of them gets is bounded in total.
//!
//! A shard has one cell for each limit under which keys found no room. A cell counts what passed and begins anew
//! when a state that was filled by its last charge would have expired; so in every window of the limit the keys
//! of a cell get at most the limit together. A flood gets [`CELLS`] times the limit. A key that has its own entry
//! never meets a cell.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use crate::algorithm::{Algorithm as _, Quota};
use crate::store::memory::SHARDS;
use crate::time::Time;

/// Cells that the keys of one limit are spread over, by their hash.
pub const CELLS: usize = SHARDS;
/// Limits that can have a cell in a shard at once.
const LIMITS: usize = 16;

/// What becomes of a new key that finds no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MemoryFull {
    /// It shares a counter with others like it.
    #[default]
    Aggregate,
    /// It is not limited.
    Open,
    /// It is denied.
    Closed,
}

impl MemoryFull {
    /// How long a caller is told to wait where new keys are denied.
    pub(super) const CLOSED_RETRY: Duration = Duration::from_secs(1);
}

#[derive(Clone, Copy)]
struct Cell {
    /// The hash of its limit.
    limit: u64,
    used: u64,
    fresh_at: Time,
}

/// The cells of a shard. All are there from the beginning: a flood cannot make them grow.
pub(super) struct Aggregate([Cell; LIMITS]);

impl Default for Aggregate {
    fn default() -> Self {
        Aggregate([Cell { limit: 0, used: 0, fresh_at: Time::EPOCH }; LIMITS])
    }
}

impl Aggregate {
    pub(super) const BYTES: usize = size_of::<Aggregate>();

    /// Takes a cost that the limit alone would allow. Returns what is left, or how long the cell needs.
    pub(super) fn charge(&mut self, quota: &Quota, cost: u64, now: Time) -> Result<u64, Duration> {
        let limit = BuildHasherDefault::<DefaultHasher>::default().hash_one(quota);
        let own = self.0.iter().position(|cell| cell.limit == limit && cell.fresh_at > now);
        let vacant = || self.0.iter().position(|cell| cell.fresh_at <= now);
        let Some(at) = own.or_else(vacant) else {
            let soonest = self.0.iter().map(|cell| cell.fresh_at).min().unwrap_or(now);
            return Err(soonest.since(now));
        };
        let cell = &mut self.0[at];
        let used = if own.is_some() { cell.used } else { 0 };
        let left = quota.capacity().saturating_sub(used);
        if cost > left {
            return Err(cell.fresh_at.since(now));
        }
        let mut full = quota.fresh();
        quota.charge(&mut full, now, quota.capacity());
        *cell = Cell { limit, used: used + cost, fresh_at: quota.fresh_at(&full).max(cell.fresh_at) };
        Ok(left - cost)
    }

    /// How many limits have keys in a cell at `now`.
    pub(super) fn in_use(&self, now: Time) -> usize {
        self.0.iter().filter(|cell| cell.fresh_at > now).count()
    }
}
