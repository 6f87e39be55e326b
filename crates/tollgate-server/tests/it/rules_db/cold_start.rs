//! Starts without the rules database: from the local copy, or as `on_rules_error` says.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use serde_json::json;
use tollgate_testkit::servers::postgres::Postgres;
use tollgate_testkit::{Client, Folder, Server, eventually, free_port};

use crate::rules_db::editor::{Editor, in_force};
use crate::rules_db::local_copy::{allowed, health, seeded, with_copy};

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn accepts(port: u16) -> bool {
    TcpStream::connect(loopback(port)).is_ok()
}

/// A node with fixed ports for decisions and the proxy; only its admin address is waited for.
fn waiting_node(folder: &Arc<Folder>, rest: &str) -> (Server, [u16; 2]) {
    let ports = [free_port(), free_port()];
    let [http, proxy] = ports;
    let listen =
        format!("listen: {{ http: 127.0.0.1:{http}, proxy: 127.0.0.1:{proxy}, admin: 127.0.0.1:0 }}\n");
    folder.write("tollgate.yaml", format!("{listen}upstreams: [http://127.0.0.1:1]\n{rest}\n"));
    (Server::start_admin_in(folder), ports)
}

#[test]
fn a_node_restarted_without_its_database_uses_its_copy_and_follows_when_it_is_back() {
    let Some(mut primary) = Postgres::start("a restart from the local copy") else { return };
    let editor = seeded(&primary.url());
    let (folder, node) = with_copy(&primary.url());
    primary.stop();
    node.kill();
    let node = Server::start_in(&folder);
    assert_eq!(allowed(&node, "ann"), 3, "the rule of the database");
    assert_eq!(allowed(&node, "ceo"), 5, "its override");
    assert_eq!(node.check(&json!({ "user": "evil" })).status, 403, "its ban");
    assert_eq!(allowed(&node, "good"), 6, "its allow list");
    let report = health(&node);
    assert_eq!(
        (&report["status"], &report["rules_db"]["source"], &report["rules_db"]["copy"]["version"]),
        (&json!("impaired"), &json!("copy"), &report["rules_db"]["version"]),
        "{report}"
    );
    assert!(report["rules_db"]["copy"]["age_seconds"].is_u64(), "{report}");
    assert_eq!(node.admin("GET", "/readyz", "").status, 200);
    let metrics = node.admin("GET", "/metrics", "").text();
    assert!(metrics.contains("tollgate_rules_source{source=\"copy\"} 1\n"), "{metrics}");
    assert!(metrics.contains("tollgate_rules_copy_age_seconds "), "{metrics}");
    node.wait_for_log("started from the local copy, version ");
    primary.restart();
    editor.put("b", "match: /b, limit: 1/d");
    eventually("the change is in force", || in_force(&node).len() == 2);
    eventually("all is well", || {
        let report = health(&node);
        report["status"] == "ok" && report["rules_db"]["source"] == "database"
    });
    assert!(!node.log().contains("the history of the rules database differs"), "{}", node.log());
    assert!(!node.log().contains("rules database: 1 read"), "only the changes are read");
    assert_eq!(allowed(&node, "ann"), 0, "what was used is used");
}

#[test]
fn a_database_that_hangs_is_not_waited_for_where_there_is_a_copy() {
    let Some(primary) = Postgres::start("a start while the database hangs") else { return };
    drop(seeded(&primary.url()));
    let (folder, node) = with_copy(&primary.url());
    node.kill();
    primary.signal("STOP");
    let node = Server::start_in(&folder);
    assert_eq!((allowed(&node, "ann"), &health(&node)["rules_db"]["source"]), (3, &json!("copy")));
    primary.signal("CONT");
    eventually("it follows the database", || health(&node)["rules_db"]["source"] == "database");
}

#[test]
fn a_limit_changed_before_the_outage_keeps_what_was_used() {
    let Some(mut primary) = Postgres::start("former limits in the local copy") else { return };
    let editor = Editor::open(&primary.url(), "".as_ref());
    editor.put("a", "limit: 5/d");
    let (folder, node) = with_copy(&primary.url());
    assert_eq!(allowed(&node, "ann"), 5);
    assert!(node.stop().0.success());
    editor.put("a", "limit: 8/d");
    // This start finds counters of the former limit; the next one is without the database.
    let node = Server::start_in(&folder);
    eventually("the copy has the change", || health(&node)["rules_db"]["copy"]["version"] == "1-2");
    node.kill();
    primary.stop();
    let node = Server::start_in(&folder);
    assert_eq!(allowed(&node, "ann"), 3, "five of eight were used");
}

