//! `tollgate suggest`: the limits that an access log or the live requests suggest, and the clients that each would catch.

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;
use serde_json::json;
use tollgate::internal::time::{Period, calendar};

use crate::cli::access_log::{AccessLog, AccessLogFormat};
use crate::cli::session::Session;
use crate::cli::{AdminArgs, Exit, out};
use crate::client::percent_encode;

mod client_peaks;
mod peak_counter;
mod report;

pub use peak_counter::{PeakCounter, PeakQuery, PeakQueryError, parse_window};
pub use report::SuggestReport;

#[derive(Args)]
pub struct SuggestArgs {
    /// The access log; `-` reads it from stdin
    #[arg(required_unless_present = "live")]
    log: Option<PathBuf>,
    /// The latest requests of a running server instead of a log
    #[arg(long, conflicts_with_all = ["log", "format"])]
    live: bool,
    /// What identifies a client: ip, user, api_key, header:NAME …; several are counted together
    #[arg(long, value_name = "KEY", default_value = "ip", value_delimiter = ',')]
    by: Vec<String>,
    /// The period of the limit, such as 1s, 1m or 1h
    #[arg(long, value_name = "PERIOD", default_value = "1m", value_parser = parse_window)]
    window: Period,
    /// Only requests that match, as in a rule: [METHOD ]PATH
    #[arg(long = "match", value_name = "PATTERN")]
    pattern: Option<String>,
    /// The format of the log, if it is not recognised
    #[arg(long, value_name = "FORMAT")]
    format: Option<AccessLogFormat>,
    #[command(flatten)]
    admin: AdminArgs,
}

pub fn run(args: &SuggestArgs) -> Exit {
    let suggested = match &args.log {
        Some(log) if !args.live => of_log(args, log),
        _ => of_live_requests(args),
    };
    suggested.err().unwrap_or(Exit::Success)
}

fn of_log(args: &SuggestArgs, log: &std::path::Path) -> Result<(), Exit> {
    let usage = |message: String| {
        out::message(format!("error: {message}"));
        Exit::Usage
    };
    let query = PeakQuery { by: args.by.clone(), window: args.window, pattern: args.pattern.clone() };
    let mut counter = PeakCounter::new(query).map_err(|wrong| match wrong {
        PeakQueryError::By { .. } => usage(format!("--{wrong}")),
        PeakQueryError::Pattern(_) => usage(wrong.to_string()),
    })?;
    let mut log = AccessLog::open(log, args.format)?;
    let fields = counter.fields().clone();
    let summary = log.read(&fields, |record, at| _ = counter.add(&record.hit(), at))?;
    summary.print_notes(&log.name);
    let without_key = counter.without_key;
    if without_key > 0 {
        let count = out::pluralize(without_key, "request");
        out::message(format!("note: {count} without {} left out", args.by.join("+")));
    }
    let report = counter.report(1, str::to_owned);
    if args.admin.json {
        let mut body = json!(report);
        body["unreadable"] = summary.unreadable.into();
        out::pretty(&body);
        return Ok(());
    }
    let between = summary.first.map(|first| (calendar::rfc3339(first), calendar::rfc3339(summary.last)));
    report.print(&log.name, between);
    Ok(())
}

/// What `/v1/suggest` adds to a report.
#[derive(Deserialize)]
struct LiveSuggestion {
    #[serde(flatten)]
    report: SuggestReport,
    from: Option<u64>,
    to: Option<u64>,
    notes: Vec<String>,
}

fn of_live_requests(args: &SuggestArgs) -> Result<(), Exit> {
    let mut path = format!(
        "/v1/suggest?by={}&window={}",
        percent_encode(&args.by.join(",")),
        percent_encode(&args.window.to_string())
    );
    if let Some(pattern) = &args.pattern {
        path += &format!("&match={}", percent_encode(pattern));
    }
    let body = Session::open(&args.admin)?.get(&path)?;
    if args.admin.json {
        out::pretty(&body);
        return Ok(());
    }
    let live: LiveSuggestion = serde_json::from_value(body).map_err(|error| {
        out::message(format!("error: unexpected response from {}: {error}", args.admin.admin));
        Exit::Failure
    })?;
    let time = |secs: u64| calendar::rfc3339(tollgate::Time::from_secs(secs));
    live.report.print("live requests", live.from.zip(live.to).map(|(from, to)| (time(from), time(to))));
    live.notes.iter().for_each(|note| out::message(format!("note: {note}")));
    Ok(())
}
