//! A process of its own that edits until it is killed.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tollgate_stores::rules::{Edit, Precondition};
use tollgate_testkit::SOON;

use crate::rules_db::scenario::{author, open, rule};

const ADDRESS: &str = "TOLLGATE_TEST_RULES_DB";
const WRITER: &str = "TOLLGATE_TEST_WRITER";
/// What precedes the version of an edit that was acknowledged.
const MADE: &str = "made ";

/// Runs in the child: each edit is printed to stdout once it was acknowledged.
#[tokio::test]
#[ignore = "the other half of the test that kills it"]
async fn edits_until_it_is_killed() {
    let (Ok(address), Ok(writer)) = (std::env::var(ADDRESS), std::env::var(WRITER)) else { return };
    let db = open(&address).await;
    let start = Instant::now();
    // A test that fails does not kill it.
    for n in (0..).take_while(|_| start.elapsed() < SOON) {
        let id = format!("{writer}-{n}");
        let edits = vec![
            Edit::rule(rule(&id, 1 + n), Precondition::Absent),
            Edit::rule(rule(&format!("{writer}-last"), 1 + n), Precondition::Any),
        ];
        match db.edit(author(&writer), edits).await {
            Ok(_) => say(&id),
            Err(error) if error.is_transient() => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Prints that an edit was acknowledged.
pub fn say(id: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "\n{MADE}{id}").and_then(|()| out.flush()).expect("the parent reads");
}

/// Starts a writer; it ends when killed.
pub fn start(address: &str, writer: &str) -> Child {
    let variables = [(ADDRESS, OsStr::new(address)), (WRITER, OsStr::new(writer))];
    run(concat!(module_path!(), "::edits_until_it_is_killed"), &variables)
}

/// Runs one ignored test, named by its full path, in a process of its own.
pub fn run(test: &str, variables: &[(&str, &OsStr)]) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this test has a file"));
    let (_, test) = test.split_once("::").expect("a path from the crate down");
    command.args(["--ignored", "--exact", test, "--nocapture"]).envs(variables.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts")
}

/// Kills a writer after `count` of its edits; the ids of all that were acknowledged.
pub fn kill_after(mut child: Child, count: usize) -> Vec<String> {
    let mut made = Vec::new();
    for line in BufReader::new(child.stdout.take().expect("it is piped")).lines() {
        let line = line.expect("lines are text");
        made.extend(line.strip_prefix(MADE).map(str::to_owned));
        if made.len() == count {
            child.kill().ok(); // SIGKILL; the pipe still holds what was printed before
        }
    }
    child.wait().ok();
    assert!(made.len() >= count, "{} of {count} edits before the end", made.len());
    made
}
