//! The record of one ban key as one value: the offender, its last ban, and the latest writes.

use ring::digest::{SHA256, digest};
use tollgate::Time;
use tollgate::internal::ban::{
    Ban, BanSource, MAX_RULES, MAX_TIMES, Offender, RuleDenials, Strikes, Violations,
};

use super::ViolationOutcome;
use crate::counters::varint::{pop_varint, push_varints};

/// Values of another version are rejected: overwriting one would lose counts of a newer release.
const VERSION: u8 = 1;
/// Writers whose latest write id is kept; the least recent is dropped.
const MAX_WRITERS: usize = 32;
/// Upper bound of rule ids and reasons.
const MAX_TEXT_BYTES: usize = 256;

/// Identifies one write of one process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct WriteId {
    pub(super) writer: u64,
    pub(super) sequence: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct OffenderRecord {
    offender: Offender,
    last_ban: LastBan,
    /// When the record may be deleted.
    expires_at: Time,
    recent_writes: Vec<WriteId>,
}

/// The last automatic ban; its end is in the offender's strikes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct LastBan {
    started_at: Time,
    rule: String,
    reason: String,
    write_id: WriteId,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RecordChange {
    /// Nothing has changed: the key is banned, or the write was applied before.
    Unchanged,
    Changed,
}

impl OffenderRecord {
    pub(super) fn count(&mut self, violations: &Violations, write_id: WriteId) -> RecordChange {
        if self
            .recent_writes
            .iter()
            .any(|known| known.writer == write_id.writer && known.sequence >= write_id.sequence)
        {
            return RecordChange::Unchanged;
        }
        let before = self.offender.clone();
        for by in &violations.by_rule {
            let rule = by.rule.as_str();
            for (at, count) in &by.times {
                self.expires_at = self.expires_at.max(*at + by.conditions.within);
                let denied = self.offender.record_denials(
                    rule_hash(rule),
                    &by.conditions,
                    violations.known_strikes,
                    *at,
                    *count,
                );
                if let Some(Strikes { until, .. }) = denied {
                    let reason = by.conditions.reason(rule);
                    let rule = rule.to_owned();
                    self.last_ban = LastBan { started_at: *at, rule, reason, write_id };
                    self.expires_at = self.expires_at.max(until + by.conditions.max);
                }
            }
        }
        if self.offender == before {
            return RecordChange::Unchanged;
        }
        self.remember_write(write_id);
        RecordChange::Changed
    }

    /// Clears everything but the write ids; `false` if there was nothing to clear.
    pub(super) fn forgive(&mut self) -> bool {
        let had = self.offender != Offender::default();
        *self = OffenderRecord {
            recent_writes: std::mem::take(&mut self.recent_writes),
            ..OffenderRecord::default()
        };
        had
    }

    pub(super) fn outcome(&self, write_id: WriteId, now: Time) -> ViolationOutcome {
        let Strikes { count, until } = self.offender.strikes;
        if until <= now {
            return ViolationOutcome::Counted;
        }
        let reason = self.last_ban.reason.clone();
        let ban = Ban { until, reason, source: BanSource::Automatic, strikes: count };
        match self.last_ban.write_id == write_id {
            true => ViolationOutcome::Banned { rule: self.last_ban.rule.clone(), ban },
            false => ViolationOutcome::AlreadyBanned { ban, started_at: self.last_ban.started_at },
        }
    }

    pub(super) fn banned_until(&self) -> Time {
        self.offender.strikes.until
    }

    pub(super) fn expires_at(&self) -> Time {
        self.expires_at
    }

    fn remember_write(&mut self, write_id: WriteId) {
        self.recent_writes.retain(|known| known.writer != write_id.writer);
        if self.recent_writes.len() >= MAX_WRITERS {
            self.recent_writes.remove(0);
        }
        self.recent_writes.push(write_id);
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let OffenderRecord { offender, last_ban, expires_at, recent_writes } = self;
        let strikes = offender.strikes;
        let mut bytes = vec![VERSION];
        push_varints(&mut bytes, [strikes.count.into(), strikes.until.nanos(), expires_at.nanos()]);
        push_varints(
            &mut bytes,
            [last_ban.started_at.nanos(), last_ban.write_id.writer, last_ban.write_id.sequence],
        );
        push_text(&mut bytes, &last_ban.rule);
        push_text(&mut bytes, &last_ban.reason);
        push_varints(&mut bytes, [recent_writes.len() as u64]);
        recent_writes.iter().for_each(|write| push_varints(&mut bytes, [write.writer, write.sequence]));
        push_varints(&mut bytes, [offender.denials.len() as u64]);
        for RuleDenials { rule, times } in &offender.denials {
            push_varints(&mut bytes, [*rule, times.len() as u64]);
            let mut before = 0;
            for (at, count) in times {
                push_varints(&mut bytes, [at.nanos() - before, (*count).into()]);
                before = at.nanos();
            }
        }
        bytes
    }

