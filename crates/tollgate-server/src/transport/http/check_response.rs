//! The body of a verdict: every field is present, null where it does not apply.

use std::fmt::Display;
use std::io::Write as _;

use hyper::StatusCode;
use tollgate::internal::verdict::{LimitVerdict, VerdictId};
use tollgate::internal::{EngineVerdict, Limit};

use crate::response::millis;

pub struct CheckResponse<'v> {
    status: Option<u16>,
    id: VerdictId,
    allowed: bool,
    reason: &'static str,
    rule: Option<&'v str>,
    limit: Option<&'v Limit>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    delay_ms: u64,
    message: Option<String>,
    /// Of a denial, for `tollgate explain`.
    ticket: Option<String>,
    rules: &'v [LimitVerdict],
    /// Present if there is something to settle, or the caller requested it.
    receipt: Option<String>,
}

impl<'v> CheckResponse<'v> {
    pub fn of(verdict: &'v EngineVerdict) -> CheckResponse<'v> {
        let reported = verdict.reported();
        CheckResponse {
            status: None,
            id: verdict.id,
            allowed: verdict.allowed,
            reason: verdict.reason.name(),
            rule: reported.map(|limit| limit.rule.id.as_str()),
            limit: reported.map(|limit| &*limit.limit),
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

    pub fn to_json(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        self.write_json(&mut out);
        out
    }

    /// Written by hand: serde_json looks for escapes in every key, a tenth of the instructions of a call of `/v1/check`.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        if let Some(status) = self.status {
            push(out, b"\"status\":", Json::Number(status.into()));
            out.push(b',');
        }
        push(out, b"\"id\":", Json::Plain(&self.id));
        push(out, b",\"allowed\":", Json::Bool(self.allowed));
        push(out, b",\"reason\":", Json::Text(self.reason));
        push(out, b",\"rule\":", self.rule.into());
        push(out, b",\"limit\":", self.limit.map_or(Json::Null, |limit| Json::Plain(limit)));
        push(out, b",\"remaining\":", self.remaining.into());
        push(out, b",\"retry_after_ms\":", self.retry_after_ms.into());
        push(out, b",\"reset_after_ms\":", self.reset_after_ms.into());
        push(out, b",\"delay_ms\":", Json::Number(self.delay_ms));
        push(out, b",\"message\":", self.message.as_deref().into());
        push(out, b",\"ticket\":", self.ticket.as_deref().into());
        out.extend_from_slice(b",\"rules\":[");
        for (n, limit) in self.rules.iter().enumerate() {
            if n > 0 {
                out.push(b',');
            }
            push(out, b"{\"rule\":", Json::Text(limit.rule.id.as_str()));
            push(out, b",\"limit\":", Json::Plain(&*limit.limit));
            push(out, b",\"allowed\":", Json::Bool(limit.is_allowed()));
            push(out, b",\"remaining\":", Json::Number(limit.remaining()));
            push(out, b",\"retry_after_ms\":", limit.retry_after().map(millis).into());
            push(out, b",\"mode\":", Json::Text(limit.mode.name()));
            out.push(b'}');
        }
        out.push(b']');
        if let Some(receipt) = &self.receipt {
            push(out, b",\"receipt\":", Json::Text(receipt));
        }
        out.push(b'}');
    }
}

/// A list of verdicts.
pub fn list_json(responses: &[CheckResponse<'_>]) -> Vec<u8> {
    let mut out = vec![b'['];
    for (n, response) in responses.iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        response.write_json(&mut out);
    }
    out.push(b']');
    out
}

enum Json<'a> {
    Null,
    Bool(bool),
    Number(u64),
    Text(&'a str),
    /// Text that needs no escapes.
    Plain(&'a dyn Display),
}

impl<'a> From<Option<&'a str>> for Json<'a> {
    fn from(text: Option<&'a str>) -> Json<'a> {
        text.map_or(Json::Null, Json::Text)
    }
}

impl From<Option<u64>> for Json<'_> {
    fn from(number: Option<u64>) -> Self {
        number.map_or(Json::Null, Json::Number)
    }
}

/// Writes what precedes a value, and the value.
fn push(out: &mut Vec<u8>, before: &[u8], value: Json<'_>) {
    out.extend_from_slice(before);
    match value {
        Json::Null => out.extend_from_slice(b"null"),
        Json::Bool(true) => out.extend_from_slice(b"true"),
        Json::Bool(false) => out.extend_from_slice(b"false"),
        Json::Number(number) => {
            out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        }
        Json::Text(text) => push_text(out, text),
        Json::Plain(text) => write!(out, "\"{text}\"").expect("a vector takes all that is written"),
    }
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    if text.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
        serde_json::to_writer(out, text).expect("text is valid JSON");
        return;
    }
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_written_as_serde_json_does() {
        for text in ["", "each", "ü ✓", "a\"b", "a\\b", "line\n", "\u{1}", "\u{7f}", "</script>"] {
            let mut out = Vec::new();
            push_text(&mut out, text);
            assert_eq!(out, serde_json::to_vec(text).expect("valid"), "{text}");
        }
    }
}
