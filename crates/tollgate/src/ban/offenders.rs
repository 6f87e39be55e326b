//! The offenders of this process, in a table of bounded size.
//!
//! Strikes belong to a key: they follow it from node to node with its bans, and forgiving a key clears all of its
//! record.
//!
//! An attacker can invent keys. When the table is full, a key without an entry replaces the lowest-ranked of a few
//! entries only if it was denied more often; until then it is counted in a sketch. So keys that are denied once evict
//! no other, and a key that is denied repeatedly gets an entry whatever the flood. The denials before that are not
//! counted.

use std::collections::HashSet;
use std::time::Duration;

use crate::ban::sketch::CountMinSketch;
use crate::ban::{Ban, BanConditions, BanSource, Offender, Strikes};
use crate::changes::Changes;
use crate::fingerprint::Fingerprint;
use crate::sampled_lru::SampledLru;
use crate::sync::{Mutex, lock};
use crate::time::Time;

/// Maximum number of offenders.
const MAX_OFFENDERS: usize = 100_000;
/// Maximum heap bytes of their denials, beside the table itself.
const MAX_HEAP_BYTES: usize = 32 << 20;
/// Entries that one change may evict.
const MAX_EVICTIONS: usize = 8;
/// The weight of an entry halves for each such duration since it was last touched.
const HALF_LIFE: Duration = Duration::from_secs(600);

#[derive(Default)]
pub(crate) struct Offenders(Mutex<OffenderTable>);

struct OffenderTable {
    table: SampledLru<Offender>,
    sketch: CountMinSketch,
    heap_bytes: usize,
    max_heap_bytes: usize,
}

impl Default for OffenderTable {
    fn default() -> OffenderTable {
        OffenderTable {
            table: SampledLru::new(MAX_OFFENDERS),
            sketch: CountMinSketch::default(),
            heap_bytes: 0,
            max_heap_bytes: MAX_HEAP_BYTES,
        }
    }
}

impl Offenders {
    /// Counts denials by a rule, all with the same timestamp; returns the ban that results, without its reason.
    /// `listed` are the key's strikes according to the ban list.
    pub(crate) fn record_denials(
        &self,
        key: Fingerprint,
        rule: Fingerprint,
        conditions: &BanConditions,
        listed: Strikes,
        at: Time,
        count: u32,
    ) -> Option<Ban> {
        let mut known = lock(&self.0);
        // Denials that suffice for a ban need no record of earlier ones.
        if count < conditions.after && !known.admits(key, at) {
            return None;
        }
        let Strikes { count: strikes, until } = known
            .change(key, at, |offender| offender.record_denials(rule.0, conditions, listed, at, count))?;
        Some(Ban { until, reason: String::new(), source: BanSource::Automatic, strikes })
    }

    /// Reverts a ban that found no room in the list: the key is not banned, so its denials count again.
    pub(crate) fn revert_ban(&self, key: Fingerprint, ban: &Ban, now: Time) {
        lock(&self.0).change(key, now, |Offender { strikes, .. }| {
            if strikes.until == ban.until {
                *strikes = Strikes { count: ban.strikes.saturating_sub(1), until: now };
            }
        });
    }

    /// Records the strikes of a ban that is no longer listed.
    pub(crate) fn record_strikes(&self, key: Fingerprint, strikes: Strikes) {
        if strikes.count > 0 {
            let remember = |offender: &mut Offender| offender.strikes = offender.strikes.latest(strikes);
            lock(&self.0).change(key, strikes.until, remember);
        }
    }

    /// The strikes of bans that are no longer listed.
    pub(crate) fn strikes(&self, key: Fingerprint) -> Strikes {
        lock(&self.0).table.get(key).map_or_else(Strikes::default, |offender| offender.strikes)
    }

    /// Removes the denials and strikes of a key.
    pub(crate) fn forgive(&self, key: Fingerprint) {
        lock(&self.0).remove(key);
    }

    /// A page of entries: at most `most`, from index `from`.
    pub(crate) fn rows(&self, from: usize, most: usize) -> Vec<(Fingerprint, Time, Offender)> {
        let clone =
            |(fingerprint, touched, offender): (_, _, &Offender)| (fingerprint, touched, offender.clone());
        lock(&self.0).table.rows(from, most).map(clone).collect()
    }

