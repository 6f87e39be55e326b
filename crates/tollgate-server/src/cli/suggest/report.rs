//! The suggested limits, as text and as JSON.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate::internal::limit::Rate;
use tollgate::internal::time::{Period, format_duration};

use super::client_peaks::{ClientPeak, PeakReport};
use crate::cli::out;
use crate::cli::table::TextTable;

/// The shares of clients that are to be spared, in tenths of a percent.
const SPARED: [u32; 3] = [990, 995, 999];
/// With fewer clients not even one of them is above the largest share.
const FEW_CLIENTS: u64 = 1000;
/// With fewer clients not even one of them is above the smallest share: limits are found by how many they catch.
const VERY_FEW_CLIENTS: u64 = 100;
/// Clients that are listed for each limit.
const LISTED: usize = 10;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SuggestReport {
    by: String,
    requests: u64,
    clients: u64,
    /// One client in so many is counted.
    sampled_one_in: u64,
    step_ms: u64,
    limits: Vec<SuggestedLimit>,
    /// The clients with the highest peaks.
    #[serde(default)]
    peaks: Vec<CaughtClient>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct SuggestedLimit {
    limit: String,
    spares_percent: f64,
    /// The clients that it catches, and all of their requests.
    clients: u64,
    requests: u64,
    /// Highest peak first.
    worst: Vec<CaughtClient>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct CaughtClient {
    key: String,
    peak: u32,
    requests: u64,
}

impl SuggestReport {
    pub(super) fn new(
        by: String,
        window: Period,
        peaks: &PeakReport,
        sampled_one_in: u64,
        shown: impl Fn(&str) -> String,
    ) -> SuggestReport {
        let rate = |count: u32| {
            Rate::new(u64::from(count), window).map_or_else(|_| count.to_string(), |rate| rate.to_string())
        };
        let listed = |client: &ClientPeak| CaughtClient {
            key: shown(&client.key),
            peak: client.peak,
            requests: client.requests,
        };
        let one = |(limit, spares_percent): (u32, f64)| {
            let caught = peaks.above(limit);
            SuggestedLimit {
                limit: rate(limit),
                spares_percent,
                clients: caught.len() as u64,
                requests: caught.iter().map(|client| client.requests).sum(),
                worst: caught.iter().take(LISTED).map(listed).collect(),
            }
        };
        SuggestReport {
            by,
            requests: peaks.requests(),
            clients: peaks.clients(),
            sampled_one_in: sampled_one_in.saturating_mul(peaks.sampled_one_in),
            step_ms: peaks.step.as_millis() as u64,
            limits: limits(peaks).into_iter().map(one).collect(),
            peaks: peaks.highest(LISTED).iter().map(listed).collect(),
        }
    }

    /// Prints the report on requests of this name, between two times.
    pub fn print(&self, name: &str, between: Option<(String, String)>) {
        let between = between.map_or_else(String::new, |(first, last)| format!(", {first} to {last}"));
        out::line(format!(
            "{name}: {} of {} by {}{between}",
            out::pluralize(self.requests, "request"),
            out::pluralize(self.clients, "client"),
            self.by
        ));
        let Some(lowest) = self.limits.first() else { return };
        let mut table = TextTable::new(&["LIMIT", "SPARES", "CLIENTS CAUGHT", "THEIR REQUESTS"]);
        let row = |one: &SuggestedLimit| {
            let spares = match self.clients {
                ..FEW_CLIENTS => format!("{} of {} clients", self.clients - one.clients, self.clients),
                _ => format!("{} % of clients", one.spares_percent),
            };
            vec![one.limit.clone(), spares, one.clients.to_string(), one.requests.to_string()]
        };
        let rows: Vec<_> = self.limits.iter().map(row).collect();
        table.lines(&rows).iter().for_each(out::line);
        let (title, clients) = match lowest.worst.is_empty() || self.clients < VERY_FEW_CLIENTS {
            true => ("highest peaks:".to_owned(), &self.peaks),
            false => (format!("above {}, most first:", lowest.limit), &lowest.worst),
        };
        out::line(format!("\n{title}"));
        let row = |client: &CaughtClient| {
            vec![client.key.clone(), client.peak.to_string(), client.requests.to_string()]
        };
        let rows: Vec<_> = clients.iter().map(row).collect();
        TextTable::new(&["KEY", "PEAK", "REQUESTS"]).lines(&rows).iter().for_each(out::line);
        if self.clients < VERY_FEW_CLIENTS {
            let are = if self.clients == 1 { "is" } else { "are" };
            out::message(format!(
                "note: {} {are} too few for 99 %: the limits spare all but a few of them",
                out::pluralize(self.clients, "client")
            ));
        }
        out::message(format!("note: {}", self.precision()));
    }

    /// What the numbers mean, and how exact they are.
    fn precision(&self) -> String {
        let step = format_duration(Duration::from_millis(self.step_ms));
        let sample = match self.sampled_one_in {
            1 => String::new(),
            one_in => format!("; only one client in {one_in} is counted, there are too many"),
        };
        format!(
            "a peak is the most requests of a client within one period, which may be longer by up to {step} \
             where times are finer than that{sample}"
        )
    }
}

/// The limits, the lowest first, each with the percentage of clients that it spares.
///
/// A share of few clients leaves none of them out, so that one busy client alone would make the limit. Then the limits
/// leave out one client, and two and five in a hundred; equal ones are listed once.
fn limits(peaks: &PeakReport) -> Vec<(u32, f64)> {
    let clients = peaks.clients();
    if clients >= FEW_CLIENTS {
        return SPARED.map(|share| (peaks.limit_for(share), f64::from(share) / 10.0)).to_vec();
    }
    let mut outliers: Vec<usize> = match clients {
        0 => return Vec::new(),
        1..VERY_FEW_CLIENTS => vec![peaks.outliers(950), peaks.outliers(980), 1, 0],
        _ => SPARED.iter().map(|share| peaks.outliers(*share)).chain([0]).collect(),
    };
    outliers.retain(|outliers| (*outliers as u64) < clients);
    outliers.sort_unstable_by(|a, b| b.cmp(a));
    let mut limits: Vec<u32> = outliers.iter().map(|outliers| peaks.limit_but_for(*outliers)).collect();
    limits.dedup();
    let spared = |limit: u32| {
        let spared = clients - peaks.above(limit).len() as u64;
        (limit, (spared as f64 * 1000.0 / clients as f64).round() / 10.0)
    };
    limits.into_iter().map(spared).collect()
}

#[cfg(test)]
mod tests {
    use tollgate::Time;
    use tollgate::internal::time::Unit;

    use super::super::client_peaks::ClientPeaks;
    use super::*;

    /// A report on clients with these peaks.
    fn report(clients: impl Iterator<Item = u32>) -> SuggestReport {
        let window = Period::new(1, Unit::Minute).expect("a minute");
        let mut peaks = ClientPeaks::new(window);
        for (client, peak) in clients.enumerate() {
            (0..peak).for_each(|_| peaks.add(&format!("user:{client}"), Time::from_secs(1_767_225_600)));
        }
        SuggestReport::new("user".to_owned(), window, &peaks.report(), 1, str::to_owned)
    }

    fn rows(report: &SuggestReport) -> Vec<(&str, f64, u64)> {
        report.limits.iter().map(|one| (&*one.limit, one.spares_percent, one.clients)).collect()
    }

    /// Three equal limits were listed, at the peak of the attacker.
    #[test]
    fn one_busy_client_of_few_does_not_make_the_limit() {
        let few = report((0..60).map(|client| if client == 7 { 800 } else { 5 + client % 5 }));
        assert_eq!(rows(&few), [("9/m", 98.3, 1), ("800/m", 100.0, 0)]);
        assert_eq!((&*few.peaks[0].key, few.peaks[0].peak, few.peaks[1].peak), ("user:7", 800, 9));
        let several = report((1..=200).map(|client| client * 10));
        assert_eq!(rows(&several), [("1980/m", 99.0, 2), ("1990/m", 99.5, 1), ("2000/m", 100.0, 0)]);
        let many = report(1..=1000);
        assert_eq!(rows(&many), [("990/m", 99.0, 10), ("995/m", 99.5, 5), ("999/m", 99.9, 1)]);
        assert_eq!(rows(&report([7].into_iter())), [("7/m", 100.0, 0)]);
        assert_eq!(rows(&report([3, 90].into_iter())), [("3/m", 50.0, 1), ("90/m", 100.0, 0)]);
        assert!(rows(&report([].into_iter())).is_empty());
    }
}
