//! Tests that did not run.

use std::fs::OpenOptions;
use std::io::Write;

/// Reports tests that did not run, and why, on stderr and to `scripts/test` in its file.
pub fn not_run(what: &str, why: &str) {
    eprintln!("\n!!! NOT RUN: {what}: {why}\n");
    if let Some(path) = std::env::var_os("TOLLGATE_NOT_RUN") {
        let mut file =
            OpenOptions::new().create(true).append(true).open(path).expect("the list can be written");
        writeln!(file, "{what}: {why}").expect("the list can be written");
    }
}