    /// `None` if the bytes are not a valid record.
    pub(super) fn decode(bytes: &[u8]) -> Option<OffenderRecord> {
        let (&version, mut rest) = bytes.split_first()?;
        if version != VERSION {
            return None;
        }
        let rest = &mut rest;
        let count = u32::try_from(pop_varint(rest)?).ok()?;
        let until = pop_time(rest)?;
        let expires_at = pop_time(rest)?;
        let started_at = pop_time(rest)?;
        let write_id = pop_write_id(rest)?;
        let rule = pop_text(rest, MAX_TEXT_BYTES)?;
        let reason = pop_text(rest, MAX_TEXT_BYTES)?;
        let recent_writes =
            (0..pop_up_to(rest, MAX_WRITERS)?).map(|_| pop_write_id(rest)).collect::<Option<_>>()?;
        let denials = (0..pop_up_to(rest, MAX_RULES)?).map(|_| pop_denials(rest)).collect::<Option<_>>()?;
        let offender = Offender { strikes: Strikes { count, until }, denials };
        let last_ban = LastBan { started_at, rule, reason, write_id };
        rest.is_empty().then_some(OffenderRecord { offender, last_ban, expires_at, recent_writes })
    }
}

/// Identifies a rule; the same on all nodes.
fn rule_hash(rule: &str) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&digest(&SHA256, rule.as_bytes()).as_ref()[..8]);
    u64::from_le_bytes(word)
}

fn pop_denials(rest: &mut &[u8]) -> Option<RuleDenials> {
    let rule = pop_varint(rest)?;
    let mut at = 0u64;
    let times = (0..pop_up_to(rest, MAX_TIMES as usize + 1)?).map(|_| {
        at = at.checked_add(pop_varint(rest)?)?;
        Some((Time::from_nanos(at), u32::try_from(pop_varint(rest)?).ok()?))
    });
    Some(RuleDenials { rule, times: times.collect::<Option<_>>()? })
}

fn pop_write_id(rest: &mut &[u8]) -> Option<WriteId> {
    Some(WriteId { writer: pop_varint(rest)?, sequence: pop_varint(rest)? })
}

fn pop_time(rest: &mut &[u8]) -> Option<Time> {
    pop_varint(rest).map(Time::from_nanos)
}

fn pop_up_to(rest: &mut &[u8], max: usize) -> Option<usize> {
    usize::try_from(pop_varint(rest)?).ok().filter(|count| *count <= max)
}

