//! The body of a verdict: every field is present, null where it does not apply.

use std::fmt::Display;

use hyper::StatusCode;
use serde::{Serialize, Serializer};
use tollgate::internal::verdict::{LimitVerdict, VerdictId};
use tollgate::internal::{EngineVerdict, Limit};

use crate::response::millis;

#[derive(Serialize)]
pub struct CheckResponse<'v> {
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    id: Displayed<VerdictId>,
    allowed: bool,
    reason: &'static str,
    rule: Option<&'v str>,
    limit: Option<Displayed<&'v Limit>>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    delay_ms: u64,
    message: Option<String>,
    /// Of a denial, for `tollgate explain`.
    ticket: Option<String>,
    #[serde(serialize_with = "checked_limits")]
    rules: &'v [LimitVerdict],
    /// Present if there is something to settle, or the caller requested it.
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<String>,
}

#[derive(Serialize)]
struct DecidedLimit<'v> {
    rule: &'v str,
    limit: Displayed<&'v Limit>,
    allowed: bool,
    remaining: u64,
    retry_after_ms: Option<u64>,
    mode: &'static str,
}

/// Serialized as its text, without a string in between.
struct Displayed<T>(T);

impl<T: Display> Serialize for Displayed<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

fn checked_limits<S: Serializer>(limits: &&[LimitVerdict], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(limits.iter().map(DecidedLimit::of))
}

impl<'v> CheckResponse<'v> {
    pub fn of(verdict: &'v EngineVerdict) -> CheckResponse<'v> {
        let reported = verdict.reported();
        CheckResponse {
            status: None,
            id: Displayed(verdict.id),
            allowed: verdict.allowed,
            reason: verdict.reason.name(),
            rule: reported.map(|limit| limit.rule.id.as_str()),
            limit: reported.map(|limit| Displayed(&*limit.limit)),
            remaining: reported.map(|limit| limit.remaining()),
            retry_after_ms: verdict.retry_after.map(millis),
            reset_after_ms: reported.map(|limit| millis(limit.reset_after())),
            delay_ms: millis(verdict.delay),
            message: verdict.message(),
            ticket: None,
            rules: verdict.limits(),
            receipt: None,
        }
    }

    pub fn with_receipt(self, receipt: Option<String>) -> CheckResponse<'v> {
        CheckResponse { receipt, ..self }
    }

    pub fn with_ticket(self, ticket: Option<String>) -> CheckResponse<'v> {
        CheckResponse { ticket, ..self }
    }

    /// In a batch each verdict has the status that it would have alone.
    pub fn with_status(self, status: StatusCode) -> CheckResponse<'v> {
        CheckResponse { status: Some(status.as_u16()), ..self }
    }
}

impl<'v> DecidedLimit<'v> {
    fn of(limit: &'v LimitVerdict) -> DecidedLimit<'v> {
        DecidedLimit {
            rule: limit.rule.id.as_str(),
            limit: Displayed(&*limit.limit),
            allowed: limit.is_allowed(),
            remaining: limit.remaining(),
            retry_after_ms: limit.retry_after().map(millis),
            mode: limit.mode.name(),
        }
    }
}
