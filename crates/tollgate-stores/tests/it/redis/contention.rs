//! Concurrent charges of one key: never above the limit, hardly below it, and no update is lost.

use std::collections::HashSet;
use std::thread;

use tollgate::Time;
use tollgate::internal::Shape;
use tollgate_testkit::central::{SHAPES, contention, limit, own};
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::stores::redis::{patient, ready};

/// The body of each child process.
const PROCESS: &str = concat!(module_path!(), "::one_of_the_processes");

/// All three groups of processes at the same time, each on its own key.
#[test]
fn two_four_and_eight_processes_share_one_limit() {
    let Some(server) = Redis::start(Make::Redis, "processes on one key of Redis") else { return };
    thread::scope(|scope| {
        for processes in [2, 4, 8] {
            let url = server.url();
            scope.spawn(move || contention::check_share(PROCESS, &url, processes, 99));
        }
    });
}

#[tokio::test]
#[ignore = "a process of the test above"]
async fn one_of_the_processes() {
    contention::run_child(patient).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_never_both_get_the_last_token() {
    let Some(server) = Redis::start(Make::Redis, "the last token on Redis") else { return };
    let nodes = [ready(&server.url()).await, ready(&server.url()).await];
    for shape in SHAPES {
        assert_eq!(contention::race(&nodes, shape).await, 20, "{shape:?}");
    }
}

/// A lost update would let two decisions start from one state.
#[tokio::test(flavor = "multi_thread")]
async fn no_state_is_used_twice() {
    let Some(server) = Redis::start(Make::Redis, "the chain of states on Redis") else { return };
    // It does not fill up again meanwhile: a full bucket is forgotten, and then begins from nothing once more.
    let charge = own("chain", "user:1", limit("60/m", Shape::Gcra { burst: Some(3000) }));
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let store = ready(&server.url()).await;
        let charge = charge.clone();
        tasks.push(tokio::spawn(async move {
            let mut charged = Vec::new();
            while charged.len() < 1000 {
                charged.push(store.charge_with_states(&charge).await.expect("it answers"));
            }
            charged
        }));
    }
    let mut charged = Vec::new();
    for task in tasks {
        charged.extend(task.await.expect("it ends"));
    }
    charged.sort_by_key(|(_, transition)| transition.at);
    let mut used = HashSet::new();
    let mut left = HashSet::from([String::new()]);
    let mut last = Time::EPOCH;
    for (part, transition) in &charged {
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
    let unknown = charged.iter().find(|(_, transition)| !left.contains(&transition.before));
    assert_eq!(unknown.map(|(_, transition)| transition), None, "a state that no charge has left");
    assert!(used.len() >= 3000, "{} were let through", used.len());
}
