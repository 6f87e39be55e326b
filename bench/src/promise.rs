//! What must hold: each promise with its target, what was measured, and whether it is kept.
//!
//! A promise is kept at its share of the best exact rival of the same run, or at 1.3 times the floor,
//! whichever is larger.

use tollgate::internal::Shape;

use crate::algorithms;
use crate::bytes;
use crate::contestant::Allowance::Ample;
use crate::decisions::{Spread, line};
use crate::engine;
use crate::logs;
use crate::roster::{CACHED, FLOOR, LIMITADOR, OURS};
use crate::rules;
use crate::score::{Scores, short};
use crate::table::Table;

/// As close to the floor as anyone can ask.
const NEAR: f64 = 1.3;
/// The floor's entry, in bytes.
const SLOT: f64 = 16.0;
/// What still counts as flat: the noise of a shared machine, and a few more cache misses.
const FLAT: f64 = 1.3;

struct Promise {
    what: String,
    /// In words, and as a number in the unit of what was measured.
    target: (String, f64),
    floor: Option<f64>,
    measured: f64,
    unit: &'static str,
}

impl Promise {
    fn most(&self) -> f64 {
        self.target.1.max(self.floor.map_or(0.0, |floor| floor * NEAR))
    }

    fn is_kept(&self) -> bool {
        self.measured <= self.most()
    }
}

/// Prints all promises whose lines were measured; says whether all of them are kept.
pub fn print(scores: &Scores) -> bool {
    let promises = promises(scores);
    if promises.is_empty() {
        return true;
    }
    let mut table = Table::new(
        "Must hold",
        ["work, all allowed", "target", "at most", "floor × 1.3", "measured", "", ""],
    );
    for promise in &promises {
        let value = |value: f64| match promise.unit {
            "×" => format!("{value:.2} ×"),
            unit => format!("{} {unit}", short(value)),
        };
        let over = format!("{:.2} of it", promise.measured / promise.most());
        table.row([
            promise.what.clone(),
            promise.target.0.clone(),
            value(promise.target.1),
            promise.floor.map_or("–".to_owned(), |floor| value(floor * NEAR)),
            value(promise.measured),
            if promise.is_kept() { "PASS" } else { "MISS" }.to_owned(),
            over,
        ]);
    }
    table.print();
    let kept = promises.iter().filter(|promise| promise.is_kept()).count();
    println!("{kept} of {} hold", promises.len());
    kept == promises.len()
}

fn promises(scores: &Scores) -> Vec<Promise> {
    let hot = line::<String>(1, Spread::Hot, Ample);
    let hot_number = line::<u64>(1, Spread::Hot, Ample);
    let some = line::<String>(100_000, Spread::Uniform, Ample);
    let million = line::<String>(1_000_000, Spread::Uniform, Ample);
    let million_numbers = line::<u64>(1_000_000, Spread::Uniform, Ample);
    let zipf = line::<String>(1_000_000, Spread::Zipf, Ample);
    let mut found: Vec<Option<Promise>> = vec![
        against_best(scores, &hot, OURS, 1, 1.0),
        against_best(scores, &hot, OURS, 2, 1.0),
        against_best(scores, &hot_number, OURS, 1, 1.0),
        against_best(scores, &hot_number, OURS, 2, 1.0),
        against_best(scores, &hot_number, CACHED, 1, 0.8),
        against_best(scores, &hot_number, CACHED, 2, 0.8),
        against_best(scores, &some, OURS, 1, 0.8),
        against_best(scores, &million, OURS, 1, 0.35),
        against_best(scores, &million, OURS, 2, 0.3),
        against_best(scores, &million_numbers, OURS, 1, 0.45),
        against_best(scores, &zipf, OURS, 1, 0.4),
        batches(scores, &million),
        bytes_a_key(scores, bytes::MILLION, 26.0),
        bytes_a_key(scores, bytes::TEN_MILLION, 22.0),
        full_logs(scores),
        whole_engine(scores),
        two_threads(scores),
        more_keys::<String>(scores),
        more_keys::<u64>(scores),
    ];
    found.extend(engine::MATCHING[1..].iter().map(|(name, most)| matching_rules(scores, name, *most)));
    found.extend(algorithms::WIDE.map(|name| wide_state(scores, name)));
    found.extend(rules::COUNTS[1..].iter().map(|(name, _)| loaded_rules(scores, name)));
    found.push(load(scores));
    found.push(random_rule(scores));
    found.into_iter().flatten().collect()
}

fn against_best(
    scores: &Scores,
    line: &str,
    name: &'static str,
    threads: usize,
    share: f64,
) -> Option<Promise> {
    let (rival, best) = scores.best_rival(line, threads)?;
    let how = if name == CACHED { ", cached clock" } else { "" };
    let line_shown = line.trim_end_matches(", allowed");
    Some(Promise {
        what: format!("{line_shown}{how}, {}", if threads == 1 { "1 thread" } else { "2 threads" }),
        target: (format!("{share} × {rival}"), best * share),
        floor: scores.get(line, FLOOR, threads),
        measured: scores.get(line, name, threads)?,
        unit: "ns",
    })
}

