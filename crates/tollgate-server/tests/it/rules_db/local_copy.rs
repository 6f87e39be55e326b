//! The copy of the database that each node keeps on its own disk.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::internal::ban::{Ban, BanSource};
use tollgate::internal::identity::Key;
use tollgate_stores::rules::{Edit, Precondition};
use tollgate_testkit::servers::postgres::Postgres;
use tollgate_testkit::{Folder, Server, binary, eventually};

use crate::rules_db::editor::{Editor, in_force, now, rule};

pub const FILE: &str = "tollgate-rules-copy.db";

/// A database with a rule, an override, a ban and an allowed key.
pub fn seeded(address: &str) -> Editor {
    let editor = Editor::open(address, "".as_ref());
    let key = |text: &str| Key::parse(text).expect("a valid key");
    let until = now() + Duration::from_secs(3_600);
    let ban = Ban { until, reason: "test".into(), source: BanSource::Manual, strikes: 0 };
    editor.edit(vec![
        rule("a", "limit: 3/d, overrides: [{ user: ceo, limits: [5/d] }]"),
        Edit::ban(&key("user:evil"), &ban, Precondition::Any),
        Edit::allow(&key("user:good"), "a friend", Precondition::Any),
    ]);
    editor
}

pub fn health(node: &Server) -> Value {
    node.admin("GET", "/healthz", "").json()
}

pub fn allowed(node: &Server, user: &str) -> usize {
    (0..6).filter(|_| node.check(&json!({ "user": user })).status == 200).count()
}

/// A node that follows the database, once its copy is up to date.
pub fn with_copy(address: &str) -> (Arc<Folder>, Server) {
    let folder = Folder::new();
    folder.configure(&format!("rules_db: {address}\nrules: []"));
    let node = Server::start_in(&folder);
    copied(&node);
    (folder, node)
}

/// Waits until the copy has what is in force.
fn copied(node: &Server) {
    eventually("the copy is up to date", || {
        let report = health(node);
        let copy = &report["rules_db"]["copy"];
        let version = &report["rules_db"]["version"];
        version.is_string() && &copy["version"] == version && copy["trouble"].is_null()
    });
}

/// Bytes that a process has handed to the system to write.
fn written(id: u32) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{id}/io")).expect("a process has counts");
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: ")).expect("wchar is there");
    line.parse().expect("a number")
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |file| file.len())
}

#[test]
fn one_edit_among_many_rules_writes_little_to_a_file_that_only_its_owner_may_read() {
    const RULES: usize = 20_000;
    let Some(primary) = Postgres::start("an edit among many rules") else { return };
    let editor = Editor::open(&primary.url(), "".as_ref());
    let rules = (0..RULES).map(|n| rule(&format!("r{n}"), &format!("match: /p{n}, limit: {}/d", n + 1)));
    editor.edit(rules.collect());
    let (folder, node) = with_copy(&primary.url());
    let path = folder.path(FILE);
    let mode = std::fs::metadata(&path).expect("the copy is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(length(&path) > 2_000_000, "{}", length(&path));
    let before = written(node.id());
    editor.put("r777", "match: /p777, limit: 9/d");
    eventually("it is in force", || health(&node)["rules_db"]["version"] == format!("1-{}", RULES + 1));
    copied(&node);
    let after = written(node.id()) - before;
    assert!(after < 200_000, "{after} bytes for one edit");
}

#[test]
fn bans_that_come_and_go_are_in_the_copy_as_in_the_database() {
    let Some(mut primary) = Postgres::start("bans in the local copy") else { return };
    let editor = seeded(&primary.url());
    let (folder, node) = with_copy(&primary.url());
    assert_eq!(node.admin("POST", "/v1/bans", r#"{"key":"user:worse","for":"1h"}"#).status, 201);
    assert_eq!(node.admin("DELETE", "/v1/bans/user:evil", "").status / 100, 2);
    assert_eq!(node.admin("PUT", "/v1/enforce", r#"{"enforce":"shadow"}"#).status, 200);
    copied(&node);
    primary.stop();
    node.kill();
    let node = Server::start_in(&folder);
    assert_eq!(health(&node)["enforce"], "shadow");
    let bans = node.admin("GET", "/v1/bans", "").text();
    assert!(bans.contains("user:worse") && !bans.contains("user:evil"), "{bans}");
    drop(editor);
}

#[test]
fn a_copy_that_cannot_be_written_is_a_health_problem_and_no_outage() {
    let Some(primary) = Postgres::start("a copy that cannot be written") else { return };
    let editor = seeded(&primary.url());
    let folder = Folder::new();
    let config = folder.configure(&format!("rules_db: {}\nrules: []", primary.url()));
    // No file may grow beyond a few kilobytes; the signal that comes with it is ignored.
    let mut command = Command::new("sh");
    let limited = "trap '' XFSZ; ulimit -S -f 8; exec \"$0\" serve -c \"$1\"";
    command.args(["-c", limited]).arg(binary().get_program()).arg(&config);
    let node = Server::run(&folder, &mut command);
    eventually("the trouble is reported", || health(&node)["rules_db"]["copy"]["trouble"].is_string());
    assert_eq!(health(&node)["status"], "impaired");
    assert!(node.admin("GET", "/metrics", "").text().contains("tollgate_rules_copy_up 0\n"));
    assert_eq!((allowed(&node, "ann"), node.admin("GET", "/readyz", "").status), (3, 200));
    editor.put("b", "match: /b, limit: 1/d");
    eventually("changes are in force", || in_force(&node).len() == 2);
    let more = Command::new("prlimit").args(["--fsize=unlimited:", "--pid", &node.id().to_string()]).status();
    assert!(more.is_ok_and(|more| more.success()), "prlimit runs");
    copied(&node);
    eventually("all is well", || health(&node)["status"] == "ok");
}

#[test]
fn without_a_primary_a_standby_is_read_and_health_says_that_edits_are_not_possible() {
    let Some((mut primary, _standby, address)) = crate::rules_db::fleet::pair("a standby alone") else {
        return;
    };
    drop(seeded(&address));
    let (_folder, node) = with_copy(&address);
    assert_eq!(health(&node)["rules_db"]["writable"], true);
    primary.stop();
    // The first reason may be that of the connection that the stop has ended.
    eventually("health says that edits are not possible", || {
        let rules_db = &health(&node)["rules_db"];
        let why = rules_db["write_trouble"].as_str().unwrap_or_default();
        rules_db["writable"] == false && why.contains("edits are not possible")
    });
    let report = health(&node);
    assert_eq!((&report["status"], &report["rules_db"]["source"]), (&json!("impaired"), &json!("database")));
    eventually("the standby is read", || health(&node)["rules_db"]["trouble"].is_null());
    let refused = node.admin("POST", "/v1/rules", r#"{"id":"b","limit":"5/m"}"#);
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("edits are not possible"), "{refused}");
    assert_eq!(node.admin("GET", "/readyz", "").status, 200);
    assert!(node.admin("GET", "/metrics", "").text().contains("tollgate_rules_db_writable 0\n"));
    primary.restart();
    eventually("edits are possible", || {
        node.admin("POST", "/v1/rules", r#"{"id":"b","limit":"5/m"}"#).status == 201
    });
    eventually("all is well", || health(&node)["status"] == "ok");
}
