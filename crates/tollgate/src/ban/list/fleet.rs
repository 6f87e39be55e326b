//! Bans that are decided for all nodes: what is left for them to count, and what comes back.

use crate::ban::list::{BanList, Inserted};
use crate::ban::{Ban, BanSource, BanTerms, Violations};
use crate::identity::Key;
use crate::rule::RuleId;
use crate::sync::lock;
use crate::time::Time;

impl BanList {
    /// Notes a violation: counted at once, or left for a store that nodes share. Says whether it has led to a ban.
    pub(crate) fn violated(&self, key: &Key, rule: &RuleId, terms: BanTerms, now: Time) -> bool {
        if !self.waiting.is_shared() {
            return self.denied(key, rule.as_str(), &terms, now, 1);
        }
        let print = self.print(key);
        if now >= self.strikes(print).until {
            self.waiting.push(print, key, rule, terms, now);
        }
        false
    }

    /// The violations that wait, but for those that a ban known by now has covered.
    pub(crate) fn take_violations(&self) -> Vec<Violations> {
        let known = |print| self.strikes(print).later(self.offenders.strikes(print));
        let taken = self.waiting.take().into_iter();
        taken.filter_map(|(print, violations)| violations.after(known(print))).collect()
    }

    /// Enters a ban that was decided for all nodes by what this one has sent; `false` if it was known or found no room.
    pub(crate) fn insert_decided(&self, key: &Key, ban: &Ban, now: Time) -> bool {
        let inserted = self.insert_longer(key, ban, now);
        if inserted == Inserted::New {
            self.earned.push(key, ban);
        }
        if inserted != Inserted::Full {
            self.fleet.add(self.print(key), ban.until, now);
        }
        inserted == Inserted::New
    }

    /// Enters a ban that was decided by what another node has sent.
    pub(crate) fn learn(&self, key: &Key, ban: &Ban, now: Time) {
        if ban.until <= now {
            return self.offenders.remember(self.print(key), ban.strikes());
        }
        if self.insert_longer(key, ban, now) != Inserted::Full {
            self.fleet.add(self.print(key), ban.until, now);
        }
    }

    /// Follows the lifting of an automatic ban elsewhere.
    pub(crate) fn learn_lift(&self, key: &Key, until: Time, now: Time) -> Option<Ban> {
        let print = self.print(key);
        let listed = self.get(key, now);
        if listed.is_some_and(|ban| ban.until > until || ban.source != BanSource::Automatic) {
            return None;
        }
        self.fleet.remove(print);
        let removed = self.strike_off(&mut lock(&self.census), key);
        self.offenders.forgive(print);
        removed.filter(|ban| ban.until > now)
    }
}
