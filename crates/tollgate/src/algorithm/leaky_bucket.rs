//! Leaky bucket: a queue of capacity `burst` that leaks at a constant rate.
//!
//! The state is when the queue will have run dry. A request enters behind all others and leaves when
//! they have leaked: that wait is its delay. A full queue, or a wait above `max_wait`, denies.

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
        LeakyBucket::of(Meter::continuous(rate, burst), release)
    }

    pub(super) const fn of(meter: Meter, release: Release) -> LeakyBucket {
        LeakyBucket { meter, release }
    }

    pub const fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Whether requests wait in it.
    pub const fn holds(&self) -> bool {
        matches!(self.release, Release::Hold { .. })
    }

    /// How long a request that enters now waits for its turn.
    fn wait(&self, dry_at: u64, now: Time) -> Duration {
        match self.release {
            Release::AtOnce => Duration::ZERO,
            Release::Hold { .. } => self.meter.flow.time_of(dry_at).since(now),
        }
    }

    fn longest_wait(&self) -> Duration {
        match self.release {
            Release::AtOnce => Duration::MAX,
            Release::Hold { max_wait } => max_wait,
        }
    }
}

impl Algorithm for LeakyBucket {
    type State = u64;

    fn fresh(&self) -> u64 {
        self.meter.fresh()
    }

    fn decide(&self, dry_at: &u64, now: Time, cost: u64) -> Decision {
        let Decision { admission, left } = self.meter.decide(dry_at, now, cost);
        let wait = self.wait(*dry_at, now);
        let too_long = wait.saturating_sub(self.longest_wait());
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

    fn owe(&self, dry_at: &mut u64, now: Time, cost: u64) {
        self.meter.owe(dry_at, now, cost);
    }

    /// Leaves the queue, unless somebody has entered behind: their turn is already promised. Nobody behind,
    /// the queue is as if it had never been entered; what has leaked since was of those in front.
    fn refund(&self, dry_at: &mut u64, grant: &Grant, amount: u64, now: Time) {
        if *dry_at == grant.mark {
            let standing = dry_at.saturating_sub(self.meter.flow.units_at(now));
            *dry_at -= amount.min(grant.cost).saturating_mul(self.meter.token).min(standing);
        }
    }

    fn adopt(&self, old: &LeakyBucket, dry_at: u64, now: Time) -> u64 {
        self.meter.adopt(&old.meter, dry_at, now)
    }

    fn fresh_at(&self, dry_at: &u64) -> Time {
        self.meter.fresh_at(dry_at)
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
        let bucket = LeakyBucket::new("1/s".parse().expect("valid"), 6, release);
        let now = Time::from_secs(1_800_000_000);
        let mut dry_at = 0;
        let mut admissions = Vec::new();
        for _ in 0..7 {
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
        assert_eq!(seven_at_once(Release::Hold { max_wait: Duration::from_secs(30) }), expected);
    }

    #[test]
    fn without_delay_six_pass_at_once() {
        let mut expected = vec![Admission::NOW; 6];
        expected.push(Admission::Deny { retry_after: Duration::from_secs(1) });
        assert_eq!(seven_at_once(Release::AtOnce), expected);
    }

    #[test]
    fn a_wait_above_max_wait_is_denied_until_it_is_short_enough() {
        let admissions = seven_at_once(Release::Hold { max_wait: Duration::from_millis(2500) });
        assert_eq!(admissions[2], Admission::Allow { delay: Duration::from_secs(2) });
        assert_eq!(admissions[3], Admission::Deny { retry_after: Duration::from_millis(500) });
    }

    #[test]
    fn a_counted_denial_takes_its_own_place_in_the_queue_and_no_other() {
        // One hit denied for its wait filled the whole queue, and everybody waited for it.
        let hold = Release::Hold { max_wait: Duration::from_millis(500) };
        let bucket = LeakyBucket::new("1/s".parse().expect("valid"), 6, hold);
        let now = Time::from_secs(1_800_000_000);
        let mut dry_at = 0;
        bucket.charge(&mut dry_at, now, 1);
        assert!(!bucket.decide(&dry_at, now, 1).is_allowed());
        bucket.drain(&mut dry_at, now, 1);
        assert_eq!(bucket.used(&dry_at, now), 2);
    }
}
