//! Leaky bucket: a queue of capacity `burst` that leaks at a constant rate.
//!
//! The state is the time at which the queue will be empty. A request enters at the end and leaves when no more than
//! `after` requests are ahead: that wait is its delay. A full queue, or a wait above `max_wait`, denies. The state
//! depends on neither of the two options, so both may change at any time.

use std::time::Duration;

use crate::algorithm::gcra::Meter;
use crate::algorithm::{Admission, Algorithm, Decision, Grant};
use crate::limit::{Rate, Release};
use crate::time::Time;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LeakyBucket {
    meter: Meter,
    release: Release,
}

impl LeakyBucket {
    pub fn new(rate: Rate, burst: u64, release: Release) -> LeakyBucket {
        LeakyBucket::with_meter(Meter::continuous(rate, burst), release)
    }

    pub(super) const fn with_meter(meter: Meter, release: Release) -> LeakyBucket {
        LeakyBucket { meter, release }
    }

    pub const fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Whether requests wait in it.
    pub const fn holds(&self) -> bool {
        matches!(self.release, Release::Hold { .. })
    }

    /// How long a request that enters now is held, and by how much that exceeds the maximum.
    fn wait(&self, dry_at: u64, now: Time) -> (Duration, Duration) {
        let Release::Hold { max_wait, after } = self.release else {
            return (Duration::ZERO, Duration::ZERO);
        };
        let until = |units: u64| self.meter.clock.time_of(units).since(now);
        let turn = dry_at.saturating_sub(after.saturating_mul(self.meter.token_units));
        let wait = until(turn);
        let too_long = match max_wait {
            Some(max_wait) => wait.saturating_sub(max_wait),
            None => until(turn.saturating_sub(self.meter.capacity_units)),
        };
        (wait, too_long)
    }
}

impl Algorithm for LeakyBucket {
    type State = u64;

    fn fresh(&self) -> u64 {
        self.meter.fresh()
    }

    fn decide(&self, dry_at: &u64, now: Time, cost: u64) -> Decision {
        let Decision { admission, left } = self.meter.decide(dry_at, now, cost);
        let (wait, too_long) = self.wait(*dry_at, now);
        let admission = match admission {
            Admission::Never => Admission::Never,
            Admission::Allow { .. } if too_long.is_zero() => Admission::Allow { delay: wait },
            Admission::Allow { .. } => Admission::Deny { retry_after: too_long },
            Admission::Deny { retry_after } => Admission::Deny { retry_after: retry_after.max(too_long) },
        };
        Decision { admission, left }
    }

    fn charge(&self, dry_at: &mut u64, now: Time, cost: u64) {
        self.meter.charge(dry_at, now, cost);
    }

    fn drain(&self, dry_at: &mut u64, now: Time, cost: u64) {
        self.meter.drain(dry_at, now, cost);
    }

    fn add_debt(&self, dry_at: &mut u64, now: Time, cost: u64) {
        self.meter.add_debt(dry_at, now, cost);
    }

    /// Leaves the queue if the request is still the last one in it; the delays of later requests are already promised.
    /// Then the queue is as if the request had never entered: what has leaked since belonged to those in front.
    fn refund(&self, dry_at: &mut u64, grant: &Grant, amount: u64, now: Time) {
        if *dry_at == grant.mark {
            let standing = dry_at.saturating_sub(self.meter.clock.units_at(now));
            *dry_at -= amount.min(grant.cost).saturating_mul(self.meter.token_units).min(standing);
        }
    }

    fn adopt(&self, old: &LeakyBucket, dry_at: u64, now: Time) -> u64 {
        self.meter.adopt(&old.meter, dry_at, now)
    }

    fn expires_at(&self, dry_at: &u64) -> Time {
        self.meter.expires_at(dry_at)
    }

