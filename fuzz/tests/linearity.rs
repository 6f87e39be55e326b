//! Twice the input costs at most 2.2 times the instructions, for every case; where a bound ends the work, no more than before.
//! Needs valgrind.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use tollgate_fuzz::linearity::BOUND_MARK;
use tollgate_testkit::not_run;

/// What doubling the input may cost at most.
const LINEAR: f64 = 2.2;
/// What it may cost where a bound ends the work: the rest may still be copied or checked to be UTF-8.
const BOUNDED: f64 = 1.4;
/// Instructions that do not matter: a case that is ended by its bound may cost a few hundred in all.
const SLACK: u64 = 2_000;
/// How often a case is counted before it fails. Seeds of hash maps, and whether the allocator can grow a buffer where it is,
/// differ from run to run; work that grows faster than its input exceeds the bound in every run.
const ATTEMPTS: usize = 3;

/// The instructions of each call of `linearity_measured`, in order.
fn totals(folder: &Path) -> Vec<u64> {
    let mut dumps: Vec<(u32, u64)> = fs::read_dir(folder)
        .expect("callgrind has written")
        .filter_map(|entry| {
            let path = entry.expect("an entry").path();
            let number = path.extension()?.to_str()?.parse().ok()?;
            let text = fs::read_to_string(&path).expect("a dump can be read");
            let total = text.lines().find_map(|line| line.strip_prefix("summary: "))?;
            Some((number, total.trim().parse().expect("a number")))
        })
        .collect();
    dumps.sort_unstable();
    dumps.into_iter().map(|(_, total)| total).collect()
}

fn has_valgrind() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// What one case cost with its input, and with twice its input.
struct Count {
    name: String,
    once: u64,
    twice: u64,
}

impl Count {
    fn ratio(&self) -> f64 {
        self.twice as f64 / self.once as f64
    }

    fn allowed(&self) -> f64 {
        if self.name.contains(BOUND_MARK) { BOUNDED } else { LINEAR }
    }

    fn is_within(&self) -> bool {
        self.twice as f64 <= self.once as f64 * self.allowed() + SLACK as f64
    }
}

/// Counts the cases whose name contains a part.
fn count(part: &str) -> Vec<Count> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("linearity-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for the counts");
    let ran = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--collect-atstart=no"])
        .args(["--toggle-collect=linearity_measured", "--dump-after=linearity_measured"])
        .arg(format!("--callgrind-out-file={}", folder.join("counts").display()))
        .arg(env!("CARGO_BIN_EXE_linearity"))
        .arg(part)
        .output()
        .expect("valgrind runs");
    let names = String::from_utf8_lossy(&ran.stdout).into_owned();
    let totals = totals(&folder);
    fs::remove_dir_all(&folder).ok();
    assert!(ran.status.success(), "{names}{}", String::from_utf8_lossy(&ran.stderr));
    let names: Vec<&str> = names.lines().collect();
    assert_eq!(totals.len(), 2 * names.len(), "every case is counted twice");
    let pairs = names.iter().zip(totals.chunks_exact(2));
    pairs.map(|(&name, pair)| Count { name: name.to_owned(), once: pair[0], twice: pair[1] }).collect()
}

/// Whether a case exceeds its bound whenever it is counted.
fn always_exceeds(first: &Count) -> bool {
    let case = first.name.split(BOUND_MARK).next().expect("a name");
    (1..ATTEMPTS).all(|_| count(case).iter().any(|again| again.name == first.name && !again.is_within()))
}

#[test]
#[cfg_attr(debug_assertions, ignore = "assertions of dependencies are not linear: run it with --release")]
fn double_the_input_costs_at_most_2_2_times_the_instructions() {
    if !has_valgrind() {
        return not_run("linearity", "valgrind is not installed");
    }
    let counts = count(&std::env::var("LINEARITY_CASE").unwrap_or_default());
    assert!(!counts.is_empty(), "no case has such a name");
    let line = |count: &Count| {
        format!("{:.2}  {:>11} {:>11}  {}", count.ratio(), count.once, count.twice, count.name)
    };
    let table: Vec<String> = counts.iter().map(line).collect();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("linearity.txt");
    fs::write(&path, table.join("\n")).expect("the table can be written");
    eprintln!("{} cases, times and instructions: {}", counts.len(), path.display());
    let wrong: Vec<String> =
        counts.iter().filter(|count| !count.is_within() && always_exceeds(count)).map(line).collect();
    assert!(
        wrong.is_empty(),
        "more than {LINEAR} times, or {BOUNDED} where a bound ends the work:\n{}",
        wrong.join("\n")
    );
}
