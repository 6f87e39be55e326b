//! What is held against one ban key, as one value: the offender, its last ban, and who has written last.

use ring::digest::{SHA256, digest};
use tollgate::Time;
use tollgate::ban::{Ban, BanSource, MAX_RULES, MAX_TIMES, Offender, RuleDenials, Strikes, Violations};

use super::Outcome;
use crate::counters::number::{pop, push_all};

/// A value of another version is refused: overwriting it would forget what a newer release has counted.
const VERSION: u8 = 1;
/// Writers whose latest stamp is remembered, those that wrote last.
const MAX_WRITERS: usize = 32;
/// Rules' ids and reasons are shorter.
const MAX_TEXT_BYTES: usize = 256;

/// One write of one process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Stamp {
    pub(super) writer: u64,
    pub(super) sequence: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Record {
    offender: Offender,
    last: LastBan,
    /// Until when all of it is of interest.
    kept_until: Time,
    stamps: Vec<Stamp>,
}

/// The last automatic ban; its end is in the offender's strikes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct LastBan {
    began: Time,
    rule: String,
    reason: String,
    by: Stamp,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Counted {
    /// Nothing has changed: the key is banned, or the write was done before.
    Before,
    Changed,
}

impl Record {
    pub(super) fn count(&mut self, violations: &Violations, stamp: Stamp) -> Counted {
        if self.stamps.iter().any(|known| known.writer == stamp.writer && known.sequence >= stamp.sequence) {
            return Counted::Before;
        }
        let before = self.offender.clone();
        for by in &violations.by {
            let rule = by.rule.as_str();
            for (at, count) in &by.times {
                self.kept_until = self.kept_until.max(*at + by.terms.within);
                let denied = self.offender.denied(hash(rule), &by.terms, violations.known, *at, *count);
                if let Some(Strikes { until, .. }) = denied {
                    let (rule, reason) = (rule.to_owned(), by.terms.reason(rule));
                    self.last = LastBan { began: *at, rule, reason, by: stamp };
                    self.kept_until = self.kept_until.max(until + by.terms.max);
                }
            }
        }
        if self.offender == before {
            return Counted::Before;
        }
        self.sign(stamp);
        Counted::Changed
    }

    /// Forgets everything but the stamps; `false` if there was nothing.
    pub(super) fn forgive(&mut self) -> bool {
        let had = self.offender != Offender::default();
        *self = Record { stamps: std::mem::take(&mut self.stamps), ..Record::default() };
        had
    }

    pub(super) fn outcome(&self, stamp: Stamp, now: Time) -> Outcome {
        let Strikes { count, until } = self.offender.strikes;
        if until <= now {
            return Outcome::Counted;
        }
        let reason = self.last.reason.clone();
        let ban = Ban { until, reason, source: BanSource::Automatic, strikes: count };
        match self.last.by == stamp {
            true => Outcome::Banned { rule: self.last.rule.clone(), ban },
            false => Outcome::WasBanned { ban, began: self.last.began },
        }
    }

    pub(super) fn banned_until(&self) -> Time {
        self.offender.strikes.until
    }

    pub(super) fn kept_until(&self) -> Time {
        self.kept_until
    }

    fn sign(&mut self, stamp: Stamp) {
        self.stamps.retain(|known| known.writer != stamp.writer);
        if self.stamps.len() >= MAX_WRITERS {
            self.stamps.remove(0);
        }
        self.stamps.push(stamp);
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let Record { offender, last, kept_until, stamps } = self;
        let strikes = offender.strikes;
        let mut bytes = vec![VERSION];
        push_all(&mut bytes, [strikes.count.into(), strikes.until.nanos(), kept_until.nanos()]);
        push_all(&mut bytes, [last.began.nanos(), last.by.writer, last.by.sequence]);
        push_text(&mut bytes, &last.rule);
        push_text(&mut bytes, &last.reason);
        push_all(&mut bytes, [stamps.len() as u64]);
        stamps.iter().for_each(|stamp| push_all(&mut bytes, [stamp.writer, stamp.sequence]));
        push_all(&mut bytes, [offender.denials.len() as u64]);
        for RuleDenials { rule, times } in &offender.denials {
            push_all(&mut bytes, [*rule, times.len() as u64]);
            let mut before = 0;
            for (at, count) in times {
                push_all(&mut bytes, [at.nanos() - before, (*count).into()]);
                before = at.nanos();
            }
        }
        bytes
    }

