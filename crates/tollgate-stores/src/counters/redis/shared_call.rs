//! One call of the script for several requests, which are decided one after the other.
//!
//! A call is open until it is sent. A request joins the open call if both are for the same slot, operation and
//! timestamp, and their deadlines are close: the earliest is that of the call. The server executes all of a call or,
//! after an error reply, nothing of it that is not reported by request.

use super::call::ScriptCall;
use super::resp::CommandWriter;
use super::script::{At, LimitArguments, Op, SHA};

/// Other clients of the server wait while a call runs, about 4 µs per request.
const MAX_REQUESTS: usize = 64;
/// Of all requests together, unless one of them has more: each costs the server time, and the reply a few words.
const MAX_COUNTERS: usize = 256;
/// A request may be refused this much before its deadline, and is sent again then, as nothing was executed.
const MAX_DEADLINE_SPREAD_US: u64 = 1000;
/// Operation, timestamp, deadline and number of limits.
const HEADER_ARGS: usize = 4;

/// The requests of a call that is not sent yet.
pub(super) struct SharedCall {
    slot: u16,
    op: Op,
    at: At,
    /// The earliest deadline, by the server's clock in microseconds.
    until: Option<u64>,
    limits: Vec<LimitArguments>,
    /// Encoded words, one for each counter.
    names: Vec<u8>,
    /// The number of each counter's limit, from 1; negative if another counter of the same request follows.
    limit_numbers: Vec<i32>,
    /// Counters of each request.
    requests: Vec<usize>,
}

impl SharedCall {
    pub(super) fn new(call: &ScriptCall<'_>, until: Option<u64>) -> SharedCall {
        let ScriptCall { slot, op, at, .. } = *call;
        let mut shared = SharedCall {
            slot,
            op,
            at,
            until,
            limits: Vec::with_capacity(1),
            names: Vec::with_capacity(256),
            limit_numbers: Vec::with_capacity(8),
            requests: Vec::with_capacity(8),
        };
        shared.add(call, until);
        shared
    }

    /// Whether a request can join.
    pub(super) fn admits(&self, call: &ScriptCall<'_>, until: Option<u64>) -> bool {
        let is_close = match (self.until, until) {
            (Some(ours), Some(theirs)) => ours.abs_diff(theirs) <= MAX_DEADLINE_SPREAD_US,
            (ours, theirs) => ours == theirs,
        };
        self.requests.len() < MAX_REQUESTS
            && self.limit_numbers.len() + call.entries.len() <= MAX_COUNTERS
            && is_close
            && self.op.is_shared()
            && (self.slot, self.op, self.at) == (call.slot, call.op, call.at)
    }

    /// Adds a request that is admitted; returns its position.
    pub(super) fn add(&mut self, call: &ScriptCall<'_>, until: Option<u64>) -> usize {
        self.until = self.until.min(until);
        for entry in call.entries {
            CommandWriter::append(&mut self.names).arg(entry.name);
            let known = self.limits.iter().rposition(|limit| entry.has(limit));
            let number = known.unwrap_or_else(|| {
                self.limits.push(entry.limit_arguments());
                self.limits.len() - 1
            });
            self.limit_numbers.push(-(number as i32 + 1));
        }
        if let Some(last) = self.limit_numbers.last_mut() {
            *last = -*last;
        }
        self.requests.push(call.entries.len());
        self.requests.len() - 1
    }

