//! Many at once on one key: never above the limit, hardly below it, and no update is lost.

use std::collections::HashSet;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tollgate::limit::Limit;
use tollgate::{Shape, Time};

use crate::hits::{hit, limit, own, ready};
use crate::servers::redis::{Make, Redis};

const FOR: Duration = Duration::from_secs(10);
const ORDER: &str = "TOLLGATE_HAMMER";
const RATE: u64 = 20;
const BURST: u64 = 20;

fn twenty() -> Limit {
    limit("20/s", Shape::Gcra { burst: Some(BURST) })
}

#[test]
fn two_four_and_eight_processes_share_one_limit() {
    let Some(server) = Redis::start(Make::Redis, "processes on one key of Redis") else { return };
    let crowds: Vec<_> = [2, 4, 8].map(|crowd| (crowd, start(&server.url(), crowd))).into();
    for (crowd, processes) in crowds {
        let mut times: Vec<u64> = processes.into_iter().flat_map(admissions).collect();
        times.sort_unstable();
        check(crowd, &times);
    }
}

/// Starts processes that hammer the key of their crowd; none begins before all are ready.
fn start(url: &str, crowd: usize) -> Vec<Child> {
    let this = env::current_exe().expect("the test knows itself");
    let mut processes: Vec<_> = (0..crowd)
        .map(|_| {
            let mut command = Command::new(&this);
            command.args(["--exact", "hammer::one_of_the_processes", "--nocapture"]);
            command.env(ORDER, format!("{url} user:{crowd}")).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().expect("the test starts itself")
        })
        .collect();
    for process in &mut processes {
        process.stdin.take().expect("it listens").write_all(b"go\n").expect("it listens");
    }
    processes
}

/// When a process was let through, in microseconds of the server.
fn admissions(mut process: Child) -> Vec<u64> {
    let lines = BufReader::new(process.stdout.take().expect("it talks")).lines();
    let times =
        lines.map_while(Result::ok).filter_map(|line| line.strip_prefix("admitted ")?.parse().ok()).collect();
    assert!(process.wait().is_ok_and(|status| status.success()));
    times
}

/// I1, in every interval between two admissions; and 99 % of what the limit allows.
fn check(crowd: usize, times: &[u64]) {
    for (n, first) in times.iter().enumerate() {
        for (count, last) in times[n..].iter().enumerate() {
            let allowed = BURST + RATE * (last - first) / 1_000_000;
            assert!(
                count < allowed as usize + 1,
                "{crowd} processes: {} within {} us",
                count + 1,
                last - first
            );
        }
    }
    let span = times.last().expect("some pass") - times[0];
    let allowed = BURST + RATE * span / 1_000_000;
    assert!(span >= 9_500_000, "{crowd} processes: only {span} us");
    assert!(times.len() as u64 * 100 >= allowed * 99, "{crowd} processes: {} of {allowed}", times.len());
}

/// Not a test of its own: what the processes of the one above run.
#[tokio::test]
async fn one_of_the_processes() {
    let Ok(order) = env::var(ORDER) else { return };
    let (url, key) = order.split_once(' ').expect("an address and a key");
    let store = ready(url).await;
    let charge = own("hammer", key, twenty());
    std::io::stdin().read_line(&mut String::new()).expect("the order to begin");
    let start = Instant::now();
    let hammer = async || {
        while start.elapsed() < FOR {
            let part = hit(&store, &charge).await.expect("it answers");
            if let Some(grant) = part.grant {
                println!("admitted {}", grant.at.nanos() / 1000);
            }
        }
    };
    tokio::join!(hammer(), hammer(), hammer(), hammer());
}

/// A lost update would let two decisions start from one state.
#[tokio::test(flavor = "multi_thread")]
async fn no_state_is_used_twice() {
    let Some(server) = Redis::start(Make::Redis, "the chain of states on Redis") else { return };
    // It does not fill up again meanwhile: a full bucket is forgotten, and then begins from nothing once more.
    let charge = own("chain", "user:1", limit("60/m", Shape::Gcra { burst: Some(3000) }));
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (store, charge) = (ready(&server.url()).await, charge.clone());
        tasks.push(tokio::spawn(async move {
            let mut told = Vec::new();
            while told.len() < 1000 {
                told.push(store.charge_and_tell(&charge).await.expect("it answers"));
            }
            told
        }));
    }
    let mut told = Vec::new();
    for task in tasks {
        told.extend(task.await.expect("it ends"));
    }
    told.sort_by_key(|(_, transition)| transition.at);
    let (mut used, mut left) = (HashSet::new(), HashSet::from([String::new()]));
    let mut last = Time::EPOCH;
    for (part, transition) in &told {
        assert!(transition.at >= last, "the server's time goes forward");
        last = transition.at;
        if part.decision.is_allowed() {
            assert_ne!(transition.before, transition.after);
            assert!(used.insert(&transition.before), "{} was charged twice", transition.before);
            assert!(left.insert(transition.after.clone()), "{} was left twice", transition.after);
        } else {
            assert_eq!(transition.before, transition.after, "a denial changes nothing");
        }
    }
    let unknown = told.iter().find(|(_, transition)| !left.contains(&transition.before));
    assert_eq!(unknown.map(|(_, transition)| transition), None, "a state that nobody has left");
    assert!(used.len() >= 3000, "{} were let through", used.len());
}
