//! The database out of reach: the last good rules stay in force, and it is said.

use serde_json::json;

use crate::editor::{Editor, in_force};
use crate::fleet::{nodes, pair};
use crate::harness::{Server, eventually};
use crate::servers::postgres::Postgres;

fn allowed(node: &Server, user: &str) -> usize {
    (0..6).filter(|_| node.check(&json!({ "user": user })).status == 200).count()
}

#[test]
fn the_last_good_rules_stay_in_force_while_servers_stop_start_and_change_roles() {
    let Some((mut primary, mut standby, address)) = pair("outages of primary and standby") else { return };
    let editor = Editor::open(&address, "".as_ref());
    editor.put("a", "limit: 3/d");
    let nodes = nodes(&address, 1);
    let node = &nodes[0];
    assert_eq!(allowed(node, "before"), 3);
    standby.stop();
    assert_eq!(allowed(node, "without standby"), 3);
    editor.put("b", "match: /b, limit: 1/d");
    eventually("changes come from the primary", || in_force(node).len() == 2);
    primary.stop();
    eventually("the trouble is told", || {
        let health = node.admin("GET", "/healthz", "").json();
        health["status"] == "impaired" && health["rules_db"]["trouble"].is_string()
    });
    assert!(node.admin("GET", "/metrics", "").text().contains("tollgate_rules_db_up 0\n"));
    assert_eq!((allowed(node, "without both"), in_force(node).len()), (3, 2));
    standby.restart();
    eventually("a standby can be read", || node.admin("GET", "/healthz", "").json()["status"] == "ok");
    standby.promote();
    eventually("the promoted one can be written", || {
        editor.try_edit(vec![crate::editor::rule("c", "match: /c, limit: 1/d")]).is_ok()
    });
    // What the standby had not got before the primary was lost is lost with it; the nodes agree with the database.
    eventually("its changes are in force", || in_force(node).into_keys().eq(["a", "c"]));
    assert!(editor.rules().into_keys().eq(["a", "c"]));
}

#[test]
fn a_node_that_starts_without_its_database_serves_the_files_rules_and_is_not_ready() {
    let Some(mut primary) = Postgres::start("a start without the database") else { return };
    let editor = Editor::open(&primary.url(), "".as_ref());
    editor.put("a", "match: /a, limit: 3/d");
    primary.stop();
    let config = format!("rules_db: {}\nrules: [{{ id: f, key: user, limit: 2/d }}]", primary.url());
    let node = Server::start(&config);
    assert_eq!(allowed(&node, "ann"), 2);
    assert_eq!(node.admin("GET", "/readyz", "").status, 503);
    primary.restart();
    eventually("the rules come", || in_force(&node).len() == 2);
    eventually("it is ready", || node.admin("GET", "/readyz", "").status == 200);
}
