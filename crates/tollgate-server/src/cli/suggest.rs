//! `tollgate suggest`: the limits that an access log suggests, and the clients that each would catch.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use tollgate::internal::PolicySnapshot;
use tollgate::internal::http::FieldSelection;
use tollgate::internal::identity::{Attribute, Key};
use tollgate::internal::limit::Rate;
use tollgate::internal::time::{Period, calendar, format_duration};

use crate::cli::access_log::{AccessLog, AccessLogFormat, AccessLogSummary};
use crate::cli::table::TextTable;
use crate::cli::{Exit, out};

mod client_peaks;

use client_peaks::{ClientPeaks, PeakReport};

/// The shares of clients that are to be spared, in tenths of a percent.
const SPARED: [u32; 3] = [990, 995, 999];
/// Clients that are listed for each limit.
const LISTED: usize = 10;

#[derive(Args)]
pub struct SuggestArgs {
    /// The access log; `-` reads it from stdin
    log: PathBuf,
    /// What identifies a client: ip, user, api_key, header:NAME …; several are counted together
    #[arg(long, value_name = "KEY", default_value = "ip", value_delimiter = ',')]
    by: Vec<String>,
    /// The period of the limit, such as 1s, 1m or 1h
    #[arg(long, value_name = "PERIOD", default_value = "1m", value_parser = window)]
    window: Period,
    /// Only requests that match, as in a rule: [METHOD ]PATH
    #[arg(long = "match", value_name = "PATTERN")]
    pattern: Option<String>,
    /// The format of the log, if it is not recognised
    #[arg(long, value_name = "FORMAT")]
    format: Option<AccessLogFormat>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn window(text: &str) -> Result<Period, String> {
    let rate: Rate =
        format!("1/{text}").parse().map_err(|_| "expected a period such as 1s, 1m or 1h".to_owned())?;
    Ok(rate.period())
}

pub fn run(args: &SuggestArgs) -> Exit {
    suggest(args).err().unwrap_or(Exit::Success)
}

fn suggest(args: &SuggestArgs) -> Result<(), Exit> {
    let usage = |message: String| {
        out::message(format!("error: {message}"));
        Exit::Usage
    };
    let parse = |name: &String| Attribute::parse(name).map_err(|why| usage(format!("--by {name}: {why}")));
    let by = args.by.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    // One rule, so that requests match and identities are read as in the server.
    let rule = json!({ "id": "suggested", "match": args.pattern, "key": args.by, "limit": "1/s" });
    let policy = PolicySnapshot::from_yaml(&json!({ "rules": [rule] }).to_string()).map_err(|problems| {
        usage(problems.iter().map(|problem| problem.message().to_owned()).collect::<Vec<_>>().join("; "))
    })?;
    let fields = FieldSelection::of_policy(&policy, &[]);
    let mut peaks = ClientPeaks::new(args.window);
    let mut without_key = 0;
    let mut log = AccessLog::open(&args.log, args.format)?;
    let summary = log.read(|record, at| {
        let hit = record.hit(&fields);
        if policy.matching(&hit).len() == 0 {
            return;
        }
        match key_text(&policy, &hit, &by) {
            Some(key) => peaks.add(&key, at),
            None => without_key += 1,
        }
    })?;
    summary.print_notes(&log.name);
    if without_key > 0 {
        let count = out::pluralize(without_key, "request");
        out::message(format!("note: {count} without {} left out", args.by.join("+")));
    }
    let suggestion =
        Suggestion { log: &log.name, by: args.by.join("+"), window: args.window, report: peaks.report() };
    match args.json {
        true => out::pretty(&suggestion.json(&summary)),
        false => suggestion.print(&summary),
    }
    Ok(())
}

fn key_text(policy: &PolicySnapshot, hit: &tollgate::Hit<'_>, by: &[Attribute]) -> Option<String> {
    let part = |attribute: &Attribute| Some((attribute.clone(), policy.value(hit, attribute)?.into_owned()));
    Key::new(by.iter().map(part).collect::<Option<Vec<_>>>()?).ok().map(|key| key.to_string())
}

struct Suggestion<'s> {
    log: &'s str,
    by: String,
    window: Period,
    report: PeakReport,
}

impl Suggestion<'_> {
    fn rate(&self, count: u32) -> String {
        Rate::new(u64::from(count), self.window).map_or_else(|_| count.to_string(), |rate| rate.to_string())
    }

    fn print(&self, summary: &AccessLogSummary) {
        let report = &self.report;
        let between = summary.first.map_or_else(String::new, |first| {
            format!(", {} to {}", calendar::rfc3339(first), calendar::rfc3339(summary.last))
        });
        out::line(format!(
            "{}: {} of {} by {}{between}",
            self.log,
            out::pluralize(report.requests(), "request"),
            out::pluralize(report.clients(), "client"),
            self.by
        ));
        if report.clients() == 0 {
            return;
        }
        let mut table = TextTable::new(&["LIMIT", "SPARES", "CLIENTS CAUGHT", "THEIR REQUESTS"]);
        let rows: Vec<_> = SPARED
            .iter()
            .map(|share| {
                let limit = report.limit_for(*share);
                let caught = report.above(limit);
                let requests: u64 = caught.iter().map(|client| client.requests).sum();
                vec![
                    self.rate(limit),
                    format!("{} % of clients", f64::from(*share) / 10.0),
                    caught.len().to_string(),
                    requests.to_string(),
                ]
            })
            .collect();
        table.lines(&rows).iter().for_each(out::line);
        let caught = report.above(report.limit_for(SPARED[0]));
        if !caught.is_empty() {
            out::line(format!("\nabove {}, most first:", self.rate(report.limit_for(SPARED[0]))));
            let row = |client: &client_peaks::ClientPeak| {
                vec![client.key.to_string(), client.peak.to_string(), client.requests.to_string()]
            };
            let rows: Vec<_> = caught.iter().take(LISTED).map(row).collect();
            TextTable::new(&["KEY", "PEAK", "REQUESTS"]).lines(&rows).iter().for_each(out::line);
        }
        out::message(format!("note: {}", self.precision()));
    }

    /// What the numbers mean, and how exact they are.
    fn precision(&self) -> String {
        let step = format_duration(self.report.step);
        let sample = match self.report.sampled_one_in {
            1 => String::new(),
            one_in => format!("; only one client in {one_in} is counted, there are too many"),
        };
        format!(
            "a peak is the most requests of a client within one period, which may be longer by up to {step} \
             where times are finer than that{sample}"
        )
    }

    fn json(&self, summary: &AccessLogSummary) -> Value {
        let report = &self.report;
        let one = |share: &u32| {
            let limit = report.limit_for(*share);
            let caught = report.above(limit);
            let worst: Vec<_> = caught
                .iter()
                .take(LISTED)
                .map(|client| json!({ "key": client.key, "peak": client.peak, "requests": client.requests }))
                .collect();
            json!({
                "limit": self.rate(limit),
                "spares_percent": f64::from(*share) / 10.0,
                "clients": caught.len(),
                "requests": caught.iter().map(|client| client.requests).sum::<u64>(),
                "worst": worst,
            })
        };
        let limits: Vec<_> = SPARED.iter().filter(|_| report.clients() > 0).map(one).collect();
        json!({
            "by": self.by,
            "requests": report.requests(),
            "clients": report.clients(),
            "unreadable": summary.unreadable,
            "sampled_one_in": report.sampled_one_in,
            "step_ms": report.step.as_millis() as u64,
            "limits": limits,
        })
    }
}
