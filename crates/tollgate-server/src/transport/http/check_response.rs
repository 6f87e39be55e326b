//! The body of a verdict: every field is present, null where it does not apply.

use hyper::StatusCode;
use serde::Serialize;
use tollgate::internal::EngineVerdict;
use tollgate::internal::verdict::LimitVerdict;

use crate::response::millis;

#[derive(Serialize)]
pub struct CheckResponse {
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    id: String,
    allowed: bool,
    reason: &'static str,
    rule: Option<String>,
    limit: Option<String>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    delay_ms: u64,
    message: Option<String>,
    /// Of a denial, for `tollgate explain`.
    ticket: Option<String>,
    rules: Vec<CheckedLimit>,
    /// Present if there is something to settle, or the caller requested it.
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<String>,
}

#[derive(Serialize)]
struct CheckedLimit {
    rule: String,
    limit: String,
    allowed: bool,
    remaining: u64,
    retry_after_ms: Option<u64>,
    mode: &'static str,
}

impl CheckResponse {
    pub fn of(verdict: &EngineVerdict) -> CheckResponse {
        let reported = verdict.reported();
        CheckResponse {
            status: None,
            id: verdict.id.to_string(),
            allowed: verdict.allowed,
            reason: verdict.reason.name(),
            rule: reported.map(|limit| limit.rule.id.to_string()),
            limit: reported.map(|limit| limit.limit.to_string()),
            remaining: reported.map(|limit| limit.remaining()),
            retry_after_ms: verdict.retry_after.map(millis),
            reset_after_ms: reported.map(|limit| millis(limit.reset_after())),
            delay_ms: millis(verdict.delay),
            message: verdict.message(),
            ticket: None,
            rules: verdict.limits().iter().map(CheckedLimit::of).collect(),
            receipt: None,
        }
    }

    pub fn with_receipt(self, receipt: Option<String>) -> CheckResponse {
        CheckResponse { receipt, ..self }
    }

    pub fn with_ticket(self, ticket: Option<String>) -> CheckResponse {
        CheckResponse { ticket, ..self }
    }

    /// In a batch each verdict has the status that it would have alone.
    pub fn with_status(self, status: StatusCode) -> CheckResponse {
        CheckResponse { status: Some(status.as_u16()), ..self }
    }
}

impl CheckedLimit {
    fn of(limit: &LimitVerdict) -> CheckedLimit {
        CheckedLimit {
            rule: limit.rule.id.to_string(),
            limit: limit.limit.to_string(),
            allowed: limit.is_allowed(),
            remaining: limit.remaining(),
            retry_after_ms: limit.retry_after().map(millis),
            mode: limit.mode.name(),
        }
    }
}
