//! The lines of the log. Names of the fields are a contract: programs read them.

use serde::Serialize;
use tollgate::Time;
use tollgate::internal::time::calendar::rfc3339;

use super::{DecisionRecord, LoggedCharge};

/// One decision.
#[derive(Serialize)]
struct DecisionLine<'a> {
    at: String,
    event: &'static str,
    id: String,
    allowed: bool,
    reason: &'static str,
    rule: Option<&'a str>,
    limit: Option<String>,
    key: String,
    cost: u64,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    /// Where it was charged; the same after a restart with the node's state.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// What was charged, limit by limit; only where all decisions of a key are written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    charged: Vec<ChargeLine<'a>>,
}

#[derive(Serialize)]
struct ChargeLine<'a> {
    rule: &'a str,
    limit: String,
    key: String,
    /// Unix time in nanoseconds.
    at_ns: u64,
    cost: u64,
}

/// The limiting of a key, at its beginning and at its end.
#[derive(Serialize)]
pub(super) struct EpisodeLine<'a> {
    pub(super) at: String,
    pub(super) event: EpisodeEvent,
    pub(super) rule: Option<&'a str>,
    /// `None` for the keys that the table has no room for.
    pub(super) key: Option<&'a str>,
    pub(super) denied: u64,
    pub(super) since: String,
    pub(super) until: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EpisodeEvent {
    /// From here on the denials of the key are only counted.
    LimitingBegins,
    /// With the number of all denials since the first.
    LimitingEnds,
}

/// Lines of JSON, each with its line feed.
#[derive(Default)]
pub(super) struct Lines {
    pub(super) bytes: Vec<u8>,
    pub(super) count: u64,
}

impl Lines {
    pub(super) fn decision(&mut self, record: &DecisionRecord) {
        self.push(&DecisionLine {
            at: rfc3339(record.at),
            event: "decision",
            id: record.id.to_string(),
            allowed: record.allowed,
            reason: record.reason.name(),
            rule: record.rule.as_ref().map(|rule| rule.as_str()),
            limit: record.limit.map(|limit| limit.to_string()),
            key: record.key.to_string(),
            cost: record.cost,
            remaining: record.remaining,
            retry_after_ms: record.retry_after.map(|wait| wait.as_nanos().div_ceil(1_000_000) as u64),
            trace_id: record.trace.map(|trace| trace.to_string()),
            node: record.charged.first().map(|charge| format!("{:08x}", charge.node)),
            charged: record.charged.iter().map(ChargeLine::of).collect(),
        });
    }

    pub(super) fn push(&mut self, line: &impl Serialize) {
        serde_json::to_writer(&mut self.bytes, line).expect("a line has no maps with other keys than text");
        self.bytes.push(b'\n');
        self.count += 1;
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }
}

impl ChargeLine<'_> {
    fn of(charge: &LoggedCharge) -> ChargeLine<'_> {
        ChargeLine {
            rule: charge.rule.as_str(),
            limit: charge.limit.to_string(),
            key: charge.mark.to_string(),
            at_ns: charge.at.nanos(),
            cost: charge.cost,
        }
    }
}

impl EpisodeLine<'_> {
    /// A line about the denials from `since` until `until`.
    pub(super) fn times(at: Time, since: Time, until: Time) -> [String; 3] {
        [at, since, until].map(rfc3339)
    }
}
