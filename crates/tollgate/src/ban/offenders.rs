//! The offenders of this process: what is held against each key, in a table of bounded size.
//!
//! Strikes belong to a key: they follow it from node to node with its bans, and forgiving it forgets all at once.

use crate::ban::{Ban, BanSource, BanTerms, Offender, Strikes};
use crate::fingerprint::Fingerprint;
use crate::sync::{Mutex, lock};
use crate::table::Table;
use crate::time::Time;

/// The offenders remembered at once.
const MAX_OFFENDERS: usize = 100_000;

pub(crate) struct Offenders(Mutex<Table<Offender>>);

impl Default for Offenders {
    fn default() -> Self {
        Offenders(Mutex::new(Table::new(MAX_OFFENDERS)))
    }
}

impl Offenders {
    /// Counts denials by a rule, all of one moment; returns the ban that they earn, for a reason to be filled in.
    /// `listed` is what the ban list knows of the key.
    pub(crate) fn denied(
        &self,
        key: Fingerprint,
        rule: Fingerprint,
        terms: &BanTerms,
        listed: Strikes,
        at: Time,
        count: u32,
    ) -> Option<Ban> {
        let mut offenders = lock(&self.0);
        let Strikes { count: strikes, until } =
            offenders.touch(key, at).denied(rule.0, terms, listed, at, count)?;
        Some(Ban { until, reason: String::new(), source: BanSource::Automatic, strikes })
    }

    /// Takes back a ban that found no room in the list: the key is not banned, so its denials count again.
    pub(crate) fn withdraw(&self, key: Fingerprint, ban: &Ban, now: Time) {
        let mut offenders = lock(&self.0);
        let strikes = &mut offenders.touch(key, now).strikes;
        if strikes.until == ban.until {
            *strikes = Strikes { count: ban.strikes.saturating_sub(1), until: now };
        }
    }

    /// Remembers the strikes of a ban that is no longer listed.
    pub(crate) fn remember(&self, key: Fingerprint, strikes: Strikes) {
        if strikes.count > 0 {
            let mut offenders = lock(&self.0);
            let offender = offenders.touch(key, strikes.until);
            offender.strikes = offender.strikes.later(strikes);
        }
    }

    /// The strikes of bans that are no longer listed.
    pub(crate) fn strikes(&self, key: Fingerprint) -> Strikes {
        lock(&self.0).get(key).map_or_else(Strikes::default, |offender| offender.strikes)
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ban::offender::MAX_RULES;

    const MINUTE: Duration = Duration::from_secs(60);
    const NOW: Time = Time::from_secs(1_800_000_000);
    const KEY: Fingerprint = Fingerprint(1);
    const NONE: Strikes = Strikes { count: 0, until: Time::EPOCH };

    const TERMS: BanTerms = BanTerms {
        after: 3,
        within: MINUTE.saturating_mul(10),
        first: MINUTE.saturating_mul(60),
        max: MINUTE.saturating_mul(180),
    };

    fn offend(offenders: &Offenders, rule: u64, listed: Strikes, now: Time) -> Ban {
        let deny = || offenders.denied(KEY, Fingerprint(rule), &TERMS, listed, now, 1);
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
            assert_eq!(offenders.denied(KEY, Fingerprint(1), &TERMS, NONE, now, 1), None);
        }
    }

    #[test]
    fn denials_are_counted_for_each_rule_and_the_rules_are_bounded() {
        let offenders = Offenders::default();
        for rule in 0..2 * MAX_RULES as u64 {
            let denied = offenders.denied(KEY, Fingerprint(rule), &TERMS, NONE, NOW, 1);
            assert_eq!(denied, None);
        }
        assert_eq!(offenders.all()[0].2.denials.len(), MAX_RULES);
    }
}
