//! The script that decides inside the server: what it is given, and what it answers.

use std::sync::LazyLock;
use std::time::Duration;

use ring::digest;
use tollgate::algorithm::{Admission, Decision, Grant};
use tollgate::store::{DeniedHits, Part, Weight};
use tollgate::{Limit, Time};

use super::resp::{Command, Reply};
use super::terms::Terms;
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
pub(super) enum When {
    /// The server's own.
    Server,
    Told(Time),
}

/// What is to be done with the counters of one slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Deed {
    Charge,
    /// As `Charge`, and the states before and after are told.
    ChargeAndTell,
    /// The request is denied elsewhere: only what counts denied hits is changed.
    Denied,
    Peek,
    Settle,
}

impl Deed {
    const fn word(self) -> &'static str {
        match self {
            Deed::Charge => "c",
            Deed::ChargeAndTell => "d",
            Deed::Denied => "n",
            Deed::Peek => "p",
            Deed::Settle => "s",
        }
    }
}

/// One counter's part in a call.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) name: String,
    limit: Limit,
    /// What is taken; for a settlement what is owed, or given back if it is below zero.
    cost: i64,
    flags: u64,
    grant: String,
}

/// Costs are whole doubles inside the server; one above is above every capacity.
const MAX_COST: u64 = 1 << 53;
const WORDS_BEFORE: usize = 3;
const WORDS_EACH: usize = 10;

impl Ask {
    pub(super) fn charge(name: String, charge: &CentralCharge) -> Ask {
        let shadow = u64::from(charge.weight == Weight::Shadow);
        let counted = u64::from(charge.denied == DeniedHits::Counted);
        let cost = charge.cost.min(MAX_COST) as i64;
        Ask { name, limit: charge.limit, cost, flags: shadow + 2 * counted, grant: String::new() }
    }

    /// Corrects a cost to `real_cost` units of the hit.
    pub(super) fn settle(name: String, item: &CentralReceiptItem, real_cost: u64) -> Ask {
        let real = item.unit_cost.saturating_mul(real_cost).min(MAX_COST) as i64;
        let cost = real - item.grant.cost.min(MAX_COST) as i64;
        let grant = format!("{} {}", item.grant.at.nanos() / 1000, item.grant.mark);
        Ask { name, limit: item.limit, cost, flags: 0, grant }
    }

    fn write(&self, command: &mut Command<'_>) {
        let terms = Terms::of(&self.limit);
        let flags = self.flags + if terms.queue { 4 } else { 0 };
        command.word(terms.kind);
        match u64::try_from(self.cost) {
            Ok(cost) => command.number(cost),
            Err(_) => command.word(self.cost.to_string()),
        };
        command.number(flags);
        for number in terms.numbers {
            command.number(number);
        }
        command.word(&terms.calendar);
        match terms.hold {
            Some((Some(max_wait), ahead)) => command.word(format!("{max_wait} {ahead}")),
            Some((None, ahead)) => command.word(format!(" {ahead}")),
            None => command.word(""),
        };
        command.word(&self.grant);
    }
}

/// Writes a call. `until` is in the server's time, microseconds.
pub(super) fn write_call(out: &mut Vec<u8>, deed: Deed, when: When, until: Option<u64>, asks: &[Ask]) {
    let words = 3 + asks.len() + WORDS_BEFORE + asks.len() * WORDS_EACH;
    let mut command = Command::begin(out, words);
    command.word("EVALSHA").word(SHA.as_str()).number(asks.len() as u64);
    for ask in asks {
        command.word(&ask.name);
    }
    command.word(deed.word());
    match when {
        When::Server => command.word(""),
        When::Told(now) => command.number(now.nanos() / 1000),
    };
    match until {
        Some(until) => command.number(until),
        None => command.word(""),
    };
    for ask in asks {
        ask.write(&mut command);
    }
}

/// What a call has come to.
#[derive(Debug)]
pub(super) enum Answer {
    /// The server's time is past the bound: nothing was done.
    TooLate {
        server_us: u64,
    },
    Done(Done),
}

#[derive(Debug)]
pub(super) struct Done {
    /// The instant of the decision, in microseconds.
    pub(super) now_us: u64,
    pub(super) admitted: bool,
    /// One for each counter; an error names what is wrong with its value.
    pub(super) parts: Vec<Result<Part, String>>,
    /// States before and after, where they were asked for.
    pub(super) states: Vec<String>,
}

/// Reads a reply; `None` if it is none of ours.
pub(super) fn read_answer(reply: &Reply, deed: Deed, asks: &[Ask]) -> Option<Answer> {
    let mut rest = reply.elements()?.iter();
    let ran = rest.next()?.number()?;
    let now_us = rest.next()?.number()?;
    if ran == 0 {
        return Some(Answer::TooLate { server_us: now_us });
    }
    let admitted = rest.next()?.number()? == 1;
    let mut parts = Vec::with_capacity(asks.len());
    for ask in asks {
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
        let cost = u64::try_from(ask.cost).unwrap_or(0);
        parts.push(Ok(Part {
            decision: Decision { admission, left },
            remaining,
            reset_after: Duration::from_micros(reset),
            grant: (deed != Deed::Settle && granted == 1).then_some(Grant { at, cost, mark }),
        }));
    }
    let states = rest.map(|state| state.text().unwrap_or_default().to_owned()).collect();
    Some(Answer::Done(Done { now_us, admitted, parts, states }))
}

/// The error of a counter whose value is not what it should be.
pub(super) fn refused(server: &str, name: &str, reason: &str) -> StoreError {
    let reason = reason.split(" script: ").next().unwrap_or(reason);
    StoreError::Refused { server: server.to_owned(), reason: format!("{name}: {reason}") }
}
