//! The script that decides inside the server: its arguments and its reply.

use std::sync::LazyLock;
use std::time::Duration;

use ring::digest;
use tollgate::Time;
use tollgate::internal::Limit;
use tollgate::internal::algorithm::{Admission, Correction, Decision, Grant};
use tollgate::internal::store::{Charge, DeniedHits, Enforcement, LimitOutcome, ReceiptItem};

use super::resp::{CommandWriter, RedisReply};
use super::script_limit::ScriptLimit;
use crate::counters::StoreError;

/// One Lua chunk in parts. The window algorithms come after the return of calls that use none.
pub(super) const SOURCE: &str = concat!(
    include_str!("script/prelude.lua"),
    include_str!("script/bucket.lua"),
    include_str!("script/run.lua"),
    include_str!("script/calendar.lua"),
    include_str!("script/fixed.lua"),
    include_str!("script/counter.lua"),
    include_str!("script/sliding.lua"),
);

/// SHA-1 of the script, for `EVALSHA`.
pub(super) static SHA: LazyLock<String> = LazyLock::new(|| sha_of(SOURCE));

pub(super) fn sha_of(source: &str) -> String {
    let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, source.as_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The timestamp of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum At {
    /// By the server's clock.
    Server,
    #[cfg_attr(not(feature = "testing"), allow(dead_code))]
    Fixed(Time),
}

/// The operation on the counters of one slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Op {
    Charge,
    /// As `Charge`, with the states before and after in the reply.
    #[cfg_attr(not(feature = "testing"), expect(dead_code))]
    ChargeWithStates,
    /// The request is already denied: change only counters that count denied hits.
    CountDenied,
    Peek,
    Settle,
}

impl Op {
    pub(super) const fn code(self) -> &'static str {
        match self {
            Op::Charge => "c",
            Op::ChargeWithStates => "d",
            Op::CountDenied => "n",
            Op::Peek => "p",
            Op::Settle => "s",
        }
    }

    /// Whether requests may share a call.
    pub(super) const fn is_shared(self) -> bool {
        !matches!(self, Op::ChargeWithStates)
    }
}

/// The arguments of one counter.
#[derive(Clone, Debug)]
pub(super) struct ScriptEntry<'c> {
    pub(super) name: &'c str,
    limit: &'c Limit,
    /// The cost; for a settlement the debt to add, or the refund if it is negative.
    cost: i64,
    flags: u64,
    grant: String,
}

/// Costs are integers in doubles inside the server; a higher cost exceeds every capacity.
const MAX_COST: u64 = 1 << 53;

/// The arguments that counters with the same limit share.
pub(super) struct LimitArguments {
    limit: Limit,
    cost: i64,
    flags: u64,
    grant: String,
}

impl<'c> ScriptEntry<'c> {
    pub(super) fn charge(name: &'c str, charge: &'c Charge) -> ScriptEntry<'c> {
        let shadow = u64::from(charge.enforcement == Enforcement::Shadow);
        let counted = u64::from(charge.denied_hits == DeniedHits::Counted);
        let cost = charge.cost.min(MAX_COST) as i64;
        let limit = &charge.counter().limit;
        ScriptEntry { name, limit, cost, flags: shadow + 2 * counted, grant: String::new() }
    }

    /// Corrects a cost to `real_cost` units of the hit.
    pub(super) fn settle(name: &'c str, item: &'c ReceiptItem, real_cost: u64) -> ScriptEntry<'c> {
        let real_cost = item.unit_cost.saturating_mul(real_cost).min(MAX_COST);
        let cost = match item.grant.correction(real_cost) {
            Correction::None => 0,
            Correction::Debt(more) => more.min(MAX_COST) as i64,
            Correction::Refund(less) => -(less.min(MAX_COST) as i64),
        };
        let grant = format!("{} {}", item.grant.at.nanos() / 1000, item.grant.mark);
        ScriptEntry { name, limit: &item.counter().limit, cost, flags: 0, grant }
    }

    /// Whether these are its arguments.
    pub(super) fn has(&self, arguments: &LimitArguments) -> bool {
        let LimitArguments { limit, cost, flags, grant } = arguments;
        (self.limit, self.cost, self.flags, &self.grant) == (limit, *cost, *flags, grant)
    }

    pub(super) fn limit_arguments(&self) -> LimitArguments {
        let ScriptEntry { limit, cost, flags, grant, .. } = self;
        LimitArguments { limit: **limit, cost: *cost, flags: *flags, grant: grant.clone() }
    }
}

