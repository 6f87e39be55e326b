//! Aggregate cells: keys that find no room share a state, so a flood of new keys is bounded in total.
//!
//! A shard has one cell for each limit under which keys found no room. A cell counts admitted costs and restarts when
//! a state that was filled by its last charge would have expired; so in every window of the limit the keys of a cell
//! get at most the limit together. A flood gets [`AGGREGATE_CELLS`] times the limit. A key with its own entry never
//! uses a cell.
//!
//! Limits for which no cell is left share one more cell, which sums the used fractions of their limits. While it is in
//! use no limit gets a cell of its own, because it may have been charged in the shared one.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use crate::algorithm::{Algorithm as _, Correction, Grant, Quota};
use crate::store::memory::SHARDS;
use crate::time::Time;

/// Cells that the keys of one limit are spread over, by hash.
pub const AGGREGATE_CELLS: usize = SHARDS;
/// Limits that can have a cell in a shard at the same time.
const MAX_LIMITS: usize = 16;

/// What happens to a new key that finds no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[deny(missing_docs)]
#[non_exhaustive]
pub enum MemoryFull {
    /// It shares an aggregate cell with other such keys.
    #[default]
    Aggregate,
    /// It is not limited.
    Open,
    /// It is denied.
    Closed,
}

impl MemoryFull {
    /// The retry delay of a denial where new keys are denied.
    pub(super) const CLOSED_RETRY: Duration = Duration::from_secs(1);
}

/// The admitted costs since a cell was started.
#[derive(Clone, Copy)]
struct AggregateCell {
    /// The hash of its limit.
    limit: u64,
    /// In tokens; in the shared cell, in parts of [`WHOLE_LIMIT`].
    used: u64,
    since: Time,
    expires_at: Time,
}

/// A whole limit in the shared cell.
const WHOLE_LIMIT: u64 = 1 << 32;

impl AggregateCell {
    const FRESH: AggregateCell =
        AggregateCell { limit: 0, used: 0, since: Time::EPOCH, expires_at: Time::EPOCH };

    fn is_in_use(&self, now: Time) -> bool {
        self.expires_at > now
    }

    /// The cell with `amount` added; it expires like a limit that was filled at `now`.
    fn charged(self, amount: u64, quota: &Quota, now: Time) -> AggregateCell {
        let begun = if self.is_in_use(now) { self } else { AggregateCell { used: 0, since: now, ..self } };
        let mut full = quota.fresh();
        quota.charge(&mut full, now, quota.capacity());
        let expires_at = quota.expires_at(&full).max(self.expires_at);
        AggregateCell { used: begun.used.saturating_add(amount), expires_at, ..begun }
    }

    /// Reverts what was charged at `at`, unless the cell has restarted since.
    fn refund(&mut self, amount: u64, at: Time) {
        if self.since <= at {
            self.used = self.used.saturating_sub(amount);
        }
    }
}

/// The cells of a shard. All are allocated up front, so a flood cannot make them grow.
pub(super) struct AggregateCells {
    cells: [AggregateCell; MAX_LIMITS],
    shared: AggregateCell,
}

impl Default for AggregateCells {
    fn default() -> Self {
        AggregateCells { cells: [AggregateCell::FRESH; MAX_LIMITS], shared: AggregateCell::FRESH }
    }
}

/// The cell that a charge uses.
#[derive(Clone, Copy)]
enum CellChoice {
    Own(usize),
    Shared,
}

/// The marks of grants that were charged to a cell. No state has them.
const OWN_CELL_MARK: u64 = u64::MAX;
const SHARED_CELL_MARK: u64 = u64::MAX - 1;

/// Whether a grant was charged to a cell.
pub(super) fn is_from_cell(grant: &Grant) -> bool {
    grant.mark >= SHARED_CELL_MARK
}

impl AggregateCells {
    pub(super) const BYTES: usize = size_of::<AggregateCells>();