    /// `None` if the bytes are no record of ours.
    pub(super) fn decode(bytes: &[u8]) -> Option<Record> {
        let (&version, mut rest) = bytes.split_first()?;
        if version != VERSION {
            return None;
        }
        let rest = &mut rest;
        let (count, until) = (u32::try_from(pop(rest)?).ok()?, pop_time(rest)?);
        let (kept_until, began) = (pop_time(rest)?, pop_time(rest)?);
        let by = pop_stamp(rest)?;
        let (rule, reason) = (pop_text(rest, MAX_TEXT_BYTES)?, pop_text(rest, MAX_TEXT_BYTES)?);
        let stamps = (0..pop_up_to(rest, MAX_WRITERS)?).map(|_| pop_stamp(rest)).collect::<Option<_>>()?;
        let denials = (0..pop_up_to(rest, MAX_RULES)?).map(|_| pop_denials(rest)).collect::<Option<_>>()?;
        let offender = Offender { strikes: Strikes { count, until }, denials };
        let last = LastBan { began, rule, reason, by };
        rest.is_empty().then_some(Record { offender, last, kept_until, stamps })
    }
}

/// A rule is known by the same number on all nodes.
fn hash(rule: &str) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&digest(&SHA256, rule.as_bytes()).as_ref()[..8]);
    u64::from_le_bytes(word)
}

fn pop_denials(rest: &mut &[u8]) -> Option<RuleDenials> {
    let rule = pop(rest)?;
    let mut at = 0u64;
    let times = (0..pop_up_to(rest, MAX_TIMES as usize + 1)?).map(|_| {
        at = at.checked_add(pop(rest)?)?;
        Some((Time::from_nanos(at), u32::try_from(pop(rest)?).ok()?))
    });
    Some(RuleDenials { rule, times: times.collect::<Option<_>>()? })
}

fn pop_stamp(rest: &mut &[u8]) -> Option<Stamp> {
    Some(Stamp { writer: pop(rest)?, sequence: pop(rest)? })
}

fn pop_time(rest: &mut &[u8]) -> Option<Time> {
    pop(rest).map(Time::from_nanos)
}

fn pop_up_to(rest: &mut &[u8], max: usize) -> Option<usize> {
    usize::try_from(pop(rest)?).ok().filter(|count| *count <= max)
}

pub(super) fn push_text(bytes: &mut Vec<u8>, text: &str) {
    push_all(bytes, [text.len() as u64]);
    bytes.extend_from_slice(text.as_bytes());
}

pub(super) fn pop_bytes<'b>(rest: &mut &'b [u8], max: usize) -> Option<&'b [u8]> {
    let len = pop_up_to(rest, max)?;
    let (bytes, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(bytes)
}