impl LimitArguments {
    pub(super) const COUNT: usize = 10;

    pub(super) fn write(&self, command: &mut CommandWriter<'_>) {
        let script_limit = ScriptLimit::of(&self.limit);
        let flags = self.flags + if script_limit.queue { 4 } else { 0 };
        command.arg(script_limit.kind);
        match u64::try_from(self.cost) {
            Ok(cost) => command.number(cost),
            Err(_) => command.arg(self.cost.to_string()),
        };
        command.number(flags);
        for number in script_limit.numbers {
            command.number(number);
        }
        command.arg(&script_limit.calendar);
        match script_limit.hold {
            Some((Some(max_wait), ahead)) => command.arg(format!("{max_wait} {ahead}")),
            Some((None, ahead)) => command.arg(format!(" {ahead}")),
            None => command.arg(""),
        };
        command.arg(&self.grant);
    }
}

/// The decoded reply of a script call.
#[derive(Debug)]
pub(super) enum ScriptReply {
    /// The server's clock is past the deadline: nothing was executed.
    DeadlinePassed {
        server_us: u64,
    },
    Done(ScriptResult),
}

#[derive(Debug)]
pub(super) struct ScriptResult {
    /// The timestamp of the decision, in microseconds.
    pub(super) now_us: u64,
    /// One per counter; the error tells what is wrong with its value.
    pub(super) parts: Vec<Result<LimitOutcome, String>>,
    /// States before and after, if requested.
    #[cfg_attr(not(feature = "testing"), expect(dead_code))]
    pub(super) states: Vec<String>,
}

/// How the script reports a counter; the numbers that follow.
const BUCKET_CHARGED: u64 = 4;
const BUCKET_NUMBERS: usize = 3;
const COUNTER_FAILED: u64 = 3;
const COUNTER_NUMBERS: usize = 7;
/// Instead of the counters of a request: an error follows.
const REQUEST_FAILED: u64 = 5;

/// Divides the reply of a call among its requests, each with these many counters. Each gets what the server would have
/// replied to it alone.
pub(super) fn split_reply(reply: RedisReply, counters: &[usize]) -> Vec<RedisReply> {
    let RedisReply::Array(elements) = reply else { return vec![reply; counters.len()] };
    let [RedisReply::Int(1), now_us, ..] = &elements[..] else {
        return vec![RedisReply::Array(elements); counters.len()];
    };
    let head = [RedisReply::Int(1), now_us.clone()];
    let mut rest = elements.into_iter().skip(head.len()).peekable();
    let mut parts = Vec::with_capacity(counters.len());
    for (n, own_counters) in counters.iter().enumerate() {
        if rest.peek().and_then(RedisReply::number) == Some(REQUEST_FAILED) {
            let reason = rest.nth(1).and_then(|reason| reason.text().map(str::to_owned));
            parts.push(RedisReply::Error(reason.unwrap_or_default()));
            continue;
        }
        let mut part = Vec::with_capacity(head.len() + own_counters * (1 + COUNTER_NUMBERS));
        part.extend_from_slice(&head);
        for _ in 0..*own_counters {
            let Some(code) = rest.next() else { break };
            let numbers = match code.number() {
                Some(COUNTER_FAILED) => 1,
                Some(BUCKET_CHARGED) => BUCKET_NUMBERS,
                _ => COUNTER_NUMBERS,
            };
            part.push(code);
            part.extend(rest.by_ref().take(numbers));
        }
        if n + 1 == counters.len() {
            part.extend(rest.by_ref()); // states
        }
        parts.push(RedisReply::Array(part));
    }
    parts
}

