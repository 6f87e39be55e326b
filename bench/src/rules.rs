//! Does matching slow down with the number of rules? And how long do they take to load?

use std::fmt::Write;
use std::time::{Duration, Instant};

use tollgate::internal::EngineCore;
use tollgate::{Clock, Hit, Time};

use crate::effort::Effort;
use crate::keys::Random;
use crate::ours::engine_of;
use crate::score::{Scores, median, short};
use crate::table::Table;

pub const LINE: &str = "rules loaded";
/// A request that any of the rules may be for, from its texts to the rule that is found.
pub const RANDOM_LINE: &str = "a random one of the rules loaded";
/// Seconds of a processor to load them.
pub const LOAD_LINE: &str = "loading the rules";
/// The same up to a verdict, before anything is charged.
const LOOK_LINE: &str = "a look at a random one of the rules loaded";
/// Names and numbers of the rules loaded.
pub const COUNTS: [(&str, usize); 4] =
    [("100", 100), ("10 k", 10_000), ("100 k", 100_000), ("1 M", 1_000_000)];
/// Paths that exist in every set.
const PATHS: usize = 100;
/// Requests for random rules, and how many are timed together.
const RANDOM: usize = 50_000;
const TOGETHER: usize = 50;

pub struct Loads(Vec<(&'static str, Result<Duration, String>)>);

struct Loaded {
    name: &'static str,
    engine: EngineCore,
    random_paths: Vec<String>,
}

pub fn measure(effort: &Effort, scores: &mut Scores) -> Loads {
    let mut sets = Vec::new();
    let mut loads = Vec::new();
    let mut each = Duration::ZERO;
    for (name, count) in COUNTS {
        let expected = each * count as u32;
        if expected > effort.load {
            let skipped = format!("skipped: would take about {} s", expected.as_secs());
            loads.push((name, Err(skipped)));
            continue;
        }
        eprintln!("loading {count} rules");
        let (engine, load) = loaded(count);
        each = load / count as u32;
        scores.put(LOAD_LINE, name, 1, load.as_secs_f64());
        loads.push((name, Ok(load)));
        sets.push(Loaded { name, engine, random_paths: random_paths(count) });
    }
    let [mut times, mut random, mut looks] = [(); 3].map(|()| vec![Vec::new(); sets.len()]);
    for round in 0..effort.rounds {
        for turn in 0..sets.len() {
            let n = (turn + round) % sets.len();
            hits(&sets[n].engine, effort.warm);
            times[n].push(hits(&sets[n].engine, effort.slice));
            let policy = sets[n].engine.policy();
            random[n].push(at_random(&sets[n], |hit, _| policy.matching(hit).len()));
            looks[n].push(at_random(&sets[n], |hit, now| sets[n].engine.peek(hit, now).limits().len() / 2));
        }
    }
    for (set, ((times, random), looks)) in sets.iter().zip(times.into_iter().zip(random).zip(looks)) {
        for (line, times) in [(LINE, times), (RANDOM_LINE, random), (LOOK_LINE, looks)] {
            scores.put(line, set.name, 1, median(times));
        }
    }
    Loads(loads)
}

pub fn print(loads: &Loads, scores: &Scores) {
    let mut table = Table::new(
        "Rules loaded, each on its own path; one matches, with two limits",
        ["", "load, CPU", "ns", "× 100 rules", "ns to match a random one", "to a verdict"],
    );
    for (name, load) in &loads.0 {
        match (load, scores.get(LINE, name, 1), scores.get(LINE, COUNTS[0].0, 1)) {
            (Ok(load), Some(time), Some(first)) => table.row([
                (*name).to_owned(),
                format!("{:.2} s", load.as_secs_f64()),
                short(time),
                format!("{:.2}", time / first),
                scores.get(RANDOM_LINE, name, 1).map_or_else(String::new, short),
                scores.get(LOOK_LINE, name, 1).map_or_else(String::new, short),
            ]),
            (Err(skipped), ..) => table.row([(*name).to_owned(), skipped.clone()]),
            _ => {}
        }
    }
    table.print();
}

fn loaded(count: usize) -> (EngineCore, Duration) {
    let mut yaml = String::from("rules:\n");
    for n in 0..count {
        writeln!(
            yaml,
            "  - {{id: rule-{n}, match: \"POST {}/{{id}}\", key: [ip, user], limits: [1000000000/d, 900000000/h], algorithm: sliding-counter}}",
            folder(n),
        )
        .expect("writing to a string cannot fail");
    }
    let start = processor_time();
    (engine_of(&yaml), processor_time() - start)
}

/// What this thread has used of a processor: other work on the machine does not count.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux shows it");
    let nanos = text.split_whitespace().next().and_then(|word| word.parse().ok());
    Duration::from_nanos(nanos.expect("the first number is the time on a processor"))
}

fn folder(n: usize) -> String {
    format!("/api/v{}/service-{}/items-{n}", n % 3, n % 1_000)
}

/// The paths of random rules.
fn random_paths(count: usize) -> Vec<String> {
    let mut random = Random::new(5);
    (0..RANDOM).map(|_| format!("{}/77", folder(random.below(count)))).collect()
}

/// Nanoseconds for a request for a random rule: the median. Each finds one rule.
fn at_random(set: &Loaded, find: impl Fn(&Hit<'_>, Time) -> usize) -> f64 {
    let now = Clock::new().now();
    let ip = "203.0.113.9".parse().expect("an address");
    let mut times = Vec::new();
    for paths in set.random_paths.chunks(TOGETHER) {
        let start = Instant::now();
        for path in paths {
            let hit = Hit::on("POST", "api.example.com", path).ip(ip).user("42");
            assert_eq!(find(&hit, now), 1, "matched one rule");
        }
        times.push(start.elapsed().as_nanos() as f64 / paths.len() as f64);
    }
    median(times)
}

/// Nanoseconds a hit.
fn hits(engine: &EngineCore, time: Duration) -> f64 {
    let clock = Clock::new();
    let ip = "203.0.113.9".parse().expect("an address");
    let paths: Vec<String> = (0..PATHS).map(|n| format!("{}/77", folder(n))).collect();
    let mut decisions = 0;
    let mut allowed = 0;
    let start = Instant::now();
    while start.elapsed() < time {
        for path in &paths {
            let hit = Hit::on("POST", "api.example.com", path).ip(ip).user("42");
            let verdict = engine.check(&hit, clock.now());
            allowed += usize::from(verdict.allowed && verdict.limits().len() == 2);
        }
        decisions += paths.len();
    }
    assert_eq!(allowed, decisions, "matched one rule and allowed");
    start.elapsed().as_nanos() as f64 / decisions as f64
}
