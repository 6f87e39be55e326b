//! Rules that all differ: 20,000 limits, 5 methods, 50,000 hosts, 500,000 users, 200,000 patterns and four algorithms in
//! a million, the same at every run.
//!
//! Usage: mixed_rules text RULES          prints them as YAML that an import takes
//!        mixed_rules match FILE RULES    reads them from a SQLite file, and prints the nanoseconds in which a request
//!                                        for a random one of them is matched, the median

use std::error::Error;
use std::hint::black_box;
use std::io::{BufWriter, Write, stdout};
use std::path::Path;
use std::time::{Duration, Instant};

use tollgate::internal::PolicySnapshot;
use tollgate::internal::document::{self, Problems};
use tollgate::internal::policy::{PolicyChange, PolicyParts};
use tollgate::internal::rule::parse;
use tollgate::{Hit, Time};
use tollgate_stores::rules::sqlite::SqliteDb;
use tollgate_testkit::mixed_rules::{Mix, Parts};

#[path = "../../tollgate-server/src/allocator.rs"]
mod allocator;

/// Requests, and how many of them are timed together.
const REQUESTS: usize = 100_000;
const TOGETHER: usize = 50;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["text", rules] => print(Mix::of(rules.parse()?)),
        ["match", file, rules] => {
            let policy = loaded(Path::new(file))?;
            // As a server does after its first load.
            allocator::trim();
            allocator::use_huge_pages();
            Ok(writeln!(stdout(), "{:.0}", matched(&policy, Mix::of(rules.parse()?)))?)
        }
        _ => Err("usage: mixed_rules text RULES | mixed_rules match FILE RULES".into()),
    }
}

fn print(mix: Mix) -> Result<(), Box<dyn Error>> {
    let mut out = BufWriter::new(stdout().lock());
    out.write_all(b"rules:\n")?;
    for n in 0..mix.rules {
        writeln!(out, "- {}", mix.text(n))?;
    }
    Ok(out.flush()?)
}

fn loaded(file: &Path) -> Result<PolicySnapshot, Box<dyn Error>> {
    let mut draft = PolicySnapshot::new(PolicyParts::default())?.draft();
    let now = Time::from_secs(1_800_000_000);
    SqliteDb::open(file)?.load(|batch, _| {
        for stored in batch {
            let mut problems = Problems::new();
            let node = document::read(&stored.text).expect("what the database holds can be read");
            let rule = parse::rule(&node, "rule", &mut problems).expect("a rule");
            draft.apply(PolicyChange::Put(rule), now).expect("it fits");
        }
    })?;
    Ok(draft.finish())
}

/// From the texts of a request to the rules that match it; the median of many.
fn matched(policy: &PolicySnapshot, mix: Mix) -> f64 {
    let requests: Vec<Parts> =
        (0..REQUESTS).map(|n| mix.parts(n.wrapping_mul(982_451_653) % mix.rules)).collect();
    let mut times: Vec<Duration> = Vec::new();
    for requests in requests.chunks(TOGETHER) {
        let start = Instant::now();
        for Parts { method, host, request_path, uid, .. } in requests {
            let hit = Hit::on(method, host, request_path).user(uid);
            assert!(black_box(policy.matching(&hit).len()) >= 1, "a rule matches");
        }
        times.push(start.elapsed());
    }
    times.sort();
    times[times.len() / 2].as_nanos() as f64 / TOGETHER as f64
}
