//! Generic cell rate algorithm: one timestamp of state per key.
//!
//! The state is the time at which the bucket will be full again, in the meter's own units. Every admission keeps
//! `full_at <= now + capacity`; that inequality is the burst bound. All buckets share this arithmetic: only the
//! passing of time differs, which is the meter's [`BucketClock`].

use crate::algorithm::{Admission, Algorithm, Decision, Grant};
use crate::limit::{Limit, Rate};
use crate::time::{Period, Time};

/// How time passes for a bucket, in units such that a token is a whole number of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BucketClock {
    /// A unit is a nanosecond: the period divides evenly by the number of tokens.
    Nanos,
    /// `ticks` units in `period_ns` nanoseconds; the exact unit nearest to a nanosecond.
    Ticks { ticks: u64, period_ns: u64 },
    /// Time advances only at ticks of the clock; each adds `units_per_tick` units.
    Steps { tick_ns: u64, units_per_tick: u64 },
    /// Time advances only at calendar boundaries; each adds the whole bucket.
    Calendar { period: Period, refill: u64 },
}

impl BucketClock {
    /// The bucket's time at `now`, clamped at [`Limit::HORIZON`].
    #[inline]
    pub fn units_at(&self, now: Time) -> u64 {
        self.units_at_unclamped(now.min(Limit::HORIZON))
    }

    /// As above, not necessarily clamped at the horizon.
    #[inline(always)]
    pub(crate) fn units_at_unclamped(&self, now: Time) -> u64 {
        if matches!(self, BucketClock::Nanos) {
            now.nanos()
        } else {
            self.units_at_slow(now.min(Limit::HORIZON))
        }
    }

    /// The first timestamp at which the bucket's time is `units`.
    #[inline]
    pub fn time_of(&self, units: u64) -> Time {
        if matches!(self, BucketClock::Nanos) { Time::from_nanos(units) } else { self.time_of_slow(units) }
    }

    /// Out of line, like its inverse: both are rare.
    #[inline(never)]
    fn units_at_slow(&self, now: Time) -> u64 {
        match *self {
            BucketClock::Nanos => now.nanos(),
            BucketClock::Ticks { ticks, period_ns } => mul_div_floor(now.nanos(), ticks, period_ns),
            BucketClock::Steps { tick_ns, units_per_tick: share } => now.nanos() / tick_ns * share,
            BucketClock::Calendar { period, refill } => period.index_at(now) * refill,
        }
    }

    #[inline(never)]
    fn time_of_slow(&self, units: u64) -> Time {
        match *self {
            BucketClock::Nanos => Time::from_nanos(units),
            BucketClock::Ticks { ticks, period_ns } => {
                Time::from_nanos(mul_div_ceil(units, period_ns, ticks))
            }
            BucketClock::Steps { tick_ns, units_per_tick: share } => {
                Time::from_nanos(units.div_ceil(share).saturating_mul(tick_ns))
            }
            BucketClock::Calendar { period, refill } => period.start_of(units.div_ceil(refill)),
        }
    }

    const fn is_continuous(&self) -> bool {
        matches!(self, BucketClock::Nanos | BucketClock::Ticks { .. })
    }
}

/// A bucket: the units of a token, the units of a full bucket, and its clock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Meter {
    pub(super) token_units: u64,
    pub(super) capacity_units: u64,
    pub(super) clock: BucketClock,
}

impl Meter {
    /// `burst` tokens that refill continuously at `rate`.
    pub fn continuous(rate: Rate, burst: u64) -> Meter {
        let period_ns = rate.period().nanos();
        if rate.count() == 0 {
            return Meter::closed(rate.period());
        }
        let token = (period_ns / rate.count()).max(1);
        let ticks = token * rate.count();
        let flow =
            if ticks == period_ns { BucketClock::Nanos } else { BucketClock::Ticks { ticks, period_ns } };
        Meter { token_units: token, capacity_units: burst * token, clock: flow }
    }

    /// A bucket of capacity zero. The state under the limit before it is kept, as one period per token used.
    pub(crate) const fn closed(period: Period) -> Meter {
        Meter { token_units: period.nanos(), capacity_units: 0, clock: BucketClock::Nanos }
    }

    /// Upper bound of a converted state, so that a debt and the cost of a burst on top of it fit 64 bits.
    const LATEST: u64 = 1 << 63;
    /// Upper bound of all states: the latest time, and a debt of two bursts.
    pub(crate) const MAX_STATE: u64 = 3 << 62;