    /// Charges a cost that the limit alone would allow. Returns what is left and the grant's mark, or the wait until
    /// the cell allows it.
    pub(super) fn charge(&mut self, quota: &Quota, cost: u64, now: Time) -> Result<(u64, u64), Duration> {
        let left = self.peek(quota, cost, now)?;
        let mark = self.add(quota, cost, now);
        Ok((left - cost, mark))
    }

    /// What is left for a cost, or the wait until the cell allows it.
    pub(super) fn peek(&self, quota: &Quota, cost: u64, now: Time) -> Result<u64, Duration> {
        let chosen = self.choose(quota, now);
        let cell = self.cell(chosen);
        let used = if cell.is_in_use(now) { cell.used } else { 0 };
        let left = match chosen {
            CellChoice::Own(_) => quota.capacity().saturating_sub(used),
            CellChoice::Shared => tokens(WHOLE_LIMIT.saturating_sub(used), quota),
        };
        if cost > left { Err(cell.expires_at.since(now)) } else { Ok(left) }
    }

    /// Corrects a grant to the real cost.
    pub(super) fn settle(&mut self, quota: &Quota, grant: &Grant, real_cost: u64, now: Time) {
        let less = match grant.correction(real_cost) {
            Correction::None => return,
            Correction::Debt(more) => {
                self.add(quota, more, now);
                return;
            }
            Correction::Refund(less) => less,
        };
        let limit = hash(quota);
        match grant.mark {
            // Costs are rounded up to whole parts, so ⌈real⌉ + ⌈less⌉ may exceed the ⌈real + less⌉ that was charged by
            // one. One part less is refunded, so that what remains is never below ⌈real⌉.
            SHARED_CELL_MARK => self.shared.refund(parts(less, quota).saturating_sub(1), grant.at),
            _ => {
                let own = self.cells.iter_mut().find(|cell| cell.limit == limit && cell.is_in_use(now));
                own.into_iter().for_each(|cell| cell.refund(less, grant.at));
            }
        }
    }

    /// Charges unconditionally; returns the grant's mark.
    fn add(&mut self, quota: &Quota, cost: u64, now: Time) -> u64 {
        match self.choose(quota, now) {
            CellChoice::Own(at) => {
                let cell = self.cells[at].charged(cost, quota, now);
                self.cells[at] = AggregateCell { limit: hash(quota), ..cell };
                OWN_CELL_MARK
            }
            CellChoice::Shared => {
                self.shared = self.shared.charged(parts(cost, quota), quota, now);
                SHARED_CELL_MARK
            }
        }
    }

    fn choose(&self, quota: &Quota, now: Time) -> CellChoice {
        let limit = hash(quota);
        let own = self.cells.iter().position(|cell| cell.limit == limit && cell.is_in_use(now));
        let vacant = || self.cells.iter().position(|cell| !cell.is_in_use(now));
        let usable = own.or_else(|| if self.shared.is_in_use(now) { None } else { vacant() });
        usable.map_or(CellChoice::Shared, CellChoice::Own)
    }

    fn cell(&self, chosen: CellChoice) -> &AggregateCell {
        match chosen {
            CellChoice::Own(at) => &self.cells[at],
            CellChoice::Shared => &self.shared,
        }
    }

    /// Number of limits with a cell in use at `now`; those that share a cell count as one.
    pub(super) fn in_use(&self, now: Time) -> usize {
        self.cells.iter().chain([&self.shared]).filter(|cell| cell.is_in_use(now)).count()
    }
}

fn hash(quota: &Quota) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(quota)
}

/// A cost in parts of a whole limit, rounded up.
fn parts(cost: u64, quota: &Quota) -> u64 {
    let parts = (u128::from(cost) * u128::from(WHOLE_LIMIT)).div_ceil(u128::from(quota.capacity().max(1)));
    u64::try_from(parts).unwrap_or(u64::MAX)
}