pub(super) fn pop_text(rest: &mut &[u8], max: usize) -> Option<String> {
    String::from_utf8(pop_bytes(rest, max)?.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate::ban::{BanTerms, RuleViolations};
    use tollgate::identity::Key;
    use tollgate::rule::RuleId;

    use super::*;

    const NOW: Time = Time::from_secs(1_800_000_000);
    const MINUTE: Duration = Duration::from_secs(60);

    fn violations(rule: &str, after: u32, times: &[(Time, u32)]) -> Violations {
        let rule = RuleId::new(rule).expect("valid");
        let terms = BanTerms { after, within: MINUTE * 10, first: MINUTE, max: MINUTE * 60 };
        let by = RuleViolations { rule, terms, times: times.iter().copied().collect() };
        let key = Key::parse("user:1").expect("valid");
        Violations { key, known: Strikes::default(), by: [by].into_iter().collect() }
    }

    fn stamp(writer: u64, sequence: u64) -> Stamp {
        Stamp { writer, sequence }
    }

    /// As a store keeps it.
    fn kept(record: &Record) -> Record {
        Record::decode(&record.encode()).expect("our own bytes")
    }

    #[test]
    fn a_write_that_is_sent_again_counts_once() {
        let mut record = Record::default();
        let two = violations("a", 5, &[(NOW, 2)]);
        for _ in 0..3 {
            record = kept(&record);
            record.count(&two, stamp(1, 1));
            record.count(&two, stamp(2, 9));
        }
        assert_eq!(record.outcome(stamp(2, 9), NOW), Outcome::Counted, "four of five");
        assert_eq!(record.count(&two, stamp(1, 2)), Counted::Changed);
        for _ in 0..2 {
            let banned = record.outcome(stamp(1, 2), NOW);
            let Outcome::Banned { rule, ban } = banned else { panic!("{banned:?}") };
            assert_eq!((rule.as_str(), ban.strikes, ban.until), ("a", 1, NOW + MINUTE));
            assert_eq!(
                record.count(&two, stamp(1, 2)),
                Counted::Before,
                "whoever decided it finds that it did"
            );
            record = kept(&record);
        }
    }

    #[test]
    fn violations_of_other_nodes_from_the_same_burst_are_no_second_strike() {
        let mut record = Record::default();
        record.count(&violations("a", 3, &[(NOW, 3)]), stamp(1, 1));
        for (writer, rule) in [(2, "a"), (3, "b"), (4, "c")] {
            let late = violations(rule, 1, &[(NOW - MINUTE, 9), (NOW, 9)]);
            assert_eq!(record.count(&late, stamp(writer, 1)), Counted::Before);
            let outcome = record.outcome(stamp(writer, 1), NOW);
            assert!(matches!(outcome, Outcome::WasBanned { ban, began } if ban.strikes == 1 && began == NOW));
        }
        record.count(&violations("b", 1, &[(NOW + MINUTE, 1)]), stamp(3, 2));
        assert_eq!(record.offender.strikes, Strikes { count: 2, until: NOW + MINUTE * 3 });
        assert_eq!(record.kept_until(), NOW + MINUTE * 63, "strikes are forgotten after max");
    }

    #[test]
    fn what_is_forgiven_begins_anew_and_is_not_counted_late() {
        let mut record = Record::default();
        let three = violations("a", 3, &[(NOW, 3)]);
        record.count(&three, stamp(1, 1));
        assert!(record.forgive() && !record.forgive());
        assert_eq!(record.count(&three, stamp(1, 1)), Counted::Before);
        assert_eq!(record.outcome(stamp(1, 1), NOW), Outcome::Counted);
        record.count(&three, stamp(1, 2));
        assert_eq!(record.offender.strikes.count, 1);
    }

    #[test]
    fn a_record_is_bounded_and_read_as_it_was_written() {
        let (mut record, mut random) = (Record::default(), fastrand::Rng::with_seed(7));
        for n in 0..20_000 {
            let at = NOW + Duration::from_millis(n * 97);
            let rule = format!("rule-{}", random.u32(..100));
            let after = *random.choice(&[2, 60, 128, 129, 1_000]).expect("there are some");
            record.count(&violations(&rule, after, &[(at, random.u32(1..3))]), stamp(random.u64(1..50), n));
            let bytes = record.encode();
            assert!(bytes.len() < 100_000);
            if n % 100 == 0 {
                assert_eq!(Record::decode(&bytes).as_ref(), Some(&record));
            }
        }
    }

    #[test]
    fn bytes_of_others_are_no_record() {
        let mut record = Record::default();
        record.count(&violations("a", 3, &[(NOW, 3)]), stamp(1, 1));
        let bytes = record.encode();
        for end in 0..bytes.len() {
            assert_eq!(Record::decode(&bytes[..end]), None);
        }
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let mut strange = bytes.clone();
            let place = random.usize(..strange.len());
            strange[place] = random.u8(..);
            if let Some(mut read) = Record::decode(&strange) {
                read.count(&violations("a", 3, &[(NOW, 3)]), stamp(2, 1)); // whatever it says, nothing breaks
                read.encode();
            }
        }
    }
}