#[test]
fn a_copy_with_a_different_history_is_replaced_by_the_database() {
    let Some((mut primary, mut standby, address)) = crate::rules_db::fleet::pair("a copy of another past")
    else {
        return;
    };
    let editor = seeded(&address);
    let (folder, node) = with_copy(&address);
    standby.stop();
    editor.put("lost", "match: /lost, limit: 1/d");
    eventually("the copy has it", || {
        let report = health(&node);
        in_force(&node).contains_key("lost")
            && report["rules_db"]["copy"]["version"] == report["rules_db"]["version"]
    });
    primary.stop();
    node.kill();
    let node = Server::start_in(&folder);
    assert!(in_force(&node).contains_key("lost"), "the copy has it");
    standby.restart();
    standby.promote();
    editor.put("b", "match: /b, limit: 1/d");
    eventually("it is as the database says", || in_force(&node).into_keys().eq(["a", "b"]));
    eventually("so is the copy", || {
        let report = health(&node);
        report["status"] == "ok" && report["rules_db"]["copy"]["version"] == report["rules_db"]["version"]
    });
    node.kill();
    standby.stop();
    assert!(in_force(&Server::start_in(&folder)).into_keys().eq(["a", "b"]));
}

#[test]
fn a_copy_of_another_database_is_not_used() {
    let Some(mut primary) = Postgres::start("a copy of another database") else { return };
    drop(seeded(&primary.url()));
    let (folder, node) = with_copy(&primary.url());
    node.kill();
    primary.stop();
    let elsewhere = primary.url().replace("/postgres", "/other");
    let (node, [http, _]) = waiting_node(&folder, &format!("rules_db: {elsewhere}"));
    node.wait_for_log("the local copy belongs to another database, ");
    assert_eq!((node.admin("GET", "/readyz", "").status, accepts(http)), (503, false));
}

#[test]
fn a_damaged_copy_is_renamed_and_nothing_of_it_is_applied() {
    let Some(mut primary) = Postgres::start("a damaged local copy") else { return };
    drop(seeded(&primary.url()));
    let (folder, node) = with_copy(&primary.url());
    node.kill();
    primary.stop();
    let path = folder.path(crate::rules_db::local_copy::FILE);
    let mut bytes = std::fs::read(&path).expect("the copy");
    let limit = b"\"limit\":\"3/d\"";
    let at = bytes.windows(limit.len()).position(|window| window == limit).expect("the rule is in the file");
    bytes[at + limit.len() - 4] = b'9';
    std::fs::write(&path, bytes).expect("the test may damage it");
    // It has the bans, too, and is not damaged.
    std::fs::remove_file(folder.path("tollgate.snapshot")).expect("the state that was saved");
    let (node, [http, proxy]) = waiting_node(&folder, &format!("rules_db: {}", primary.url()));
    node.wait_for_log("the local copy is damaged");
    assert_eq!(node.admin("GET", "/readyz", "").status, 503);
    assert_eq!((accepts(http), accepts(proxy)), (false, false));
    assert_eq!(health(&node)["rules_db"]["source"], "none");
    assert!(in_force(&node).is_empty() && node.admin("GET", "/v1/bans", "").text().contains("\"bans\":[]"));
    assert!(path.with_extension("db.damaged").is_file() && !path.exists());
    primary.restart();
    eventually("it is ready", || node.admin("GET", "/readyz", "").status == 200);
    eventually("there is a copy again", || path.is_file());
}