    pub(crate) fn get(&self, key: Fingerprint) -> Option<(Time, Offender)> {
        lock(&self.0).table.row(key).map(|(touched, offender)| (touched, offender.clone()))
    }

    /// If enabled, records which offenders change from now on.
    pub(crate) fn record(&self, changes: Changes) {
        lock(&self.0).table.record(changes);
    }

    /// The keys that have changed since the last call, and whether some were lost.
    pub(crate) fn take_changed(&self) -> (HashSet<Fingerprint>, bool) {
        lock(&self.0).table.changed().map(|keys| (keys.take(), keys.take_overflow())).unwrap_or_default()
    }

    /// Records keys again that were taken but not written.
    pub(crate) fn note_changed(&self, keys: impl Iterator<Item = Fingerprint>) {
        if let Some(changed) = lock(&self.0).table.changed() {
            keys.for_each(|key| changed.add(key));
        }
    }

    pub(crate) fn restore(&self, key: Fingerprint, touched: Time, offender: Offender) {
        lock(&self.0).change(key, touched, |known| *known = offender);
    }
}

impl OffenderTable {
    /// Whether a key has an entry, or qualifies for one.
    fn admits(&mut self, key: Fingerprint, now: Time) -> bool {
        if !self.table.is_full() || self.table.get(key).is_some() {
            return true;
        }
        let denials = self.sketch.add(key);
        match self.table.min_of_sample(|offender, touched| rank(offender, touched, now)) {
            Some((least, (weight, _))) if denials > weight => {
                self.remove(least);
                true
            }
            _ => false,
        }
    }

    /// Changes the record of a key, within the bounds.
    fn change<T>(&mut self, key: Fingerprint, now: Time, act: impl FnOnce(&mut Offender) -> T) -> T {
        if self.table.is_full() && self.table.get(key).is_none() {
            self.evict_least(key, now);
        }
        let offender = self.table.touch(key, now);
        let before = offender.heap_bytes();
        let done = act(offender);
        let after = offender.heap_bytes();
        self.heap_bytes = self.heap_bytes + after - before;
        // One change adds less than a few entries take. A bounded number of evictions bounds the time under the lock.
        for _ in 0..MAX_EVICTIONS {
            if self.heap_bytes > self.max_heap_bytes {
                self.evict_least(key, now);
            }
        }
        done
    }

    /// Evicts the lowest-ranked of a few entries, never that of `key`.
    fn evict_least(&mut self, key: Fingerprint, now: Time) {
        if let Some((least, _)) = self.table.min_of_sample(|offender, touched| rank(offender, touched, now))
            && least != key
        {
            self.remove(least);
        }
    }

    fn remove(&mut self, key: Fingerprint) {
        let removed = self.table.remove(key);
        self.heap_bytes -= removed.map_or(0, |offender| offender.heap_bytes());
    }
}

