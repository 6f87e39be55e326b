//! The plots of docs/choose-an-algorithm.md: drawn from decisions of the library, and equal to the committed files.
//!
//! `scripts/reference` draws them again.

use std::fs;
use std::path::Path;

mod decisions;
#[path = "../../../tollgate-server/src/cli/svg.rs"]
#[allow(dead_code)] // `tollgate simulate --plot` draws more
mod svg;

use decisions::{Decision, decide};
use svg::{Color, Svg};

/// What each row and line shows: the algorithm with the options that matter.
const TIMELINE: [(&str, &str); 8] = [
    ("gcra", "limit: 6/m"),
    ("gcra, burst 2", "limit: 6/m, burst: 2"),
    ("token-bucket, calendar", "limit: 6/m, algorithm: token-bucket, refill: calendar"),
    ("fixed-window", "limit: 6/m, algorithm: fixed-window"),
    ("sliding-log", "limit: 6/m, algorithm: sliding-log"),
    ("sliding-counter", "limit: 6/m, algorithm: sliding-counter"),
    ("leaky-bucket", "limit: 6/m, algorithm: leaky-bucket"),
    ("leaky-bucket, reject", "limit: 6/m, algorithm: leaky-bucket, on_exceed: reject"),
];

/// Milliseconds; windows of a minute begin at 0, 60,000, …
fn bursts_and_a_trickle() -> Vec<u64> {
    let burst = |start: u64, count: u64| (0..count).map(move |n| start + n * 1_500);
    let trickle = (0..8).map(|n| 130_000 + n * 6_000);
    burst(12_000, 9).chain(burst(49_000, 7)).chain(burst(61_000, 7)).chain(trickle).collect()
}

/// A client that is idle for 50 s and then tries ten times a second.
fn greedy_from_50_s() -> Vec<u64> {
    (0..1_600).map(|n| 50_000 + n * 100).collect()
}

fn check_drawn(name: &str, drawing: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plots").join(name);
    if std::env::var_os("TOLLGATE_UPDATE").is_some() {
        fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("the folder can be created");
        fs::write(&path, drawing).expect("the plot can be written");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == drawing, "docs/plots/{name} is out of date: run scripts/reference");
}

/// The largest number of admissions within any 60 s, counted at their release.
fn most_in_a_minute(decisions: &[Decision]) -> usize {
    let released: Vec<u64> = decisions.iter().filter_map(|decision| decision.released_ms).collect();
    let within = |start: u64| released.iter().filter(|at| (start..start + 60_000).contains(*at)).count();
    released.iter().map(|start| within(*start)).max().unwrap_or(0)
}

#[test]
fn the_same_requests_under_each_algorithm() {
    let requests = bursts_and_a_trickle();
    let mut svg = Svg::new(1000, 60 + 44 * TIMELINE.len() as u32 + 34);
    let x = |ms: u64| 190.0 + ms as f64 / 210_000.0 * 640.0;
    svg.text(16.0, 26.0, "The same requests at 6 a minute");
    svg.legend(
        330.0,
        22.0,
        &[("allowed", Color::Allowed), ("denied", Color::Denied), ("held, then released", Color::Held)],
    );
    svg.small(852.0, 46.0, "allowed");
    svg.small(918.0, 46.0, "most in 60 s");
    let bottom = 60.0 + 44.0 * TIMELINE.len() as f64;
    for minute in 0..=3_u64 {
        svg.vertical(x(minute * 60_000), 54.0, bottom);
        svg.small(x(minute * 60_000) - 12.0, bottom + 18.0, &format!("{} s", minute * 60));
    }
    for (row, (name, options)) in TIMELINE.iter().enumerate() {
        let y = 82.0 + 44.0 * row as f64;
        let decisions = decide(options, &requests);
        svg.text(16.0, y + 4.0, name);
        svg.horizontal(x(0), x(210_000), y);
        for decision in decisions.iter().filter(|decision| decision.is_held()) {
            let released_ms = decision.released_ms.expect("what is held is released");
            svg.link(x(decision.at_ms), y - 9.0, x(released_ms), y + 9.0);
        }
        for decision in &decisions {
            match decision.released_ms {
                None => svg.dot(x(decision.at_ms), y - 9.0, Color::Denied),
                Some(at) if decision.is_held() => svg.dot(x(at), y + 9.0, Color::Held),
                Some(at) => svg.dot(x(at), y + 9.0, Color::Allowed),
            }
        }
        let allowed = decisions.iter().filter(|decision| decision.released_ms.is_some()).count();
        svg.text(850.0, y + 4.0, &format!("{allowed} of {}", decisions.len()));
        svg.text(940.0, y + 4.0, &most_in_a_minute(&decisions).to_string());
    }
    check_drawn("timeline.svg", &svg.finish());
}

