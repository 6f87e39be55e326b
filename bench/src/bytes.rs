//! Bytes a key: resident memory after a million and ten million strings, grown from empty.

use crate::effort::Effort;
use crate::entrant::Faults;
use crate::growth::{Growth, grown};
use crate::roster;
use crate::score::Scores;
use crate::table::Table;

pub const MILLION: &str = "bytes a key, 1 M strings";
pub const TEN_MILLION: &str = "bytes a key, 10 M strings";

/// Decision times while ten million keys are let in.
pub type Histograms = Vec<(&'static str, Growth)>;

pub fn measure(effort: &Effort, scores: &mut Scores) -> Histograms {
    let candidates = roster::strings();
    let few = effort.keys(1_000_000);
    let many = effort.keys(10_000_000);
    for candidate in &candidates {
        if candidate.name == roster::CACHED || (candidate.slow && few > effort.slow_keys) {
            continue;
        }
        let growth = grown(candidate.name, few);
        scores.put(MILLION, candidate.name, 1, growth.bytes_per_key);
        scores.note(MILLION, candidate.name, Faults { wrong: growth.wrong, decisions: few });
    }
    // governor's histogram is always shown; with another hasher it takes just as much.
    let mut names = vec![roster::OURS, roster::FLOOR, roster::GOVERNOR];
    let rivals = scores.rivals_by_value(MILLION, 1).into_iter().map(|(name, _)| name);
    names.extend(
        rivals
            .filter(|name| ![roster::GOVERNOR, roster::GOVERNOR_AHASH].contains(name))
            .take(effort.rivals_at_most_keys - 1),
    );
    let mut histograms = Vec::new();
    for name in names {
        let growth = grown(name, many);
        scores.put(TEN_MILLION, name, 1, growth.bytes_per_key);
        scores.note(TEN_MILLION, name, Faults { wrong: growth.wrong, decisions: many });
        histograms.push((name, growth));
    }
    histograms
}

pub fn print_histograms(histograms: &Histograms) {
    let mut table =
        Table::new("One decision while 10 M keys are let in, one thread", ["", "p50", "p99", "p99.9", "max"]);
    for (name, growth) in histograms {
        let time = |ns: f64| match ns {
            ns if ns < 10_000.0 => format!("{ns:.0} ns"),
            ns if ns < 10_000_000.0 => format!("{:.0} µs", ns / 1e3),
            ns => format!("{:.0} ms", ns / 1e6),
        };
        table.row([
            (*name).to_owned(),
            time(growth.p50_ns),
            time(growth.p99_ns),
            time(growth.p999_ns),
            time(growth.max_ns),
        ]);
    }
    table.print();
}