    fn used(&self, dry_at: &u64, now: Time) -> u64 {
        self.meter.used(dry_at, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seven_at_once(release: Release) -> Vec<Admission> {
        // nginx: rate=1r/s burst=5
        at_once(7, "1/s", 6, release)
    }

    const fn hold(max_wait_ms: u64, after: u64) -> Release {
        Release::Hold { max_wait: Some(Duration::from_millis(max_wait_ms)), after }
    }

    fn at_once(requests: u64, rate: &str, burst: u64, release: Release) -> Vec<Admission> {
        let bucket = LeakyBucket::new(rate.parse().expect("valid"), burst, release);
        let now = Time::from_secs(1_800_000_000);
        let mut dry_at = 0;
        let mut admissions = Vec::new();
        for _ in 0..requests {
            let decision = bucket.decide(&dry_at, now, 1);
            if decision.is_allowed() {
                bucket.charge(&mut dry_at, now, 1);
            }
            admissions.push(decision.admission);
        }
        admissions
    }

    #[test]
    fn of_seven_at_once_one_passes_five_wait_and_the_seventh_is_denied() {
        let mut expected: Vec<_> =
            (0..6).map(|n| Admission::Allow { delay: Duration::from_secs(n) }).collect();
        expected.push(Admission::Deny { retry_after: Duration::from_secs(1) });
        assert_eq!(seven_at_once(Release::HOLD), expected);
    }

    #[test]
    fn without_delay_six_pass_at_once() {
        let mut expected = vec![Admission::NOW; 6];
        expected.push(Admission::Deny { retry_after: Duration::from_secs(1) });
        assert_eq!(seven_at_once(Release::AtOnce), expected);
    }

    #[test]
    fn a_wait_above_max_wait_is_denied_until_it_is_short_enough() {
        let admissions = seven_at_once(hold(2500, 0));
        assert_eq!(admissions[2], Admission::Allow { delay: Duration::from_secs(2) });
        assert_eq!(admissions[3], Admission::Deny { retry_after: Duration::from_millis(500) });
    }

    #[test]
    fn the_queue_is_the_only_bound_by_default() {
        // A regression: with a default wait of 30 s only three of five simultaneous requests were admitted.
        let seconds = |n| Duration::from_secs(n);
        let mut expected: Vec<_> = (0..5).map(|n| Admission::Allow { delay: seconds(12 * n) }).collect();
        expected.push(Admission::Deny { retry_after: seconds(12) });
        assert_eq!(at_once(6, "5/m", 5, Release::HOLD), expected);
    }

    #[test]
    fn only_what_has_more_than_so_many_ahead_is_held() {
        // nginx: rate=1r/s burst=12 delay=8
        let mut expected = vec![Admission::NOW; 9];
        expected.extend((1..5).map(|n| Admission::Allow { delay: Duration::from_secs(n) }));
        expected.push(Admission::Deny { retry_after: Duration::from_secs(1) });
        assert_eq!(at_once(14, "1/s", 13, Release::Hold { max_wait: None, after: 8 }), expected);
        // The number of held requests is bounded, not the number ahead.
        let admissions = at_once(14, "1/s", 13, hold(1500, 8));
        assert_eq!(admissions[9], Admission::Allow { delay: Duration::from_secs(1) });
        assert_eq!(admissions[10], Admission::Deny { retry_after: Duration::from_millis(500) });
    }

    #[test]
    fn a_cost_of_nothing_waits_no_longer_than_a_full_queue_drains() {
        let bucket = LeakyBucket::new("3/s".parse().expect("valid"), 4, Release::HOLD);
        let now = Time::from_nanos(1_800_000_000_000_000_001);
        let mut dry_at = 0;
        bucket.add_debt(&mut dry_at, now, 4);
        let full = bucket.decide(&dry_at, now, 0);
        assert!(full.is_allowed(), "{full:?}");
        bucket.add_debt(&mut dry_at, now, 1);
        let Admission::Deny { retry_after } = bucket.decide(&dry_at, now, 0).admission else {
            panic!("more than a full queue is ahead");
        };
        assert!(bucket.decide(&dry_at, now + retry_after, 0).is_allowed());
        assert!(!bucket.decide(&dry_at, now + retry_after - Duration::from_nanos(1), 0).is_allowed());
    }

    #[test]
    fn a_counted_denial_takes_its_own_place_in_the_queue_and_no_other() {
        // A regression: one hit denied for its wait filled the whole queue, and all others waited for it.
        let bucket = LeakyBucket::new("1/s".parse().expect("valid"), 6, hold(500, 0));
        let now = Time::from_secs(1_800_000_000);
        let mut dry_at = 0;
        bucket.charge(&mut dry_at, now, 1);
        assert!(!bucket.decide(&dry_at, now, 1).is_allowed());
        bucket.drain(&mut dry_at, now, 1);
        assert_eq!(bucket.used(&dry_at, now), 2);
    }
}
