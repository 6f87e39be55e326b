//! Nodes on a real PostgreSQL primary and a real streaming standby.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate_stores::rules::DbError;
use tollgate_testkit::servers::postgres::Postgres;
use tollgate_testkit::{Folder, Server, Waits, eventually};

use crate::rules_db::editor::{Editor, agree, in_force, rule};

pub fn nodes(address: &str, count: usize) -> Vec<Server> {
    (0..count).map(|_| Server::start(&format!("rules_db: {address}\nrules: []"))).collect()
}

pub fn pair(what: &str) -> Option<(Postgres, Postgres, String)> {
    let primary = Postgres::start(what)?;
    let standby = primary.standby();
    let address = format!("{}?replica={}", primary.url(), standby.host());
    Some((primary, standby, address))
}

#[test]
fn a_change_is_in_force_on_three_nodes_that_read_a_standby_within_a_second() {
    let Some((_primary, _standby, address)) = pair("nodes that read a standby") else { return };
    let editor = Editor::open(&address, "".as_ref());
    let nodes = nodes(&address, 3);
    let mut waits = Waits::default();
    for limit in ["5/d", "6/d", "7/d"] {
        editor.put("a", &format!("limit: {limit}"));
        waits.until(limit, || {
            nodes.iter().all(|node| in_force(node).get("a").is_some_and(|held| held == limit))
        });
    }
    waits.are_within_a_second();
    eventually("the lag is shown", || {
        let metrics = nodes[0].admin("GET", "/metrics", "").text();
        metrics.contains("tollgate_rules_db_lag_changes 0\n") && metrics.contains("tollgate_rules_db_up 1\n")
    });
}

/// Edits until it is stopped. What was acknowledged is returned; an edit with an unknown outcome is made
/// again with the same contents, so that it ends as acknowledged.
fn edit_on(editor: &Editor, edits: usize, each: impl Fn(usize)) -> BTreeMap<String, String> {
    let mut acknowledged = BTreeMap::new();
    for n in 0..edits {
        each(n);
        let id = format!("r{}", n % 97);
        let limit = format!("{}/d", n + 1);
        let edit = || vec![rule(&id, &format!("match: /{id}, limit: {limit}"))];
        eventually("the database is back", || match editor.try_edit(edit()) {
            Ok(_) => true,
            Err(
                error @ (DbError::Unwritable { .. }
                | DbError::OutcomeUnknown { .. }
                | DbError::Unreadable { .. }),
            ) => {
                assert!(error.is_transient());
                false
            }
            Err(error) => panic!("{error}"),
        });
        acknowledged.insert(id, limit);
    }
    acknowledged
}

#[test]
fn nodes_primary_and_standby_killed_at_random_lose_no_acknowledged_edit() {
    let Some((mut primary, mut standby, address)) = pair("kills during a thousand edits") else { return };
    let editor = Editor::open(&address, "".as_ref());
    let folder = Folder::new();
    folder.configure(&format!("rules_db: {address}\nrules: []"));
    let steady = nodes(&address, 2);
    let done = Arc::new(AtomicBool::new(false));
    let acknowledged = std::thread::scope(|scope| {
        scope.spawn({
            let done = Arc::clone(&done);
            let folder = Arc::clone(&folder);
            let primary = &mut primary;
            let standby = &mut standby;
            move || {
                let mut random = fastrand::Rng::with_seed(3);
                let mut node = Server::start_in(&folder);
                for round in 0.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(random.u64(100..600)));
                    match round % 3 {
                        0 => {
                            node.kill();
                            node = Server::start_in(&folder);
                        }
                        1 => {
                            primary.kill();
                            primary.restart();
                        }
                        _ => {
                            standby.kill();
                            standby.restart();
                        }
                    }
                }
            }
        });
        let acknowledged = edit_on(&editor, 1_000, |_| {});
        done.store(true, Ordering::Relaxed);
        acknowledged
    });
    assert_eq!(editor.rules(), acknowledged);
    let fresh = Server::start_in(&folder);
    agree(&steady, &acknowledged);
    agree(&[fresh], &acknowledged);
}

#[test]
fn a_promoted_standby_has_every_acknowledged_edit_where_replication_is_synchronous() {
    let Some((mut primary, standby, address)) = pair("promotion with synchronous replication") else {
        return;
    };
    primary.restart_with(&["synchronous_standby_names=*"]);
    let editor = Editor::open(&address, "".as_ref());
    let nodes = nodes(&address, 3);
    let mut acknowledged = BTreeMap::new();
    let promoted = AtomicBool::new(false);
    let primary = std::sync::Mutex::new(primary);
    acknowledged.extend(edit_on(&editor, 400, |n| {
        if n == 200 && !promoted.swap(true, Ordering::Relaxed) {
            primary.lock().expect("one thread").kill();
            standby.promote();
        }
    }));
    assert!(promoted.into_inner());
    assert_eq!(editor.rules(), acknowledged);
    agree(&nodes, &acknowledged);
}