/// Decodes the reply of a request; `None` if it does not have the expected form.
pub(super) fn parse_reply(reply: &RedisReply, op: Op, entries: &[ScriptEntry<'_>]) -> Option<ScriptReply> {
    let mut rest = reply.elements()?.iter();
    let executed = rest.next()?.number()?;
    let now_us = rest.next()?.number()?;
    if executed == 0 {
        return Some(ScriptReply::DeadlinePassed { server_us: now_us });
    }
    let mut parts = Vec::with_capacity(entries.len());
    for entry in entries {
        let mut number = || rest.next()?.number();
        let cost = u64::try_from(entry.cost).unwrap_or(0);
        let verdict = number()?;
        if verdict == COUNTER_FAILED {
            parts.push(Err(rest.next()?.text()?.to_owned()));
            continue;
        }
        if verdict == BUCKET_CHARGED {
            let left = number()?;
            let reset = number()?;
            let mark = number()?;
            let at = Time::from_nanos(now_us.saturating_mul(1000));
            parts.push(Ok(LimitOutcome {
                decision: Decision::new(Admission::Allow { delay: Duration::ZERO }, left),
                remaining: left.checked_sub(cost)?,
                reset_after: Duration::from_micros(reset),
                grant: Some(Grant { at, cost, mark }),
            }));
            continue;
        }
        let [wait, left, remaining, reset, granted, mark, counted_at] =
            [number()?, number()?, number()?, number()?, number()?, number()?, number()?];
        let wait = Duration::from_micros(wait);
        let admission = match verdict {
            0 => Admission::Allow { delay: wait },
            1 => Admission::Deny { retry_after: wait },
            _ => Admission::Never,
        };
        let at = Time::from_nanos(counted_at.saturating_mul(1000));
        parts.push(Ok(LimitOutcome {
            decision: Decision::new(admission, left),
            remaining,
            reset_after: Duration::from_micros(reset),
            grant: (op != Op::Settle && granted == 1).then_some(Grant { at, cost, mark }),
        }));
    }
    let states = rest.map(|state| state.text().unwrap_or_default().to_owned()).collect();
    Some(ScriptReply::Done(ScriptResult { now_us, parts, states }))
}

/// The error for a counter whose value is invalid.
pub(super) fn invalid_value(server: &str, name: &str, reason: &str) -> StoreError {
    refused(server, format!("{name}: {}", without_position(reason)))
}

/// The error for a call that the server has refused.
pub(super) fn refused_call(server: &str, reason: &str) -> StoreError {
    refused(server, without_position(reason).to_owned())
}

fn refused(server: &str, reason: String) -> StoreError {
    StoreError::Refused { server: server.to_owned(), reason }
}

/// An error of the server, without the position in the script that Redis appends.
fn without_position(reason: &str) -> &str {
    reason.split(" script: ").next().unwrap_or(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(numbers: &[i64]) -> RedisReply {
        RedisReply::Array(numbers.iter().copied().map(RedisReply::Int).collect())
    }

    #[test]
    fn each_request_gets_its_part_of_a_reply() {
        let mut reply = vec![1, 77, 4, 9, 8, 7, 0, 1, 2, 3, 4, 1, 6, 7];
        let mut elements: Vec<_> = reply.drain(..).map(RedisReply::Int).collect();
        elements.extend([RedisReply::Int(5), RedisReply::Bulk(b"OOM no".to_vec())]);
        elements.extend([RedisReply::Int(3), RedisReply::Bulk(b"WRONGTYPE".to_vec())]);
        elements.extend([4, 1, 2, 3].map(RedisReply::Int));
        let failed = vec![RedisReply::Int(3), RedisReply::Bulk(b"WRONGTYPE".to_vec())];
        let last = [vec![RedisReply::Int(1), RedisReply::Int(77)], failed];
        let last = last.concat().into_iter().chain([4, 1, 2, 3].map(RedisReply::Int)).collect();
        let parts = split_reply(RedisReply::Array(elements), &[1, 1, 2, 2]);
        assert_eq!(parts[0], array(&[1, 77, 4, 9, 8, 7]));
        assert_eq!(parts[1], array(&[1, 77, 0, 1, 2, 3, 4, 1, 6, 7]));
        assert_eq!(parts[2], RedisReply::Error("OOM no".to_owned()));
        assert_eq!(parts[3], RedisReply::Array(last));
    }

    #[test]
    fn a_reply_to_the_whole_call_is_that_of_each_request() {
        for reply in [RedisReply::Error("NOSCRIPT".to_owned()), array(&[0, 77]), RedisReply::Nil] {
            assert_eq!(split_reply(reply.clone(), &[1, 2]), [reply.clone(), reply]);
        }
        let short = split_reply(array(&[1, 77, 4, 9, 8, 7]), &[1, 1]);
        assert_eq!(short[1], array(&[1, 77]), "which is no reply of the script");
    }
}
