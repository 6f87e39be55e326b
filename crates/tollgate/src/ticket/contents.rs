//! The sealed part of a ticket: fixed fields, then the limit with its rule.

use std::time::Duration;

use super::{Ticket, TicketLimit};
use crate::fingerprint::Fingerprint;
use crate::rule::RuleId;
use crate::time::Time;
use crate::verdict::{EngineVerdict, Reason, VerdictId};

/// Stands for "never" and for a wait that is longer than 8,000 years.
const NEVER: u64 = (1 << 48) - 1;
/// Stands for a key that is not known.
const NO_MARK: u64 = 0;

pub(super) fn write_contents(
    bytes: &mut Vec<u8>,
    verdict: &EngineVerdict,
    key_mark: Option<Fingerprint>,
    at: Time,
) {
    bytes.push(verdict.reason as u8);
    bytes.extend_from_slice(&verdict.id.node.to_be_bytes());
    bytes.extend_from_slice(&verdict.id.sequence.to_be_bytes());
    write_number(bytes, verdict.id.generation);
    write_48_bits(bytes, at.nanos() / NANOS_PER_MILLI);
    bytes.extend_from_slice(&key_mark.map_or(NO_MARK, Fingerprint::to_bits).to_be_bytes());
    let Some(denied_by) = verdict.reported() else { return };
    let used = denied_by.limit.capacity().saturating_sub(denied_by.remaining());
    write_number(bytes, used);
    write_number(bytes, denied_by.cost());
    write_48_bits(bytes, denied_by.retry_after().map_or(NEVER, millis));
    let rule = denied_by.rule.id.as_str();
    bytes.push(rule.len() as u8);
    bytes.extend_from_slice(rule.as_bytes());
    bytes.extend_from_slice(denied_by.limit.to_string().as_bytes());
}

const NANOS_PER_MILLI: u64 = 1_000_000;

/// Milliseconds, rounded up, at most `NEVER`.
fn millis(wait: Duration) -> u64 {
    let exact = wait.as_nanos().div_ceil(NANOS_PER_MILLI.into());
    u64::try_from(exact).unwrap_or(NEVER).min(NEVER)
}

/// The length of a number in bytes, then its bytes without leading zeros.
fn write_number(bytes: &mut Vec<u8>, number: u64) {
    let skipped = number.leading_zeros() as usize / 8;
    bytes.push((size_of::<u64>() - skipped) as u8);
    bytes.extend_from_slice(&number.to_be_bytes()[skipped..]);
}

fn write_48_bits(bytes: &mut Vec<u8>, number: u64) {
    let [_, _, low @ ..] = number.to_be_bytes();
    bytes.extend_from_slice(&low);
}

/// `None` only if a ticket was sealed with another layout: its seal was verified.
pub(super) fn read_contents(bytes: &[u8]) -> Option<Ticket> {
    let mut rest = Contents(bytes);
    let [reason] = rest.take()?;
    let reason = *Reason::ALL.get(usize::from(reason))?;
    let node = u32::from_be_bytes(rest.take()?);
    let sequence = u64::from_be_bytes(rest.take()?);
    let generation = rest.number()?;
    let at = Time::from_nanos(rest.bits_48()?.checked_mul(NANOS_PER_MILLI)?);
    let mark = u64::from_be_bytes(rest.take()?);
    Some(Ticket {
        id: VerdictId { node, generation, sequence },
        at,
        reason,
        key_mark: (mark != NO_MARK).then(|| Fingerprint::from_bits(mark)),
        denied_by: if rest.0.is_empty() { None } else { Some(rest.limit()?) },
    })
}

struct Contents<'a>(&'a [u8]);

impl<'a> Contents<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn slice(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        let [len] = self.take()?;
        let bytes = self.slice(usize::from(len).min(size_of::<u64>()))?;
        Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn bits_48(&mut self) -> Option<u64> {
        let low: [u8; 6] = self.take()?;
        Some(low.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn limit(&mut self) -> Option<TicketLimit> {
        let used = self.number()?;
        let cost = self.number()?;
        let retry_after_ms = Some(self.bits_48()?).filter(|wait| *wait != NEVER);
        let [rule_len] = self.take()?;
        let rule = RuleId::new(std::str::from_utf8(self.slice(usize::from(rule_len))?).ok()?)?;
        let limit = std::str::from_utf8(self.0).ok()?.to_owned();
        Some(TicketLimit { rule, limit, used, cost, retry_after_ms })
    }
}