    /// The bucket's time at `now`.
    #[inline(always)]
    pub(crate) fn units_at(&self, now: Time) -> u64 {
        self.clock.units_at(now)
    }

    pub const fn clock(&self) -> BucketClock {
        self.clock
    }

    /// The tokens of a full bucket.
    pub(crate) fn capacity(&self) -> u64 {
        self.left(self.capacity_units)
    }

    /// Charges `cost`, limited to a debt of `bound` units.
    fn charge_up_to(&self, full_at: &mut u64, now: Time, cost: u64, bound: u64) {
        let now = self.clock.units_at(now);
        let taken = (*full_at).max(now).saturating_add(cost.saturating_mul(self.token_units));
        *full_at = taken.min(now + bound).max(*full_at);
    }

    /// Decides and charges in one step: the result of [`decide`](Algorithm::decide), and the next state if that allows
    /// it.
    #[inline(always)]
    pub(crate) fn try_charge(&self, full_at: u64, now: Time, cost: u64) -> (Decision, Option<u64>) {
        match self.try_charge_units(full_at, self.clock.units_at(now), cost) {
            Some((decision, next)) => (decision, Some(next)),
            None => (self.decide(&full_at, now, cost), None),
        }
    }

    /// As above with `now` in the meter's units; `None` on denial. As few instructions as possible depend on
    /// `full_at`, whose load may miss the cache.
    #[inline(always)]
    pub(crate) fn try_charge_units(
        &self,
        full_at: u64,
        now_units: u64,
        cost: u64,
    ) -> Option<(Decision, u64)> {
        let latest = now_units + self.capacity_units;
        let need = cost.saturating_mul(self.token_units);
        if need > self.capacity_units {
            return None;
        }
        let start = full_at.max(now_units);
        let latest_start = latest - need;
        let left = || self.left(latest - start);
        (start <= latest_start).then(|| (Decision { admission: Admission::NOW, left: left() }, start + need))
    }

    /// The number of tokens in `room`; zero if a token has no units. `checked_div` cannot panic, so the compiler drops
    /// it where the result is unused.
    #[inline]
    fn left(&self, room: u64) -> u64 {
        room.checked_div(self.token_units).unwrap_or(0)
    }

    fn debt(&self, full_at: u64, now: u64) -> u64 {
        full_at.saturating_sub(now)
    }
}

impl Algorithm for Meter {
    /// When the bucket is full again; zero is a new key.
    type State = u64;

    fn fresh(&self) -> u64 {
        0
    }

    #[inline]
    fn decide(&self, full_at: &u64, now: Time, cost: u64) -> Decision {
        let now_units = self.clock.units_at(now);
        let full_at = (*full_at).max(now_units); // idle time beyond full adds nothing
        let room = (now_units + self.capacity_units).saturating_sub(full_at);
        let need = cost.saturating_mul(self.token_units);
        let admission = if need <= room {
            Admission::NOW
        } else if need > self.capacity_units {
            Admission::Never
        } else {
            let fits_at = full_at + need - self.capacity_units;
            Admission::Deny { retry_after: self.clock.time_of(fits_at).since(now) }
        };
        Decision { admission, left: self.left(room) }
    }

    #[inline]
    fn charge(&self, full_at: &mut u64, now: Time, cost: u64) {
        *full_at = (*full_at).max(self.clock.units_at(now)) + cost * self.token_units;
    }

    fn drain(&self, full_at: &mut u64, now: Time, cost: u64) {
        self.charge_up_to(full_at, now, cost, self.capacity_units);
    }

    fn add_debt(&self, full_at: &mut u64, now: Time, cost: u64) {
        self.charge_up_to(full_at, now, cost, 2 * self.capacity_units); // empty, and a debt of one burst
    }

    /// Refunds what has not been refilled since the charge.
    fn refund(&self, full_at: &mut u64, grant: &Grant, amount: u64, now: Time) {
        let then = self.clock.units_at(grant.at);
        let now = self.clock.units_at(now);
        if now > then && !self.clock.is_continuous() {
            return; // the bucket was refilled since
        }
        let kept =
            amount.min(grant.cost).saturating_mul(self.token_units).saturating_sub(now.saturating_sub(then));
        *full_at = (*full_at).saturating_sub(kept.min(self.debt(*full_at, now)));
    }

