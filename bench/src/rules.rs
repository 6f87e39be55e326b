//! Does matching slow down with the number of rules? And how long do they take to load?

use std::fmt::Write;
use std::hint::black_box;
use std::time::Instant;

use tollgate::{Engine, Hit, Policy, Time};

const COUNTS: [usize; 3] = [100, 10_000, 100_000];
const ROUNDS: usize = 9;
const HITS: u64 = 100_000;

pub fn measure() {
    println!("rules, each on its own path; one request, matched, charged and concluded");
    println!("{:>10}  {:>12}  {:>12}", "rules", "load", "one hit");
    let engines: Vec<_> = COUNTS.iter().map(|count| loaded(*count)).collect();
    let mut rounds = vec![Vec::new(); COUNTS.len()];
    for _ in 0..ROUNDS {
        for (engine, times) in engines.iter().zip(&mut rounds) {
            times.push(hits(&engine.0));
        }
    }
    let mut first = None;
    for ((count, (_, load_ms)), mut times) in COUNTS.iter().zip(&engines).zip(rounds) {
        times.sort_by(f64::total_cmp);
        let median = times[ROUNDS / 2];
        let base = *first.get_or_insert(median);
        println!("{count:>10}  {load_ms:>9.0} ms  {median:>9.0} ns  {:>5.2} × the first", median / base);
    }
}

fn loaded(count: usize) -> (Engine, f64) {
    let mut yaml = String::from("rules:\n");
    for n in 0..count {
        writeln!(
            yaml,
            "  - {{id: rule-{n}, match: \"POST /api/v{}/service-{}/items-{n}/{{id}}\", key: [ip, user], limits: [50/m, 2000/h], algorithm: sliding-counter}}",
            n % 3,
            n % 1_000,
        )
        .expect("writing to a string cannot fail");
    }
    let start = Instant::now();
    let policy = Policy::from_yaml(&yaml).expect("the rules are valid");
    let load_ms = start.elapsed().as_secs_f64() * 1e3;
    (Engine::new(policy), load_ms)
}

/// Nanoseconds a hit, over paths that exist in every set.
fn hits(engine: &Engine) -> f64 {
    let now = Time::from_secs(1_800_000_000);
    let ip = "203.0.113.9".parse().expect("an address");
    let paths: Vec<String> =
        (0..100).map(|n| format!("/api/v{}/service-{}/items-{n}/77", n % 3, n % 1_000)).collect();
    let start = Instant::now();
    for n in 0..HITS {
        let path = &paths[n as usize % paths.len()];
        let hit = Hit::on("POST", "api.example.com", path).ip(ip).user("42");
        black_box(engine.check(black_box(&hit), now));
    }
    start.elapsed().as_nanos() as f64 / HITS as f64
}