/// Parts of a whole limit in tokens, rounded down.
fn tokens(parts: u64, quota: &Quota) -> u64 {
    (u128::from(parts) * u128::from(quota.capacity()) / u128::from(WHOLE_LIMIT)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Limit, Shape};

    const NOW: Time = Time::from_secs(1_800_000_000);

    fn quota(count: usize) -> Quota {
        let rate = format!("{count}/h").parse().expect("a rate");
        Quota::new(&Limit::new(rate, Shape::SlidingLog).expect("a valid limit"))
    }

    /// Charges one at a time until a denial; returns how many were allowed.
    fn drain(aggregate: &mut AggregateCells, quota: &Quota, now: Time) -> u64 {
        let mut passed = 0;
        while aggregate.charge(quota, 1, now).is_ok() {
            passed += 1;
        }
        passed
    }

    #[test]
    fn a_cell_restarts_when_its_last_charge_has_expired_and_no_earlier() {
        let mut aggregate = AggregateCells::default();
        let limit = quota(5);
        assert_eq!(drain(&mut aggregate, &limit, NOW), 5);
        let wait = aggregate.peek(&limit, 1, NOW).expect_err("it is full");
        assert_eq!(drain(&mut aggregate, &limit, NOW + (wait - Duration::from_nanos(1))), 0);
        assert_eq!(drain(&mut aggregate, &limit, NOW + wait), 5);
        assert_eq!(drain(&mut aggregate, &limit, NOW + wait), 0);
    }

    #[test]
    fn limits_without_a_cell_of_their_own_share_one() {
        let mut aggregate = AggregateCells::default();
        for n in 0..MAX_LIMITS {
            assert_eq!(drain(&mut aggregate, &quota(5 + n), NOW), 5 + n as u64);
        }
        // A regression: every key of the next limit was denied.
        let first = quota(100);
        let second = quota(200);
        assert!((0..50).all(|_| aggregate.charge(&first, 1, NOW).is_ok()), "half of a limit");
        // Fractions are rounded up: one token may be missing.
        assert!(matches!(aggregate.peek(&second, 1, NOW), Ok(99..=100)));
        assert!(drain(&mut aggregate, &second, NOW).abs_diff(100) <= 1, "and half of another");
        assert!(aggregate.charge(&first, 1, NOW).is_err());
        assert_eq!(aggregate.in_use(NOW), MAX_LIMITS + 1);
        // When the cells are free again the shared one still counts its earlier charges.
        let later = NOW + Duration::from_secs(3_601);
        assert_eq!(aggregate.in_use(later), 0);
        assert_eq!(drain(&mut aggregate, &first, later), 100);
    }

    #[test]
    fn a_limit_that_was_charged_in_the_shared_cell_begins_none_of_its_own_meanwhile() {
        let mut aggregate = AggregateCells::default();
        (0..MAX_LIMITS).for_each(|n| _ = aggregate.charge(&quota(5 + n), 1, NOW));
        let late = NOW + Duration::from_secs(1_800);
        assert!(matches!(drain(&mut aggregate, &quota(100), late), 99..=100));
        let vacant = NOW + Duration::from_secs(3_601);
        assert!(aggregate.charge(&quota(100), 1, vacant).is_err());
    }

    #[test]
    fn a_refund_goes_back_to_the_cell_that_was_charged() {
        let mut aggregate = AggregateCells::default();
        for n in 0..2 * MAX_LIMITS {
            let quota = quota(5 + n);
            let granted = aggregate.charge(&quota, 3, NOW);
            let Ok((_, mark)) = granted else { continue };
            let grant = Grant { at: NOW, cost: 3, mark };
            assert!(is_from_cell(&grant));
            let before = aggregate.peek(&quota, 0, NOW).expect("there is something left");
            aggregate.settle(&quota, &grant, 1, NOW);
            let after = aggregate.peek(&quota, 0, NOW).expect("there is something left");
            assert!((before + 1..=before + 2).contains(&after), "{before} {after}");
            // A cell that has restarted refunds nothing.
            let later = NOW + Duration::from_secs(7_202);
            let mut anew = AggregateCells::default();
            anew.charge(&quota, 4, later).expect("a new cell");
            anew.settle(&quota, &Grant { mark: OWN_CELL_MARK, ..grant }, 0, later);
            assert_eq!(anew.peek(&quota, 0, later), Ok(1 + n as u64));
        }
    }
}