/// Batches, against the best rival's single decisions.
fn batches(scores: &Scores, singles: &str) -> Option<Promise> {
    const SHARE: f64 = 0.12;
    let line = line::<String>(1_000_000, Spread::Batch, Ample);
    let (rival, best) = scores.best_rival(singles, 1)?;
    Some(Promise {
        what: line.trim_end_matches(", allowed").to_owned(),
        target: (format!("{SHARE} × {rival}, single"), best * SHARE),
        floor: scores.get(&line, FLOOR, 1),
        measured: scores.get(&line, OURS, 1)?,
        unit: "ns",
    })
}

fn bytes_a_key(scores: &Scores, line: &str, target: f64) -> Option<Promise> {
    Some(Promise {
        what: line.to_owned(),
        target: (format!("{target} B"), target),
        floor: Some(SLOT),
        measured: scores.get(line, OURS, 1)?,
        unit: "B",
    })
}

fn full_logs(scores: &Scores) -> Option<Promise> {
    const TARGET: f64 = 2_500.0;
    Some(Promise {
        what: logs::LINE.to_owned(),
        target: (format!("{TARGET} B"), TARGET),
        floor: None,
        measured: scores.get(logs::LINE, OURS, 1)?,
        unit: "B",
    })
}

fn whole_engine(scores: &Scores) -> Option<Promise> {
    const SHARE: f64 = 0.05;
    let rival = scores.get(engine::LINE, LIMITADOR, 1)?;
    Some(Promise {
        what: engine::LINE.to_owned(),
        target: (format!("{SHARE} × {LIMITADOR}"), rival * SHARE),
        floor: None,
        measured: scores.get(engine::LINE, OURS, 1)?,
        unit: "ns",
    })
}

/// Two threads decide 1.8 times as much as one, or 0.9 of what they do with the store alone.
fn two_threads(scores: &Scores) -> Option<Promise> {
    const TOGETHER: f64 = 1.8;
    const SHARE: f64 = 0.9;
    let store = |threads| scores.get(engine::LINE, engine::STORE, threads);
    let scaling = TOGETHER.min(SHARE * 2.0 * store(1)? / store(2)?);
    Some(Promise {
        what: format!("{}, 2 threads", engine::LINE),
        target: (
            format!("{scaling:.2} times as much as 1"),
            2.0 * scores.get(engine::LINE, OURS, 1)? / scaling,
        ),
        floor: None,
        measured: scores.get(engine::LINE, OURS, 2)?,
        unit: "ns",
    })
}

fn wide_state(scores: &Scores, name: &'static str) -> Option<Promise> {
    const MOST: f64 = 3.0;
    let gcra = scores.get(algorithms::LINE, Shape::GCRA.name(), 1)?;
    Some(Promise {
        what: format!("{name}, against gcra"),
        target: (format!("{MOST} times"), MOST),
        floor: None,
        measured: scores.get(algorithms::LINE, name, 1)? / gcra,
        unit: "×",
    })
}

/// From one to ten million keys.
fn more_keys<K: crate::keys::Key>(scores: &Scores) -> Option<Promise> {
    const GROWTH: f64 = 1.6;
    let at = |keys, name| scores.get(&line::<K>(keys, Spread::Uniform, Ample), name, 1);
    let growth = |name| Some(at(10_000_000, name)? / at(1_000_000, name)?);
    Some(Promise {
        what: format!("{}, from 1 M to 10 M keys", K::KIND),
        target: ("at most 1.6 times".to_owned(), GROWTH),
        floor: growth(FLOOR),
        measured: growth(OURS)?,
        unit: "×",
    })
}

fn matching_rules(scores: &Scores, name: &'static str, most: f64) -> Option<Promise> {
    let one = scores.get(engine::MATCHING_LINE, engine::MATCHING[0].0, 1)?;
    Some(Promise {
        what: format!("engine, {name}"),
        target: (format!("{most} times"), most),
        floor: None,
        measured: scores.get(engine::MATCHING_LINE, name, 1)? / one,
        unit: "×",
    })
}

fn loaded_rules(scores: &Scores, name: &'static str) -> Option<Promise> {
    let first = scores.get(rules::LINE, rules::COUNTS[0].0, 1)?;
    Some(Promise {
        what: format!("engine, {name} rules loaded, against 100"),
        target: ("flat".to_owned(), FLAT),
        floor: None,
        measured: scores.get(rules::LINE, name, 1)? / first,
        unit: "×",
    })
}

/// All rules, from YAML.
fn load(scores: &Scores) -> Option<Promise> {
    const MOST_S: f64 = 8.0;
    let (name, _) = rules::COUNTS[rules::COUNTS.len() - 1];
    Some(Promise {
        what: format!("{name} rules loaded from YAML"),
        target: (format!("{MOST_S} s"), MOST_S),
        floor: None,
        measured: scores.get(rules::LOAD_LINE, name, 1)?,
        unit: "s",
    })
}

/// A random one of the most rules, from the texts of a request to the rule.
fn random_rule(scores: &Scores) -> Option<Promise> {
    const TARGET_NS: f64 = 1_000.0;
    let (name, _) = rules::COUNTS[rules::COUNTS.len() - 1];
    Some(Promise {
        what: format!("a random one of {name} rules, matched"),
        target: ("1 µs".to_owned(), TARGET_NS),
        floor: None,
        measured: scores.get(rules::RANDOM_LINE, name, 1)?,
        unit: "ns",
    })
}
