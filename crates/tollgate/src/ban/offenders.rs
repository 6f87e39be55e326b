//! Those who were denied, and the bans that it has led to.
//!
//! Denials are counted for each rule and key, strikes for each key: they follow it from node to node with
//! its bans, and forgiving it forgets all at once.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::ban::{Ban, BanSource};
use crate::fingerprint::Fingerprint;
use crate::rule::BanPolicy;
use crate::sync::{Mutex, lock};
use crate::table::Table;
use crate::time::Time;

/// The offenders remembered at once.
const MAX_OFFENDERS: usize = 100_000;
/// Rules whose denials are remembered of one offender; the latest ones.
const MAX_RULES: usize = 64;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Offender {
    pub(crate) strikes: Strikes,
    /// By rule, the latest denial last.
    pub(crate) denials: SmallVec<[(Fingerprint, VecDeque<Time>); 1]>,
}

/// The automatic bans in a row that a key has had, and when the last of them ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Strikes {
    pub(crate) count: u32,
    pub(crate) until: Time,
}

impl Strikes {
    fn later(self, other: Strikes) -> Strikes {
        // A ban by hand has no strikes, and takes none away.
        if other.count > 0 && (other.until, other.count) > (self.until, self.count) { other } else { self }
    }
}

pub(crate) struct Offenders(Mutex<Table<Offender>>);

impl Default for Offenders {
    fn default() -> Self {
        Offenders(Mutex::new(Table::new(MAX_OFFENDERS)))
    }
}

impl Offenders {
    /// Counts a denial by a rule; returns the ban that it earns, for a reason to be filled in. `listed` is
    /// what the ban list knows of the key.
    pub(crate) fn denied(
        &self,
        key: Fingerprint,
        rule: Fingerprint,
        policy: &BanPolicy,
        listed: Strikes,
        now: Time,
    ) -> Option<Ban> {
        let mut offenders = lock(&self.0);
        let offender = offenders.touch(key, now);
        let denials = offender.denials_by(rule);
        let oldest = now - policy.within;
        denials.push_back(now);
        while denials.front().is_some_and(|at| *at <= oldest) || denials.len() > policy.after as usize {
            denials.pop_front();
        }
        if denials.len() < policy.after as usize {
            return None;
        }
        offender.denials.pop();
        let before = offender.strikes.later(listed);
        let strikes = if now >= before.until + policy.max { 1 } else { before.count.saturating_add(1) };
        let doubled = policy.first.saturating_mul(1u32.checked_shl(strikes - 1).unwrap_or(u32::MAX));
        let until = now + doubled.min(policy.max);
        offender.strikes = Strikes { count: strikes, until };
        Some(Ban { until, reason: String::new(), source: BanSource::Automatic, strikes })
    }

    /// Remembers the strikes of a ban that is no longer listed.
    pub(crate) fn remember(&self, key: Fingerprint, strikes: Strikes) {
        if strikes.count > 0 {
            let mut offenders = lock(&self.0);
            let offender = offenders.touch(key, strikes.until);
            offender.strikes = offender.strikes.later(strikes);
        }
    }

    /// Forgets the denials and strikes of a key.
    pub(crate) fn forgive(&self, key: Fingerprint) {
        lock(&self.0).remove(key);
    }

    pub(crate) fn all(&self) -> Vec<(Fingerprint, Time, Offender)> {
        let clone = |(print, touched, offender): (_, _, &Offender)| (print, touched, offender.clone());
        lock(&self.0).iter().map(clone).collect()
    }

    pub(crate) fn restore(&self, key: Fingerprint, touched: Time, offender: Offender) {
        *lock(&self.0).touch(key, touched) = offender;
    }
}

impl Offender {
    /// The denials by a rule, moved to the end.
    fn denials_by(&mut self, rule: Fingerprint) -> &mut VecDeque<Time> {
        let known = self.denials.iter().position(|(known, _)| *known == rule);
        let denials = known.map_or_else(|| (rule, VecDeque::new()), |at| self.denials.remove(at));
        if self.denials.len() >= MAX_RULES {
            self.denials.remove(0);
        }
        self.denials.push(denials);
        &mut self.denials.last_mut().expect("one was just pushed").1
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::identity::Attribute;

    const MINUTE: Duration = Duration::from_secs(60);
    const NOW: Time = Time::from_secs(1_800_000_000);
    const KEY: Fingerprint = Fingerprint(1);
    const NONE: Strikes = Strikes { count: 0, until: Time::EPOCH };

    fn policy() -> BanPolicy {
        let key = vec![Attribute::Ip];
        BanPolicy { key, after: 3, within: MINUTE * 10, first: MINUTE * 60, max: MINUTE * 180 }
    }

    fn offend(offenders: &Offenders, rule: u64, listed: Strikes, now: Time) -> Ban {
        let deny = || offenders.denied(KEY, Fingerprint(rule), &policy(), listed, now);
        assert_eq!((deny(), deny()), (None, None));
        deny().expect("the third denial bans")
    }

    #[test]
    fn bans_grow_with_each_relapse_up_to_max_and_are_forgotten() {
        let (offenders, mut now) = (Offenders::default(), NOW);
        for (strikes, minutes) in [(1, 60), (2, 120), (3, 180), (4, 180)] {
            let ban = offend(&offenders, u64::from(strikes), NONE, now);
            assert_eq!((ban.strikes, ban.until), (strikes, now + MINUTE * minutes), "whatever the rule");
            now = ban.until;
        }
        assert_eq!(offend(&offenders, 1, NONE, now + MINUTE * 180).strikes, 1, "clean for as long as max");
    }

    #[test]
    fn strikes_that_were_earned_elsewhere_count() {
        let listed = Strikes { count: 2, until: NOW };
        assert_eq!(offend(&Offenders::default(), 1, listed, NOW).strikes, 3, "as the list has it");
        let offenders = Offenders::default();
        offenders.remember(KEY, listed);
        offenders.remember(KEY, Strikes { count: 1, until: NOW - MINUTE });
        assert_eq!(offend(&offenders, 1, NONE, NOW + MINUTE * 179).strikes, 3, "as it was listed");
        offenders.remember(KEY, listed);
        assert_eq!(offend(&offenders, 1, NONE, NOW + MINUTE * 1000).strikes, 1, "too long ago");
        offenders.forgive(KEY);
        assert_eq!(offend(&offenders, 1, NONE, NOW).strikes, 1);
    }

    #[test]
    fn denials_further_apart_than_within_do_not_ban() {
        let offenders = Offenders::default();
        for n in 0..100 {
            let now = NOW + MINUTE * 5 * n;
            assert_eq!(offenders.denied(KEY, Fingerprint(1), &policy(), NONE, now), None);
        }
    }

    #[test]
    fn denials_are_counted_for_each_rule_and_the_rules_are_bounded() {
        let offenders = Offenders::default();
        for rule in 0..2 * MAX_RULES as u64 {
            let denied = offenders.denied(KEY, Fingerprint(rule), &policy(), NONE, NOW);
            assert_eq!(denied, None);
        }
        assert_eq!(offenders.all()[0].2.denials.len(), MAX_RULES);
    }
}