pub(super) fn push_text(bytes: &mut Vec<u8>, text: &str) {
    push_varints(bytes, [text.len() as u64]);
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

    use tollgate::internal::ban::{BanConditions, RuleViolations};
    use tollgate::internal::identity::Key;
    use tollgate::internal::rule::RuleId;

    use super::*;

    const NOW: Time = Time::from_secs(1_800_000_000);
    const MINUTE: Duration = Duration::from_secs(60);

    fn violations(rule: &str, after: u32, times: &[(Time, u32)]) -> Violations {
        let rule = RuleId::new(rule).expect("valid");
        let conditions = BanConditions { after, within: MINUTE * 10, first: MINUTE, max: MINUTE * 60 };
        let by = RuleViolations { rule, conditions, times: times.iter().copied().collect() };
        let key = Key::parse("user:1").expect("valid");
        Violations { key, known_strikes: Strikes::default(), by_rule: [by].into_iter().collect() }
    }

    fn write_id(writer: u64, sequence: u64) -> WriteId {
        WriteId { writer, sequence }
    }

    /// Encodes and decodes, as a store does.
    fn kept(record: &OffenderRecord) -> OffenderRecord {
        OffenderRecord::decode(&record.encode()).expect("our own bytes")
    }

    #[test]
    fn a_write_that_is_sent_again_counts_once() {
        let mut record = OffenderRecord::default();
        let two = violations("a", 5, &[(NOW, 2)]);
        for _ in 0..3 {
            record = kept(&record);
            record.count(&two, write_id(1, 1));
            record.count(&two, write_id(2, 9));
        }
        assert_eq!(record.outcome(write_id(2, 9), NOW), ViolationOutcome::Counted, "four of five");
        assert_eq!(record.count(&two, write_id(1, 2)), RecordChange::Changed);
        for _ in 0..2 {
            let banned = record.outcome(write_id(1, 2), NOW);
            let ViolationOutcome::Banned { rule, ban } = banned else { panic!("{banned:?}") };
            assert_eq!((rule.as_str(), ban.strikes, ban.until), ("a", 1, NOW + MINUTE));
            assert_eq!(
                record.count(&two, write_id(1, 2)),
                RecordChange::Unchanged,
                "the writer that decided it sees its own decision"
            );
            record = kept(&record);
        }
    }

    #[test]
    fn violations_of_other_nodes_from_the_same_burst_are_no_second_strike() {
        let mut record = OffenderRecord::default();
        record.count(&violations("a", 3, &[(NOW, 3)]), write_id(1, 1));
        for (writer, rule) in [(2, "a"), (3, "b"), (4, "c")] {
            let late = violations(rule, 1, &[(NOW - MINUTE, 9), (NOW, 9)]);
            assert_eq!(record.count(&late, write_id(writer, 1)), RecordChange::Unchanged);
            let outcome = record.outcome(write_id(writer, 1), NOW);
            assert!(
                matches!(outcome, ViolationOutcome::AlreadyBanned { ban, started_at } if ban.strikes == 1 && started_at == NOW)
            );
        }
        record.count(&violations("b", 1, &[(NOW + MINUTE, 1)]), write_id(3, 2));
        assert_eq!(record.offender.strikes, Strikes { count: 2, until: NOW + MINUTE * 3 });
        assert_eq!(record.expires_at(), NOW + MINUTE * 63, "strikes are forgotten after max");
    }

    #[test]
    fn a_lifted_ban_resets_the_record_and_late_violations_do_not_count() {
        let mut record = OffenderRecord::default();
        let three = violations("a", 3, &[(NOW, 3)]);
        record.count(&three, write_id(1, 1));
        assert!(record.forgive() && !record.forgive());
        assert_eq!(record.count(&three, write_id(1, 1)), RecordChange::Unchanged);
        assert_eq!(record.outcome(write_id(1, 1), NOW), ViolationOutcome::Counted);
        record.count(&three, write_id(1, 2));
        assert_eq!(record.offender.strikes.count, 1);
    }

    #[test]
    fn a_record_is_bounded_and_read_as_it_was_written() {
        let mut record = OffenderRecord::default();
        let mut random = fastrand::Rng::with_seed(7);
        for n in 0..20_000 {
            let at = NOW + Duration::from_millis(n * 97);
            let rule = format!("rule-{}", random.u32(..100));
            let after = *random.choice(&[2, 60, 128, 129, 1_000]).expect("there are some");
            record
                .count(&violations(&rule, after, &[(at, random.u32(1..3))]), write_id(random.u64(1..50), n));
            let bytes = record.encode();
            assert!(bytes.len() < 100_000);
            if n % 100 == 0 {
                assert_eq!(OffenderRecord::decode(&bytes).as_ref(), Some(&record));
            }
        }
    }

    #[test]
    fn foreign_bytes_are_not_a_record() {
        let mut record = OffenderRecord::default();
        record.count(&violations("a", 3, &[(NOW, 3)]), write_id(1, 1));
        let bytes = record.encode();
        for end in 0..bytes.len() {
            assert_eq!(OffenderRecord::decode(&bytes[..end]), None);
        }
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let mut strange = bytes.clone();
            let index = random.usize(..strange.len());
            strange[index] = random.u8(..);
            if let Some(mut read) = OffenderRecord::decode(&strange) {
                read.count(&violations("a", 3, &[(NOW, 3)]), write_id(2, 1)); // must not panic
                read.encode();
            }
        }
    }
}
