//! Several processes that hammer one key.

#![allow(clippy::print_stdout)] // that is how they report their results

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tollgate::internal::Shape;

use super::{Store, hit, left, limit, now, own};
use crate::SOON;

const FOR: Duration = Duration::from_secs(10);
const ORDER: &str = "TOLLGATE_CONTENTION";
const RATE: u64 = 20;
const BURST: u64 = 20;
/// Attempts to reach the share.
const TIMES: u32 = 3;

/// Lets processes that run the ignored test `one` (its full path) hammer a key, and checks what they say: in every
/// interval no more than the limit, and at least 90 % of it.
pub fn check(one: &str, url: &str, processes: usize) {
    check_share(one, url, processes, 90);
}

/// The same with another share of the limit, in per cent. A run on a stalled machine is repeated;
/// one admission too many always fails.
pub fn check_share(one: &str, url: &str, processes: usize, share: u64) {
    let due = allowed(FOR.as_nanos() as u64);
    for time in 1..=TIMES {
        let times = admissions(one, &format!("{url} user:{processes}-{time}"), processes);
        check_limit(processes, &times);
        let count = times.len() as u64;
        eprintln!("{processes} processes: {count} of {due}");
        if count * 100 >= due * share {
            return;
        }
    }
    panic!("{processes} processes: less than {share} % of {due}, {TIMES} times");
}

/// The times of all admissions, in nanoseconds.
fn admissions(one: &str, order: &str, processes: usize) -> Vec<u64> {
    let this = env::current_exe().expect("the test knows itself");
    let (_, one) = one.split_once("::").expect("a path from the crate down");
    let mut children: Vec<_> = (0..processes)
        .map(|_| {
            let mut command = Command::new(&this);
            command.args(["--ignored", "--exact", one, "--nocapture"]).env(ORDER, order);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the test starts itself")
        })
        .collect();
    // None begins before all are there.
    let mut said: Vec<_> = children.iter_mut().map(lines).collect();
    said.iter_mut().for_each(|lines| assert!(lines.any(|line| line == "ready")));
    for process in &mut children {
        process.stdin.take().expect("it listens").write_all(b"go\n").expect("it listens");
    }
    let admitted = said.into_iter().flatten().filter_map(|line| line.strip_prefix("admitted ")?.parse().ok());
    let mut times: Vec<u64> = admitted.collect();
    children.iter_mut().for_each(|process| assert!(process.wait().is_ok_and(|status| status.success())));
    times.sort_unstable();
    times
}

/// What the limit allows within a duration.
fn allowed(span_ns: u64) -> u64 {
    BURST + (u128::from(RATE * span_ns) / 1_000_000_000) as u64
}

fn lines(process: &mut Child) -> impl Iterator<Item = String> + use<> {
    BufReader::new(process.stdout.take().expect("it talks")).lines().map_while(Result::ok)
}

/// I1, in every interval between two admissions.
fn check_limit(processes: usize, times: &[u64]) {
    for (n, first) in times.iter().enumerate() {
        for (before, last) in times[n..].iter().enumerate() {
            let count = before as u64 + 1;
            let span = last - first;
            assert!(count <= allowed(span), "{processes} processes: {count} within {span} ns");
        }
    }
}

/// The body of a child process: charges the key of its order until the time is over. Returns at once in a process that
/// is not such a child.
pub async fn run_child<S: Store>(open: impl FnOnce(&str) -> S) {
    let Ok(order) = env::var(ORDER) else { return };
    let (url, user) = order.split_once(' ').expect("an address and a key");
    hammer(open(url), user).await;
}

/// Sixty callers of two nodes at the same time for a limit of twenty: how many pass. What was denied is refunded
/// in the end.
pub async fn race(nodes: &[impl Store; 2], shape: Shape) -> u64 {
    let charge = own("race", "user:1", limit("20/d", shape));
    let at = now();
    let tasks = (0..60).map(|n| {
        let node = nodes[n % 2].clone();
        let charge = charge.clone();
        tokio::spawn(async move { node.charge(&[charge], at).await })
    });
    let mut passed = 0;
    for tasks in tasks.collect::<Vec<_>>() {
        let outcome = tasks.await.expect("it ends");
        assert!(outcome.limits[0].outcome().is_some(), "{:?}", outcome.limits[0]);
        passed += u64::from(outcome.admitted);
    }
    let start = Instant::now();
    while passed + left(&nodes[0], &charge).await != 20 {
        assert!(start.elapsed() < SOON, "what was denied is given back, {shape:?}");
    }
    passed
}

/// A charge without an answer counts as denied.
async fn hammer(store: impl Store, user: &str) {
    let charge = own("contention", user, limit("20/s", Shape::Gcra { burst: Some(BURST) }));
    let warm = own("warm", user, limit("1000000/s", Shape::GCRA));
    while hit(&store, &warm).await.is_err() {
        tokio::task::yield_now().await;
    }
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).expect("the order to begin");
    let start = Instant::now();
    let hammer = async || {
        let mut errors = 0;
        let mut last = String::new();
        while start.elapsed() < FOR {
            match hit(&store, &charge).await {
                Ok(part) => part.grant.iter().for_each(|grant| println!("admitted {}", grant.at.nanos())),
                Err(error) => (errors, last) = (errors + 1, error.to_string()),
            }
        }
        if errors > 0 {
            eprintln!("{errors} without an answer, such as: {last}");
        }
    };
    tokio::join!(hammer(), hammer(), hammer(), hammer());
}
