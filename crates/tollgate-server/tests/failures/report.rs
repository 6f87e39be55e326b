//! The result of one failure, as rows of a table.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use crate::load::{Kind, MODES, ObservedRequest};

pub const HEAD: &str = "| What dies | Its own recovery | `on_store_error` | Clients below their limit | Clients at their limit | For | Extra admitted |
|---|---|---|---|---|---|---|";

/// One failure mode through one death.
#[derive(Debug)]
pub struct Row {
    pub what: String,
    /// When the servers themselves could serve again, and how they did that.
    pub recovery: String,
    pub mode: &'static str,
    pub below: String,
    pub at: String,
    /// From the death to the last answer that was not the store's.
    pub lasted: Option<Duration>,
    /// Requests of clients that had used up their limit, and were let through.
    pub extra: usize,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { what, recovery, mode, below, at, lasted, extra } = self;
        let lasted = lasted.map_or_else(|| "–".to_owned(), |lasted| format!("{:.1} s", lasted.as_secs_f64()));
        write!(f, "| {what} | {recovery} | `{mode}` | {below} | {at} | {lasted} | {extra} |")
    }
}

/// Rows for all failure modes.
pub fn rows(what: &str, recovery: &str, seen: &[ObservedRequest], died: Instant) -> Vec<Row> {
    let after: Vec<&ObservedRequest> = seen.iter().filter(|seen| seen.at >= died).collect();
    let row = |mode| {
        let of = |kind| {
            let all = after.iter().copied().filter(move |seen| seen.mode == mode && seen.kind == kind);
            all.collect::<Vec<_>>()
        };
        let below = of(Kind::BelowLimit);
        let at = of(Kind::AtLimit);
        let failed = below.iter().chain(&at).filter(|seen| seen.is_failure());
        Row {
            what: what.to_owned(),
            recovery: recovery.to_owned(),
            mode,
            lasted: failed.map(|seen| seen.at - died).max(),
            extra: at.iter().filter(|seen| seen.status == Some(200)).count(),
            below: summary(&below),
            at: summary(&at),
        }
    };
    MODES.into_iter().map(row).collect()
}

/// What clients saw: statuses, and how many of them the store did not decide.
fn summary(seen: &[&ObservedRequest]) -> String {
    let count = |status: Option<u16>| seen.iter().filter(|seen| seen.status == status).count();
    let statuses: BTreeSet<_> = seen.iter().filter_map(|seen| seen.status).collect();
    let mut parts: Vec<_> =
        statuses.into_iter().map(|status| format!("{} × {status}", count(Some(status)))).collect();
    if count(None) > 0 {
        parts.push(format!("{} not answered", count(None)));
    }
    parts.join(", ")
}