    /// Encodes the call; returns the number of counters of each request.
    pub(super) fn write(self, out: &mut Vec<u8>) -> Vec<usize> {
        let counters = self.limit_numbers.len();
        let words = 3 + counters + HEADER_ARGS + self.limits.len() * LimitArguments::COUNT + counters;
        let mut command = CommandWriter::begin(out, words);
        command.arg("EVALSHA").arg(SHA.as_str()).number(counters as u64).encoded(&self.names);
        command.arg(self.op.code());
        match self.at {
            At::Server => command.arg(""),
            At::Fixed(now) => command.number(now.nanos() / 1000),
        };
        match self.until {
            Some(until) => command.number(until),
            None => command.arg(""),
        };
        command.number(self.limits.len() as u64);
        for limit in &self.limits {
            limit.write(&mut command);
        }
        for number in self.limit_numbers {
            match u64::try_from(number) {
                Ok(number) => command.number(number),
                Err(_) => command.arg(number.to_string()),
            };
        }
        self.requests
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;
    use tollgate::internal::store::{Charge, CounterKey, KeyPart, Sensitivity};
    use tollgate::internal::{Limit, Shape};

    use super::super::resp::RedisReply;
    use super::super::script::ScriptEntry;
    use super::*;
    use crate::counters::{CentralCounter, CounterId};

    const UNTIL: u64 = 1_800_000_000_000_000;

    fn charge(rate: &str) -> Charge {
        let limit = Limit::new(rate.parse().expect("a rate"), Shape::GCRA).expect("a valid limit");
        let part = KeyPart { name: "user".into(), value: "ann".into(), sensitivity: Sensitivity::Public };
        let id = CounterId { domain: "d".into(), rule: "r".into(), key: CounterKey::owned(vec![part], 0) };
        Charge::central(CentralCounter { id, limit })
    }

    fn call<'a>(op: Op, slot: u16, entries: &'a [ScriptEntry<'a>]) -> ScriptCall<'a> {
        ScriptCall { slot, op, at: At::Server, entries, deadline: Instant::now() }
    }

    #[test]
    fn a_request_joins_a_call_of_its_kind_and_deadline() {
        let charge = charge("5/h");
        let entries = [ScriptEntry::charge("a", &charge)];
        let open = SharedCall::new(&call(Op::Charge, 1, &entries), Some(UNTIL));
        let admits = |op, slot, until| open.admits(&call(op, slot, &entries), until);
        for until in [UNTIL - MAX_DEADLINE_SPREAD_US, UNTIL, UNTIL + MAX_DEADLINE_SPREAD_US] {
            assert!(admits(Op::Charge, 1, Some(until)));
        }
        assert!(!admits(Op::Charge, 1, Some(UNTIL + MAX_DEADLINE_SPREAD_US + 1)));
        assert!(!admits(Op::Charge, 1, None));
        assert!(!admits(Op::Charge, 2, Some(UNTIL)), "another slot");
        assert!(!admits(Op::Peek, 1, Some(UNTIL)), "another operation");
        let with_states = SharedCall::new(&call(Op::ChargeWithStates, 1, &entries), None);
        assert!(!with_states.admits(&call(Op::ChargeWithStates, 1, &entries), None));
    }

    #[test]
    fn a_call_is_full_at_its_bound_and_expires_with_its_first_request() {
        let charge = charge("5/h");
        let entries = [ScriptEntry::charge("a", &charge)];
        let request = call(Op::Charge, 1, &entries);
        let mut open = SharedCall::new(&request, Some(UNTIL));
        for n in 1..MAX_REQUESTS as u64 {
            assert!(open.admits(&request, Some(UNTIL - n)));
            open.add(&request, Some(UNTIL - n));
        }
        assert!(!open.admits(&request, Some(UNTIL)));
        assert_eq!(open.until, Some(UNTIL - MAX_REQUESTS as u64 + 1));
    }

    #[test]
    fn a_call_is_full_at_its_bound_of_counters() {
        let charge = charge("5/h");
        let names: Vec<_> = (0..100).map(|n| n.to_string()).collect();
        let entries: Vec<_> = names.iter().map(|name| ScriptEntry::charge(name, &charge)).collect();
        let many = call(Op::Charge, 1, &entries);
        let mut open = SharedCall::new(&many, None);
        open.add(&many, None);
        assert!(!open.admits(&many, None));
        assert!(open.admits(&call(Op::Charge, 1, &entries[..MAX_COUNTERS - 200]), None));
    }

    #[test]
    fn equal_limits_are_sent_once() {
        let [five, nine] = ["5/h", "9/h"].map(charge);
        let both = [ScriptEntry::charge("a", &five), ScriptEntry::charge("b", &nine)];
        let one = [ScriptEntry::charge("c", &nine)];
        let mut open = SharedCall::new(&call(Op::Charge, 1, &both), None);
        open.add(&call(Op::Charge, 1, &one), None);
        let mut out = Vec::new();
        assert_eq!(open.write(&mut out), [2, 1]);
        let (words, _) = RedisReply::parse(&out).expect("the protocol").expect("whole");
        let words: Vec<_> = words.elements().expect("words").iter().map(|word| word.text()).collect();
        let texts = |range: std::ops::Range<usize>| words[range].iter().map(|word| word.expect("text"));
        assert_eq!(texts(2..6).collect::<Vec<_>>(), ["3", "a", "b", "c"]);
        assert_eq!(texts(6..10).collect::<Vec<_>>(), ["c", "", "", "2"]);
        let numbers = 10 + 2 * LimitArguments::COUNT;
        assert_eq!(texts(numbers..words.len()).collect::<Vec<_>>(), ["-1", "2", "2"]);
    }
}
