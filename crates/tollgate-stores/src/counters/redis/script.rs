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
    const fn code(self) -> &'static str {
        match self {
            Op::Charge => "c",
            Op::ChargeWithStates => "d",
            Op::CountDenied => "n",
            Op::Peek => "p",
            Op::Settle => "s",
        }
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
const HEADER_ARGS: usize = 3;
const ARGS_PER_COUNTER: usize = 10;

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

    fn write(&self, command: &mut CommandWriter<'_>) {
        let script_limit = ScriptLimit::of(self.limit);
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

/// Encodes a call. `until` is the deadline by the server's clock, in microseconds.
pub(super) fn write_call(out: &mut Vec<u8>, op: Op, at: At, until: Option<u64>, entries: &[ScriptEntry<'_>]) {
    let words = 3 + entries.len() + HEADER_ARGS + entries.len() * ARGS_PER_COUNTER;
    let mut command = CommandWriter::begin(out, words);
    command.arg("EVALSHA").arg(SHA.as_str()).number(entries.len() as u64);
    for entry in entries {
        command.arg(entry.name);
    }
    command.arg(op.code());
    match at {
        At::Server => command.arg(""),
        At::Fixed(now) => command.number(now.nanos() / 1000),
    };
    match until {
        Some(until) => command.number(until),
        None => command.arg(""),
    };
    for entry in entries {
        entry.write(&mut command);
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

/// Decodes a reply; `None` if it does not have the expected form.
pub(super) fn parse_reply(reply: &RedisReply, op: Op, entries: &[ScriptEntry<'_>]) -> Option<ScriptReply> {
    let mut rest = reply.elements()?.iter();
    let executed = rest.next()?.number()?;
    let now_us = rest.next()?.number()?;
    if executed == 0 {
        return Some(ScriptReply::DeadlinePassed { server_us: now_us });
    }
    rest.next()?.number()?; // whether the request is admitted: follows from the parts
    let mut parts = Vec::with_capacity(entries.len());
    for entry in entries {
        let mut number = || rest.next()?.number();
        let verdict = number()?;
        if verdict == 3 {
            parts.push(Err(rest.next()?.text()?.to_owned()));
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
        let cost = u64::try_from(entry.cost).unwrap_or(0);
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
