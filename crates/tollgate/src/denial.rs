//! A denial as a client of HTTP is told: status, and problem details (RFC 9457) of a registered type.

use crate::verdict::{EngineVerdict, Reason};

/// The registry of problem types.
macro_rules! registry {
    () => {
        "https://iana.org/assignments/http-problem-types#"
    };
}

/// The parts of the problem details of a denied request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Denial {
    pub status: u16,
    /// The problem type.
    pub kind: &'static str,
    pub detail: String,
    /// The names of the limits that deny, as headers show them.
    pub violated: Vec<String>,
}

impl Denial {
    /// The denial of a verdict that does not allow.
    pub fn of(verdict: &EngineVerdict) -> Denial {
        let kind = match verdict.reason {
            Reason::Ban => "about:blank",
            Reason::StoreError => concat!(registry!(), "temporary-reduced-capacity"),
            _ => concat!(registry!(), "quota-exceeded"),
        };
        let denying = verdict.enforced().filter(|limit| !limit.is_allowed());
        Denial {
            status: status(verdict),
            kind,
            detail: verdict.message().unwrap_or_default(),
            violated: denying.map(|limit| limit.policy().to_string()).collect(),
        }
    }
}

/// The HTTP status of a verdict.
pub fn status(verdict: &EngineVerdict) -> u16 {
    match (verdict.allowed, verdict.reason) {
        (true, _) => 200,
        (false, Reason::Ban) => 403,
        (false, Reason::StoreError) => 503,
        (false, _) => 429,
    }
}
