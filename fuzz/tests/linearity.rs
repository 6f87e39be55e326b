//! Twice the input costs at most 2.2 times the instructions, for every case; where a bound ends the work, no more than before.
//! Needs valgrind.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use tollgate_fuzz::linearity::BOUND_MARK;
use tollgate_testkit::not_run;

/// What doubling the input may cost at most.
const LINEAR: f64 = 2.2;
/// What it may cost where a bound ends the work.
const BOUNDED: f64 = 1.2;

/// The instructions of each call of `linearity_measured`, in order.
fn counted(folder: &Path) -> Vec<u64> {
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

#[test]
#[cfg_attr(debug_assertions, ignore = "assertions of dependencies are not linear: run it with --release")]
fn double_the_input_costs_at_most_2_2_times_the_instructions() {
    if !has_valgrind() {
        return not_run("linearity", "valgrind is not installed");
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("linearity-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for the counts");
    let ran = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--collect-atstart=no"])
        .args(["--toggle-collect=linearity_measured", "--dump-after=linearity_measured"])
        .arg(format!("--callgrind-out-file={}", folder.join("counts").display()))
        .arg(env!("CARGO_BIN_EXE_linearity"))
        .args(std::env::var("LINEARITY_CASE"))
        .output()
        .expect("valgrind runs");
    let names = String::from_utf8_lossy(&ran.stdout).into_owned();
    let totals = counted(&folder);
    fs::remove_dir_all(&folder).ok();
    assert!(ran.status.success(), "{names}{}", String::from_utf8_lossy(&ran.stderr));
    let names: Vec<&str> = names.lines().collect();
    assert_eq!(totals.len(), 2 * names.len(), "every case is counted twice");
    let mut wrong = Vec::new();
    for (name, pair) in names.iter().zip(totals.chunks_exact(2)) {
        let ratio = pair[1] as f64 / pair[0] as f64;
        eprintln!("{ratio:.2}  {:>11} {:>11}  {name}", pair[0], pair[1]);
        let expected = if name.contains(BOUND_MARK) { 0.0..=BOUNDED } else { 0.0..=LINEAR };
        if !expected.contains(&ratio) {
            wrong.push(format!("{name}: {ratio:.2} times, not {expected:?}"));
        }
    }
    assert!(!names.is_empty() && wrong.is_empty(), "not as expected:\n{}", wrong.join("\n"));
}
