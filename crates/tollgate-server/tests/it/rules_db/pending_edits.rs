//! The panic switch and bans that are set while the database is down: on disk before they are answered, in force again
//! after a crash of the node, and written once when the database is back.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};
use tollgate_testkit::servers::postgres::Postgres;
use tollgate_testkit::{Folder, Server, eventually, tollgate};

use crate::rules_db::local_copy::{health, seeded, with_copy};

const FILE: &str = "tollgate-pending-edits.ndjson";

/// An edit that the database cannot take now.
fn pending(node: &Server, method: &str, path: &str, body: &Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = node.admin(method, path, body);
    assert_eq!(answer.status, 202, "{method} {path}: {answer}");
    let why = answer.json()["pending"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("also after a restart"), "{why}");
}

/// The changes by hand, the newest first: what and which.
fn audit(node: &Server) -> Vec<(String, String)> {
    let entries = node.admin("GET", "/v1/audit", "").json();
    let entries = entries["changes"].as_array().expect("a list").clone();
    let text = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    let by_hand = entries.iter().filter(|entry| entry["who"] == "local");
    by_hand.map(|entry| (text(entry, "what"), text(entry, "name"))).collect()
}

fn saved(folder: &Folder) -> String {
    std::fs::read_to_string(folder.path(FILE)).expect("a file of pending edits")
}

fn is_banned(node: &Server, user: &str) -> bool {
    node.admin("GET", "/v1/bans", "").text().contains(&format!("user:{user}"))
}

#[test]
fn edits_without_the_database_survive_a_crash_and_are_written_once() {
    let Some(mut primary) = Postgres::start("pending edits and a crash") else { return };
    let _editor = seeded(&primary.url());
    let (folder, node) = with_copy(&primary.url());
    primary.stop();
    eventually("the node has noticed", || health(&node)["rules_db"]["trouble"].is_string());
    pending(&node, "POST", "/v1/bans", &json!({ "key": "user:new", "for": "1h", "reason": "attack" }));
    pending(&node, "DELETE", "/v1/bans/user:evil", &Value::Null);
    pending(&node, "PUT", "/v1/enforce", &json!({ "enforce": "off" }));
    pending(&node, "PUT", "/v1/enforce", &json!({ "enforce": "shadow" }));
    node.kill();
    assert_eq!(saved(&folder).lines().count(), 4);

    let check = |node: &Server| {
        let report = health(node);
        assert_eq!((&report["enforce"], &report["rules_db"]["pending_edits"]), (&json!("shadow"), &json!(4)));
        assert!(is_banned(node, "new") && !is_banned(node, "evil"), "also the lift of a ban of the copy");
    };
    let node = Server::start_in(&folder);
    check(&node);
    let status = tollgate(&["status", "--admin", &format!("http://{}", node.admin)]).stdout;
    assert!(
        status.contains("pending     4 edits in force here, not written to the database yet"),
        "{status}"
    );
    let metrics = node.admin("GET", "/metrics", "").text();
    assert!(metrics.contains("tollgate_rules_db_pending_edits 4\n"), "{metrics}");
    pending(&node, "PUT", "/v1/enforce", &json!({ "enforce": "shadow" }));
    node.kill();
    let torn = saved(&folder);
    folder.write(FILE, &torn[..torn.len() - 9]);
    let node = Server::start_in(&folder);
    check(&node);

    primary.restart();
    eventually("all edits are written", || health(&node)["rules_db"]["pending_edits"] == 0);
    eventually("the file is removed", || !folder.path(FILE).exists());
    let written = audit(&node);
    let names: Vec<_> = written.iter().map(|(what, name)| (what.as_str(), name.as_str())).collect();
    let expected =
        [("setting", "enforce"), ("setting", "enforce"), ("ban", "user:evil"), ("ban", "user:new")];
    assert_eq!(names, expected, "the newest first, each once");
    eventually("the rules are those of the database", || health(&node)["rules_db"]["source"] == "database");
    assert_eq!(health(&node)["enforce"], "shadow");
    assert!(is_banned(&node, "new") && !is_banned(&node, "evil"));
    let on = node.admin("PUT", "/v1/enforce", json!({ "enforce": "on" }).to_string());
    assert_eq!((on.status, node.check(&json!({ "user": "new" })).status), (200, 403), "{on}");
}

/// A crash between the commit and the removal of the file: the edit is in the database, and another one followed it.
#[test]
fn an_edit_that_is_in_the_database_already_is_not_written_again() {
    let Some(mut primary) = Postgres::start("an edit that was committed") else { return };
    let _editor = seeded(&primary.url());
    let (folder, node) = with_copy(&primary.url());
    primary.stop();
    eventually("the node has noticed", || health(&node)["rules_db"]["trouble"].is_string());
    pending(&node, "PUT", "/v1/enforce", &json!({ "enforce": "off" }));
    let before = saved(&folder);
    primary.restart();
    eventually("it is written", || health(&node)["rules_db"]["pending_edits"] == 0);
    eventually("edits are taken", || {
        node.admin("PUT", "/v1/enforce", json!({ "enforce": "on" }).to_string()).status == 200
    });
    node.kill();
    folder.write(FILE, before);
    std::fs::set_permissions(folder.path(FILE), Permissions::from_mode(0o600)).expect("it is ours");
    let node = Server::start_in(&folder);
    eventually("the edit was looked up", || health(&node)["rules_db"]["pending_edits"] == 0);
    eventually("the file is removed", || !folder.path(FILE).exists());
    assert_eq!(audit(&node).len(), 2, "no third change");
    eventually("the later edit is in force", || {
        node.admin("GET", "/v1/enforce", "").json()["enforce"] == "on"
    });
}

#[test]
fn an_edit_is_taken_even_if_it_cannot_be_saved() {
    let Some(mut primary) = Postgres::start("pending edits and a full disk") else { return };
    let _editor = seeded(&primary.url());
    let (folder, node) = with_copy(&primary.url());
    primary.stop();
    eventually("the node has noticed", || health(&node)["rules_db"]["trouble"].is_string());
    // A folder in place of the file: it cannot be opened for writing, whoever runs the test.
    std::fs::create_dir(folder.path(FILE)).expect("a folder");
    let answer = node.admin("PUT", "/v1/enforce", json!({ "enforce": "off" }).to_string());
    assert_eq!((answer.status, health(&node)["enforce"].as_str()), (202, Some("off")));
    let why = answer.json()["pending"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("a restart forgets it"), "{why}");
}