/// The eviction rank: the weight, halved with time; ties go to the later one.
fn rank(offender: &Offender, touched: Time, now: Time) -> (u64, Time) {
    let halvings = (now.since(touched).as_secs() / HALF_LIFE.as_secs()).min(63);
    (offender.weight() >> halvings, touched)
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

    const CONDITIONS: BanConditions = BanConditions {
        after: 3,
        within: MINUTE.saturating_mul(10),
        first: MINUTE.saturating_mul(60),
        max: MINUTE.saturating_mul(180),
    };

    fn offend(offenders: &Offenders, rule: u64, listed: Strikes, now: Time) -> Ban {
        let deny = || offenders.record_denials(KEY, Fingerprint(rule), &CONDITIONS, listed, now, 1);
        assert_eq!((deny(), deny()), (None, None));
        deny().expect("the third denial bans")
    }

    #[test]
    fn bans_grow_with_each_relapse_up_to_max_and_are_forgotten() {
        let offenders = Offenders::default();
        let mut now = NOW;
        for (strikes, minutes) in [(1, 60), (2, 120), (3, 180), (4, 180)] {
            let ban = offend(&offenders, u64::from(strikes), NONE, now);
            assert_eq!((ban.strikes, ban.until), (strikes, now + MINUTE * minutes), "whatever the rule");
            now = ban.until;
        }
        assert_eq!(offend(&offenders, 1, NONE, now + MINUTE * 180).strikes, 1, "clean for as long as max");
    }

    #[test]
    fn strikes_of_other_nodes_count() {
        let listed = Strikes { count: 2, until: NOW };
        assert_eq!(offend(&Offenders::default(), 1, listed, NOW).strikes, 3, "as the list has it");
        let offenders = Offenders::default();
        offenders.record_strikes(KEY, listed);
        offenders.record_strikes(KEY, Strikes { count: 1, until: NOW - MINUTE });
        assert_eq!(offend(&offenders, 1, NONE, NOW + MINUTE * 179).strikes, 3, "as it was listed");
        offenders.record_strikes(KEY, listed);
        assert_eq!(offend(&offenders, 1, NONE, NOW + MINUTE * 1000).strikes, 1, "too long ago");
        offenders.forgive(KEY);
        assert_eq!(offend(&offenders, 1, NONE, NOW).strikes, 1);
    }

    #[test]
    fn denials_further_apart_than_within_do_not_ban() {
        let offenders = Offenders::default();
        for n in 0..100 {
            let now = NOW + MINUTE * 5 * n;
            assert_eq!(offenders.record_denials(KEY, Fingerprint(1), &CONDITIONS, NONE, now, 1), None);
        }
    }

    #[test]
    fn denials_are_counted_for_each_rule_and_the_rules_are_bounded() {
        let offenders = Offenders::default();
        for rule in 0..2 * MAX_RULES as u64 {
            let denied = offenders.record_denials(KEY, Fingerprint(rule), &CONDITIONS, NONE, NOW, 1);
            assert_eq!(denied, None);
        }
        assert_eq!(offenders.rows(0, 1)[0].2.denials.len(), MAX_RULES);
    }

    /// A regression: 200,000 keys that were denied once each evicted 20 offenders from the table.
    #[test]
    fn a_flood_of_keys_denied_once_evicts_no_offender() {
        let offenders = Offenders::default();
        let mut flood = 1_000u64..;
        let rule = Fingerprint(1);
        let mut banned = 0;
        for round in 0..5 {
            for key in 0..20 {
                let fingerprint = Fingerprint(key);
                banned += u32::from(
                    offenders.record_denials(fingerprint, rule, &CONDITIONS, NONE, NOW, 1).is_some(),
                );
            }
            for n in flood.by_ref().take(if round == 0 { 200_000 } else { 40_000 }) {
                let fingerprint = Fingerprint(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                offenders.record_denials(fingerprint, rule, &CONDITIONS, NONE, NOW, 1);
            }
        }
        assert_eq!(banned, 20);
        assert!(offenders.rows(0, usize::MAX).len() <= MAX_OFFENDERS);
    }

    /// The flood came first: the table is full of keys that were denied once.
    #[test]
    fn with_a_full_table_an_offender_is_banned_at_most_two_denials_later() {
        let offenders = Offenders::default();
        let rule = Fingerprint(1);
        for n in 1_000..1_000 + MAX_OFFENDERS as u64 {
            offenders.record_denials(
                Fingerprint(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
                rule,
                &CONDITIONS,
                NONE,
                NOW,
                1,
            );
        }
        let ban = (1..10).find(|_| offenders.record_denials(KEY, rule, &CONDITIONS, NONE, NOW, 1).is_some());
        assert!(ban.is_some_and(|denials| denials <= CONDITIONS.after + 2), "{ban:?}");
    }

    #[test]
    fn the_denials_of_all_keys_take_bounded_memory() {
        let max_heap_bytes = 1 << 20;
        let offenders = Offenders(Mutex::new(OffenderTable { max_heap_bytes, ..OffenderTable::default() }));
        let conditions = BanConditions { after: 128, ..CONDITIONS };
        for n in 0..700 {
            for millis in 0..127 {
                let at = NOW + Duration::from_millis(millis);
                offenders.record_denials(Fingerprint(n), Fingerprint(1), &conditions, NONE, at, 1);
            }
        }
        let known = lock(&offenders.0);
        assert!((max_heap_bytes / 2..=max_heap_bytes).contains(&known.heap_bytes), "{}", known.heap_bytes);
        let counted: usize =
            known.table.rows(0, usize::MAX).map(|(_, _, offender)| offender.heap_bytes()).sum();
        assert_eq!(counted, known.heap_bytes);
    }
}