#[test]
fn how_much_passes_within_a_minute_when_a_client_tries_all_the_time() {
    let lines = [
        ("fixed-window", "limit: 60/m, algorithm: fixed-window", Color::First),
        ("gcra (burst 60)", "limit: 60/m", Color::Second),
        ("sliding-counter", "limit: 60/m, algorithm: sliding-counter", Color::Third),
        ("sliding-log", "limit: 60/m, algorithm: sliding-log", Color::Fourth),
        ("gcra, burst 1", "limit: 60/m, burst: 1", Color::Fifth),
    ];
    let requests = greedy_from_50_s();
    let mut svg = Svg::new(860, 400);
    let x = |ms: u64| 60.0 + (ms - 40_000) as f64 / 170_000.0 * 770.0;
    let y = |count: f64| 350.0 - count / 130.0 * 260.0;
    svg.text(
        16.0,
        26.0,
        "Admitted within the last 60 s, at 60 a minute, by a client that tries all the time",
    );
    svg.legend(60.0, 52.0, &lines.map(|(name, _, color)| (name, color)));
    for count in [0, 60, 120] {
        svg.horizontal(60.0, 830.0, y(f64::from(count)));
        svg.small(30.0, y(f64::from(count)) + 4.0, &count.to_string());
    }
    for second in [60_u64, 120, 180] {
        svg.vertical(x(second * 1_000), 80.0, 350.0);
        svg.small(x(second * 1_000) - 12.0, 368.0, &format!("{second} s"));
    }
    for (_, options, color) in lines {
        let decisions = decide(options, &requests);
        let released: Vec<u64> = decisions.iter().filter_map(|decision| decision.released_ms).collect();
        let within =
            |end: u64| released.iter().filter(|at| (end.saturating_sub(59_999)..=end).contains(*at)).count();
        let points = (0..=340).map(|step| 40_000 + step * 500).map(|at| (x(at), y(within(at) as f64)));
        svg.line(&points.collect::<Vec<_>>(), color);
    }
    check_drawn("within-a-minute.svg", &svg.finish());
}

#[test]
fn a_burst_leaves_a_leaky_bucket_at_its_rate() {
    let rows = [
        ("leaky-bucket: all are held", "limit: 1/s, burst: 12, algorithm: leaky-bucket"),
        ("hold_after: 6", "limit: 1/s, burst: 12, algorithm: leaky-bucket, hold_after: 6"),
        ("max_wait: 4s", "limit: 1/s, burst: 12, algorithm: leaky-bucket, max_wait: 4s"),
        ("on_exceed: reject", "limit: 1/s, burst: 12, algorithm: leaky-bucket, on_exceed: reject"),
    ];
    let requests: Vec<u64> = (0..14).map(|n| 1_000 + n * 100).collect();
    let mut svg = Svg::new(860, 60 + 56 * rows.len() as u32 + 34);
    let x = |ms: u64| 220.0 + ms as f64 / 14_000.0 * 600.0;
    svg.text(16.0, 26.0, "Fourteen requests within 1.3 s, at 1 a second with room for 12");
    svg.legend(
        480.0,
        22.0,
        &[("allowed", Color::Allowed), ("denied", Color::Denied), ("held, then released", Color::Held)],
    );
    let bottom = 60.0 + 56.0 * rows.len() as f64;
    for second in (0..=14_u64).step_by(2) {
        svg.vertical(x(second * 1_000), 50.0, bottom);
        svg.small(x(second * 1_000) - 8.0, bottom + 18.0, &format!("{second} s"));
    }
    for (row, (name, options)) in rows.iter().enumerate() {
        let y = 86.0 + 56.0 * row as f64;
        svg.text(16.0, y + 4.0, name);
        for decision in decide(options, &requests) {
            match decision.released_ms {
                None => svg.dot(x(decision.at_ms), y - 12.0, Color::Denied),
                Some(at) if decision.is_held() => {
                    svg.link(x(decision.at_ms), y - 12.0, x(at), y + 12.0);
                    svg.dot(x(at), y + 12.0, Color::Held);
                }
                Some(at) => svg.dot(x(at), y + 12.0, Color::Allowed),
            }
        }
    }
    check_drawn("leaky-bucket.svg", &svg.finish());
}