#[test]
fn without_a_copy_the_listeners_are_closed_until_the_rules_are_there() {
    let Some(mut primary) = Postgres::start("a start without database and copy") else { return };
    drop(seeded(&primary.url()));
    primary.stop();
    let folder = Folder::new();
    let rest = format!("rules_db: {}\nrules: [{{ id: f, match: /f, key: user, limit: 2/d }}]", primary.url());
    let (node, [http, proxy]) = waiting_node(&folder, &rest);
    node.wait_for_log("on_rules_error: closed");
    let ready = node.admin("GET", "/readyz", "");
    assert_eq!(ready.status, 503);
    let reason = ready.json()["reason"].as_str().expect("a reason").to_owned();
    assert!(reason.contains("on_rules_error: closed") && reason.contains("rules database"), "{reason}");
    assert_eq!((accepts(http), accepts(proxy)), (false, false));
    let report = health(&node);
    assert_eq!((&report["status"], &report["rules_db"]["source"]), (&json!("impaired"), &json!("none")));
    assert!(node.admin("GET", "/metrics", "").text().contains("tollgate_rules_source{source=\"none\"} 1\n"));
    primary.restart();
    eventually("it is ready", || node.admin("GET", "/readyz", "").status == 200);
    assert!(accepts(http) && accepts(proxy), "by then the listeners accept");
    let check = |user: &str| {
        let body = json!({ "user": user }).to_string();
        Client::to(loopback(http)).request("POST", "/v1/check", &[], body.as_bytes()).status
    };
    assert_eq!([check("evil"), check("ann")], [403, 200]);
    assert!(node.stop().0.success());
}

#[test]
fn a_stop_while_it_waits_for_the_rules_is_clean() {
    let folder = Folder::new();
    let (node, _) = waiting_node(&folder, "rules_db: postgres://postgres@127.0.0.1:1/postgres");
    node.wait_for_log("on_rules_error: closed");
    assert!(node.stop().0.success());
}

#[test]
fn without_a_copy_open_lets_everything_but_the_files_rules_pass_and_says_so() {
    let Some(mut primary) = Postgres::start("an open start without the database") else { return };
    let editor = Editor::open(&primary.url(), "".as_ref());
    editor.put("a", "match: /a, limit: 0/d");
    primary.stop();
    let file = "on_rules_error: open\nrules: [{ id: f, match: /f, key: user, limit: 2/d }]";
    let node = Server::start(&format!("rules_db: {}\n{file}", primary.url()));
    let send = |path: &str| {
        (0..4).filter(|_| node.check(&json!({ "user": "ann", "path": path })).status == 200).count()
    };
    assert_eq!((send("/a"), send("/f")), (4, 2), "the file's rules are known");
    let report = health(&node);
    assert_eq!(
        (&report["status"], &report["protection"], &report["rules_db"]["source"]),
        (&json!("impaired"), &json!("partial"), &json!("none"))
    );
    assert_eq!(report["protection_cause"], "no_rules_loaded");
    node.wait_for_log("on_rules_error: open");
    let ready = node.admin("GET", "/readyz", "");
    assert_eq!((ready.status, &ready.json()["rules_from"]), (200, &json!("none")), "{ready}");
    assert!(node.admin("GET", "/metrics", "").text().contains("tollgate_rules_source{source=\"none\"} 1\n"));
    primary.restart();
    eventually("the rules come", || in_force(&node).len() == 2);
    eventually("it is said", || health(&node)["rules_db"]["source"] == "database");
    assert_eq!(send("/a"), 0);
}

#[test]
fn an_sqlite_file_that_cannot_be_read_keeps_the_listeners_closed() {
    let folder = Folder::new();
    let damaged = "this is not a database, but it is long enough to be looked at";
    let file = folder.write_private("rules.db", damaged);
    let (node, [http, _]) = waiting_node(&folder, "rules_db: sqlite:rules.db");
    node.wait_for_log("on_rules_error: closed");
    assert_eq!((node.admin("GET", "/readyz", "").status, accepts(http)), (503, false));
    std::fs::remove_file(file).expect("it is removed");
    eventually("it is ready", || node.admin("GET", "/readyz", "").status == 200);
    assert!(accepts(http));
}

#[test]
fn an_unreadable_default_file_is_not_skipped() {
    let folder = Folder::new();
    folder.write_private("tollgate.db", "this is not a database, but it is long enough to be looked at");
    let (node, [http, _]) = waiting_node(&folder, "rules: []");
    node.wait_for_log("on_rules_error: closed");
    assert_eq!((node.admin("GET", "/readyz", "").status, accepts(http)), (503, false));
}