    /// Five of five used becomes five of fifty used. A debt beyond [`Self::LATEST`] is truncated.
    fn adopt(&self, old: &Meter, full_at: u64, now: Time) -> u64 {
        let debt = old.debt(full_at, old.clock.units_at(now));
        match mul_div_ceil(debt, self.token_units, old.token_units) {
            0 => self.fresh(),
            debt => self.clock.units_at(now).saturating_add(debt).min(Self::LATEST),
        }
    }

    #[inline]
    fn expires_at(&self, full_at: &u64) -> Time {
        self.clock.time_of(*full_at)
    }

    fn used(&self, full_at: &u64, now: Time) -> u64 {
        self.debt(*full_at, self.clock.units_at(now)).div_ceil(self.token_units)
    }
}

fn mul_div_floor(a: u64, b: u64, divisor: u64) -> u64 {
    saturate(u128::from(a) * u128::from(b) / u128::from(divisor))
}

pub(super) fn mul_div_ceil(a: u64, b: u64, divisor: u64) -> u64 {
    saturate((u128::from(a) * u128::from(b)).div_ceil(u128::from(divisor)))
}

fn saturate(wide: u128) -> u64 {
    u64::try_from(wide).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn meter(rate: &str, burst: u64) -> Meter {
        Meter::continuous(rate.parse().expect("a valid rate"), burst)
    }

    #[test]
    fn three_a_second_is_three_in_every_second() {
        // An interval of 333333333 ns would admit a fourth request at some point.
        let meter = meter("3/s", 1);
        let mut full_at = 0;
        let mut now = Time::from_secs(1_800_000_000);
        let start = now;
        for n in 0..3_000_000u64 {
            match meter.decide(&full_at, now, 1).admission {
                Admission::Allow { .. } => meter.charge(&mut full_at, now, 1),
                Admission::Deny { retry_after } => {
                    now = now + retry_after;
                    assert_eq!(meter.decide(&full_at, now, 1).admission, Admission::NOW);
                    meter.charge(&mut full_at, now, 1);
                }
                Admission::Never => unreachable!("one fits a burst of one"),
            }
            if n % 3 == 0 {
                assert_eq!(now.since(start).as_nanos(), u128::from(n) / 3 * 1_000_000_000);
            }
        }
    }

    #[test]
    fn long_idle_is_full_not_fuller() {
        let meter = meter("100/m", 100);
        let mut full_at = 0;
        let passed = |full_at: &mut u64, now| {
            (0..500)
                .filter(|_| {
                    let allowed = meter.decide(full_at, now, 1).is_allowed();
                    if allowed {
                        meter.charge(full_at, now, 1);
                    }
                    allowed
                })
                .count()
        };
        assert_eq!(passed(&mut full_at, Time::from_secs(1_000)), 100);
        assert_eq!(passed(&mut full_at, Time::from_secs(9_000_000)), 100);
    }

    #[test]
    fn a_million_used_of_one_a_day_is_denied() {
        // A regression: a debt of 2700 years overflowed, with a panic in debug and an open bucket in release.
        let old = meter("1_000_000/d", 1_000_000);
        let new = meter("1/d", 1);
        let now = Time::from_secs(1_800_000_000);
        let mut full_at = old.fresh();
        old.charge(&mut full_at, now, 1_000_000);
        let grant = Grant { at: now, cost: 1_000_000, mark: full_at };
        let mut full_at = new.adopt(&old, full_at, now);
        assert!(!new.decide(&full_at, now, 1).is_allowed());
        new.add_debt(&mut full_at, now, 1);
        assert!(!new.decide(&full_at, now, 1).is_allowed());
        new.refund(&mut full_at, &grant, 1_000_000, now);
        assert!(new.decide(&full_at, now, 1).is_allowed());
    }

    #[test]
    fn a_limit_of_zero_does_not_forget_what_was_used() {
        // A regression: a limit set to zero and back within a second gave a second burst.
        let open = meter("5/m", 5);
        let closed = meter("0/m", 0);
        let now = Time::from_secs(1_800_000_000);
        let mut full_at = open.fresh();
        open.charge(&mut full_at, now, 5);
        let full_at = closed.adopt(&open, full_at, now);
        let later = now + Duration::from_secs(1);
        assert_eq!(closed.used(&full_at, later), 5);
        let full_at = open.adopt(&closed, full_at, later);
        assert!(!open.decide(&full_at, later, 1).is_allowed());
    }
}
