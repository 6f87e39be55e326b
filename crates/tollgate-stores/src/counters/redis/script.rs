//! The script that decides inside the server: what it is given, and what it answers.

use std::sync::LazyLock;
use std::time::Duration;

use ring::digest;
use tollgate::algorithm::{Admission, Decision, Grant};
use tollgate::store::{DeniedHits, Enforcement, LimitOutcome};
use tollgate::{Limit, Time};

use super::resp::{CommandWriter, RedisReply};
use super::script_limit::ScriptLimit;
use crate::counters::{CentralCharge, CentralReceiptItem, StoreError};

/// One chunk in parts. Windows come behind the answer of requests that have none.
pub(super) const SOURCE: &str = concat!(
    include_str!("script/prelude.lua"),
    include_str!("script/bucket.lua"),
    include_str!("script/run.lua"),
    include_str!("script/calendar.lua"),
    include_str!("script/fixed.lua"),
    include_str!("script/counter.lua"),
    include_str!("script/sliding.lua"),
);

/// The name by which the server knows the script.
pub(super) static SHA: LazyLock<String> = LazyLock::new(|| sha_of(SOURCE));

pub(super) fn sha_of(source: &str) -> String {
    let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, source.as_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The instant of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum At {
    /// The server's own.
    Server,
    Fixed(Time),
}

/// What is to be done with the counters of one slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Op {
    Charge,
    /// As `Charge`, and the states before and after are told.
    ChargeWithStates,
    /// The request is denied elsewhere: only what counts denied hits is changed.
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

/// One counter's part in a call.
#[derive(Clone, Debug)]
pub(super) struct ScriptEntry {
    pub(super) name: String,
    limit: Limit,
    /// What is taken; for a settlement what is owed, or given back if it is below zero.
    cost: i64,
    flags: u64,
    grant: String,
}

/// Costs are whole doubles inside the server; one above is above every capacity.
const MAX_COST: u64 = 1 << 53;
const HEADER_ARGS: usize = 3;
const ARGS_PER_COUNTER: usize = 10;

impl ScriptEntry {
    pub(super) fn charge(name: String, charge: &CentralCharge) -> ScriptEntry {
        let shadow = u64::from(charge.enforcement == Enforcement::Shadow);
        let counted = u64::from(charge.denied_hits == DeniedHits::Counted);
        let cost = charge.cost.min(MAX_COST) as i64;
        ScriptEntry { name, limit: charge.limit, cost, flags: shadow + 2 * counted, grant: String::new() }
    }

    /// Corrects a cost to `real_cost` units of the hit.
    pub(super) fn settle(name: String, item: &CentralReceiptItem, real_cost: u64) -> ScriptEntry {
        let real = item.unit_cost.saturating_mul(real_cost).min(MAX_COST) as i64;
        let cost = real - item.grant.cost.min(MAX_COST) as i64;
        let grant = format!("{} {}", item.grant.at.nanos() / 1000, item.grant.mark);
        ScriptEntry { name, limit: item.limit, cost, flags: 0, grant }
    }

    fn write(&self, command: &mut CommandWriter<'_>) {
        let terms = ScriptLimit::of(&self.limit);
        let flags = self.flags + if terms.queue { 4 } else { 0 };
        command.arg(terms.kind);
        match u64::try_from(self.cost) {
            Ok(cost) => command.number(cost),
            Err(_) => command.arg(self.cost.to_string()),
        };
        command.number(flags);
        for number in terms.numbers {
            command.number(number);
        }
        command.arg(&terms.calendar);
        match terms.hold {
            Some((Some(max_wait), ahead)) => command.arg(format!("{max_wait} {ahead}")),
            Some((None, ahead)) => command.arg(format!(" {ahead}")),
            None => command.arg(""),
        };
        command.arg(&self.grant);
    }
}

/// Writes a call. `until` is in the server's time, microseconds.
pub(super) fn write_call(out: &mut Vec<u8>, op: Op, at: At, until: Option<u64>, entries: &[ScriptEntry]) {
    let words = 3 + entries.len() + HEADER_ARGS + entries.len() * ARGS_PER_COUNTER;
    let mut command = CommandWriter::begin(out, words);
    command.arg("EVALSHA").arg(SHA.as_str()).number(entries.len() as u64);
    for entry in entries {
        command.arg(&entry.name);
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

/// What a call has come to.
#[derive(Debug)]
pub(super) enum ScriptReply {
    /// The server's time is past the bound: nothing was done.
    DeadlinePassed {
        server_us: u64,
    },
    Done(ScriptResult),
}

#[derive(Debug)]
pub(super) struct ScriptResult {
    /// The instant of the decision, in microseconds.
    pub(super) now_us: u64,
    pub(super) admitted: bool,
    /// One for each counter; an error names what is wrong with its value.
    pub(super) parts: Vec<Result<LimitOutcome, String>>,
    /// States before and after, where they were asked for.
    pub(super) states: Vec<String>,
}

/// Reads a reply; `None` if it is none of ours.
pub(super) fn parse_reply(reply: &RedisReply, op: Op, entries: &[ScriptEntry]) -> Option<ScriptReply> {
    let mut rest = reply.elements()?.iter();
    let ran = rest.next()?.number()?;
    let now_us = rest.next()?.number()?;
    if ran == 0 {
        return Some(ScriptReply::DeadlinePassed { server_us: now_us });
    }
    let admitted = rest.next()?.number()? == 1;
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
            decision: Decision { admission, left },
            remaining,
            reset_after: Duration::from_micros(reset),
            grant: (op != Op::Settle && granted == 1).then_some(Grant { at, cost, mark }),
        }));
    }
    let states = rest.map(|state| state.text().unwrap_or_default().to_owned()).collect();
    Some(ScriptReply::Done(ScriptResult { now_us, admitted, parts, states }))
}

/// The error of a counter whose value is not what it should be.
pub(super) fn refused(server: &str, name: &str, reason: &str) -> StoreError {
    let reason = reason.split(" script: ").next().unwrap_or(reason);
    StoreError::Refused { server: server.to_owned(), reason: format!("{name}: {reason}") }
}
