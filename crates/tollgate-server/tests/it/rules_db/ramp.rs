//! Guarded apply: the ramp runs in the servers, and its state is in the database.

use std::process::Stdio;
use std::sync::Arc;

use serde_json::{Value, json};
use tollgate_testkit::servers::postgres::Postgres;
use tollgate_testkit::{Answer, Folder, Server, binary, eventually, tollgate};

const NEW: &str = "- { id: new, match: /new, key: user, limit: 1/d }\n";

/// Two nodes on one database.
struct Fleet {
    nodes: Vec<Server>,
    _folder: Arc<Folder>,
}

impl Fleet {
    fn start(address: &str) -> Fleet {
        let folder = Folder::new();
        let nodes = ["a", "b"].map(|name| node(&folder, name, address));
        Fleet { nodes: nodes.into(), _folder: folder }
    }
}

fn node(folder: &Arc<Folder>, name: &str, address: &str) -> Server {
    let listen =
        format!("listen: {{ http: 127.0.0.1:0, admin: 127.0.0.1:0 }}\nrules_db: {address}\nrules: []\n");
    std::fs::create_dir_all(folder.path(name)).expect("a folder for its state");
    let file = folder.write(&format!("{name}.yaml"), format!("{listen}state_dir: {name}\n"));
    Server::start_at(folder, &file)
}

const SHARED: &str = "sqlite:shared.db";

fn apply(node: &Server, guard: &str, duration: &str, rules: &str) -> Answer {
    node.admin("POST", &format!("/v1/rules/import?guard={guard}&for={duration}"), rules)
}

fn started(node: &Server, guard: &str, duration: &str, rules: &str) -> Value {
    let answer = apply(node, guard, duration, rules);
    assert_eq!(answer.status, 200, "{answer}");
    let ramp = answer.json()["ramp"].clone();
    assert_eq!((&ramp["state"], &ramp["percent"]), (&json!("running"), &json!(1)));
    ramp
}

fn ramp(node: &Server) -> Value {
    node.admin("GET", "/v1/ramp", "").json()["ramp"].clone()
}

fn status_of(node: &Server, path: &str, user: &str) -> u16 {
    node.check(&json!({ "path": path, "user": user })).status
}

fn written(node: &Server, id: &str) -> Option<Value> {
    let answer = node.admin("GET", &format!("/v1/rules/{id}?as=written"), "");
    (answer.status == 200).then(|| answer.json()["rule"].clone())
}

fn audit(node: &Server, query: &str) -> Vec<Value> {
    let answer = node.admin("GET", &format!("/v1/audit?{query}"), "").json();
    answer["changes"].as_array().expect("changes").clone()
}

/// Users whose first request is admitted and whose second one is denied are in the share that is enforced.
fn limited(node: &Server, path: &str, users: std::ops::Range<usize>) -> usize {
    let is_limited = |n: &usize| {
        let user = format!("{path}-{n}");
        status_of(node, path, &user);
        status_of(node, path, &user) == 429
    };
    users.filter(is_limited).count()
}

/// Denials on one node, in shadow for all but one per cent, end a ramp that another node runs.
fn a_violated_guard_reverts_the_apply(address: &str) {
    let fleet = Fleet::start(address);
    let [owner, other] = &fleet.nodes[..] else { panic!("two nodes") };
    let old = "- { id: old, match: /old, key: user, limit: 3/d }\n- { id: gone, match: /gone, key: user, limit: 1/d }\n";
    assert_eq!(owner.admin("POST", "/v1/rules/import", old).status, 200);
    let changed = format!("{NEW}- {{ id: old, match: /old, key: user, limit: 2/d }}\n");
    let answer = owner.admin("POST", "/v1/rules/import?mode=replace&guard=denied%3C1%25&for=1h", changed);
    assert_eq!(answer.status, 200, "{answer}");
    let change = answer.json()["ramp"]["change"].as_str().expect("a version").to_owned();
    assert_eq!(answer.json()["version"], *change);
    let again = apply(owner, "denied%3C1%25", "1h", "- { id: third, match: /3, key: user, limit: 1/d }");
    assert_eq!(again.status, 409, "{again}");
    assert!(again.text().contains("rules ramp stop"), "{again}");

    eventually("the other node has the ramp", || {
        ramp(other)["state"] == "running" && written(other, "new").is_some()
    });
    let statuses = |path: &str| -> Vec<u16> { (0..5).map(|_| status_of(other, path, "ann")).collect() };
    eventually("the deleted rule stays in force", || status_of(other, "/gone", "ann") == 429);
    let old = statuses("/old");
    assert!(old.ends_with(&[429, 429]) && old[0] == 200, "the old limit stays in force: {old:?}");
    let few = limited(other, "/new", 0..100);
    assert!(few < 20, "about one per cent is limited, not {few}");
    eventually("the guard is violated", || ramp(owner)["state"] == "rolled back");
    for node in &fleet.nodes {
        eventually("the apply is reverted", || {
            written(node, "new").is_none() && written(node, "gone").is_some_and(|rule| rule["limit"] == "1/d")
        });
        assert_eq!(written(node, "old").expect("the old rule")["limit"], "3/d");
        assert_eq!(limited(node, "/new", 500..520), 0);
    }
    let reason = ramp(other)["reason"].as_str().expect("a reason").to_owned();
    assert!(reason.contains("% denied (") && reason.contains("denied<1%"), "{reason}");
    let entry = &audit(other, "limit=1")[0];
    assert_eq!((&entry["who"], &entry["undoes"]), (&json!("guarded apply"), &json!(change)));
    assert_eq!(entry["note"], format!("ramp rolled back: {reason}"));
    assert_eq!((&entry["created"], &entry["changed"], &entry["deleted"]), (&json!(1), &json!(1), &json!(1)));
    let applied = &audit(other, "limit=2")[1];
    let counts =
        ["created", "changed", "deleted"].map(|name| (&applied[name], answer.json()[name] == applied[name]));
    assert!(
        counts.iter().all(|(_, same)| *same),
        "as the apply said, without the setting of the ramp: {applied}"
    );
}

#[test]
fn a_violated_guard_reverts_the_apply_on_sqlite() {
    a_violated_guard_reverts_the_apply(SHARED);
}

#[test]
fn a_violated_guard_reverts_the_apply_on_postgres() {
    let Some(server) = Postgres::start("a ramp that is rolled back") else { return };
    a_violated_guard_reverts_the_apply(&server.url());
}

fn a_ramp_survives_the_node_that_runs_it(address: &str) {
    let mut fleet = Fleet::start(address);
    let ramped = started(&fleet.nodes[0], "denied%3C90%25", "10s", NEW);
    fleet.nodes.remove(0).kill();
    let node = &fleet.nodes[0];
    node.wait_for_log("takes over the ramp");
    eventually("the ramp has ended", || ramp(node)["state"] == "finished");
    assert_eq!(ramp(node)["change"], ramped["change"]);
    eventually("the rule is enforced for all", || limited(node, "/new", 0..20) == 20);
    let steps = audit(node, "item=setting:ramp&limit=20");
    let percents: Vec<_> =
        steps.iter().rev().map(|step| step["after"]["percent"].as_u64().unwrap_or(0)).collect();
    assert_eq!(percents, [1, 5, 25, 50, 100, 0], "every step, and the end: {steps:?}");
    let note = steps[0]["note"].as_str().unwrap_or_default();
    assert!(
        note.starts_with("ramp finished: nothing was measured (0 decisions), so the guard denied<90%"),
        "{note}"
    );
}

#[test]
fn a_ramp_survives_the_node_that_runs_it_on_sqlite() {
    a_ramp_survives_the_node_that_runs_it(SHARED);
}

#[test]
fn a_ramp_survives_the_node_that_runs_it_on_postgres() {
    let Some(server) = Postgres::start("a ramp whose node is killed") else { return };
    a_ramp_survives_the_node_that_runs_it(&server.url());
}

/// The owner goes on where it was frozen, while the other node has taken over: each step is made once.
fn a_frozen_owner_does_not_repeat_the_steps_of_its_successor(address: &str) {
    let fleet = Fleet::start(address);
    let [owner, other] = &fleet.nodes[..] else { panic!("two nodes") };
    started(owner, "denied%3C90%25", "20s", NEW);
    eventually("the other node has the ramp", || ramp(other)["state"] == "running");
    owner.freeze();
    other.wait_for_log("takes over the ramp");
    owner.thaw();
    eventually("the ramp has ended", || ramp(other)["state"] == "finished");
    eventually("the former owner knows", || ramp(owner)["state"] == "finished");
    let steps = audit(other, "item=setting:ramp&limit=20");
    let percents: Vec<_> =
        steps.iter().rev().map(|step| step["after"]["percent"].as_u64().unwrap_or(0)).collect();
    assert_eq!(percents, [1, 5, 25, 50, 100, 0], "each step once, and one end: {steps:?}");
}

#[test]
fn a_frozen_owner_does_not_repeat_the_steps_of_its_successor_on_sqlite() {
    a_frozen_owner_does_not_repeat_the_steps_of_its_successor(SHARED);
}

#[test]
fn a_frozen_owner_does_not_repeat_the_steps_of_its_successor_on_postgres() {
    let Some(server) = Postgres::start("a ramp whose node is frozen") else { return };
    a_frozen_owner_does_not_repeat_the_steps_of_its_successor(&server.url());
}

#[test]
fn an_edit_ends_the_ramp_of_its_rule_and_a_stop_leaves_it_alone() {
    let fleet = Fleet::start(SHARED);
    let [one, other] = &fleet.nodes[..] else { panic!("two nodes") };
    let rules = format!("{NEW}- {{ id: edited, match: /edited, key: user, limit: 1/d }}\n");
    started(one, "denied%3C90%25,clients%3C1000", "1h", &rules);
    assert!(limited(one, "/edited", 0..50) < 20);
    let edit = json!({ "match": "/edited", "key": "user", "limit": "1/w" }).to_string();
    assert_eq!(other.admin("PUT", "/v1/rules/edited", edit).status, 200);
    for node in &fleet.nodes {
        eventually("the edit is in force for all", || limited(node, "/edited", 100..110) == 10);
        assert!(limited(node, "/new", 0..50) < 20, "the other rule is still ramped");
    }
    let refused =
        one.admin("POST", &format!("/v1/audit/{}/rollback", ramp(one)["change"].as_str().unwrap_or("")), "");
    assert_eq!(refused.status, 412, "an operator's rollback names the edited rule: {refused}");
    let stopped = other.admin("DELETE", "/v1/ramp", "");
    assert_eq!((stopped.status, &stopped.json()["ramp"]["state"]), (200, &json!("rolled back")), "{stopped}");
    eventually("the new rule is gone", || written(one, "new").is_none());
    assert_eq!(written(one, "edited").expect("the edited rule")["limit"], "1/w");
    assert_eq!(one.admin("DELETE", "/v1/ramp", "").status, 404);
}

#[test]
fn a_node_that_starts_during_a_ramp_enforces_the_same_share() {
    let folder = Folder::new();
    let first = node(&folder, "a", SHARED);
    assert_eq!(
        first.admin("POST", "/v1/rules/import", "- { id: old, match: /old, key: user, limit: 3/d }").status,
        200
    );
    let rules = format!("{NEW}- {{ id: old, match: /old, key: user, limit: 1/d }}\n");
    started(&first, "denied%3C99%25", "1h", &rules);
    let second = node(&folder, "b", SHARED);
    assert!(limited(&second, "/new", 0..50) < 20);
    let old: Vec<u16> = (0..5).map(|_| status_of(&second, "/old", "ann")).collect();
    assert!(old[0] == 200 && old.ends_with(&[429, 429]), "the old version is in force: {old:?}");
    let finished = second.admin("POST", "/v1/ramp/finish", "");
    assert_eq!((finished.status, &finished.json()["ramp"]["state"]), (200, &json!("finished")), "{finished}");
    for each in [&first, &second] {
        eventually("the new rules are enforced", || limited(each, "/new", 100..110) == 10);
        let statuses: Vec<u16> = (0..2).map(|_| status_of(each, "/old", "bob")).collect();
        assert_eq!(statuses, [200, 429], "the new version of the old rule");
    }
    let change = ramp(&first)["change"].as_str().expect("a version").to_owned();
    let reverted = first.admin("POST", &format!("/v1/audit/{change}/rollback"), "");
    assert_eq!(reverted.status, 200, "{reverted}");
    assert_eq!(written(&first, "old").expect("the old rule")["limit"], "3/d");
    assert_eq!(written(&first, "new"), None, "one rollback reverts the apply after its ramp, too");
}

#[test]
fn the_command_fails_when_its_ramp_is_rolled_back() {
    let folder = Folder::new();
    let server = node(&folder, "a", SHARED);
    let admin = format!("http://{}", server.admin);
    let file = folder.write("new.yaml", NEW).display().to_string();
    let apply = move || {
        tollgate(&["rules", "apply", &file, "--guard", "denied<1%", "--for", "1h", "--admin", &admin])
    };
    let command = std::thread::spawn(apply);
    eventually("the ramp is under way", || ramp(&server)["state"] == "running");
    eventually("the guard is violated", || {
        limited(&server, "/new", 0..20);
        ramp(&server)["state"] == "rolled back"
    });
    let ran = command.join().expect("it ends");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let last = ran.stdout.lines().last().unwrap_or_default();
    assert!(last.starts_with("rolled back: ") && last.contains("denied<1%"), "{ran:?}");
    assert_eq!(written(&server, "new"), None);
}

#[test]
fn a_ramp_goes_on_when_its_command_is_killed() {
    let folder = Folder::new();
    let server = node(&folder, "a", SHARED);
    let file = folder.write("new.yaml", NEW);
    let mut command = binary();
    command.args(["rules", "apply", file.to_str().expect("a plain path"), "--guard", "denied<90%"]);
    command.args(["--for", "5s", "--admin", &format!("http://{}", server.admin)]);
    let mut command =
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the command starts");
    eventually("the ramp is under way", || ramp(&server)["state"] == "running");
    command.kill().expect("it runs until the end of the ramp");
    command.wait().expect("it ends");
    eventually("the ramp has ended", || ramp(&server)["state"] == "finished");
    eventually("the rule is enforced for all", || limited(&server, "/new", 0..20) == 20);
}

#[test]
fn the_command_shows_the_ramp_until_its_end() {
    let folder = Folder::new();
    let server = node(&folder, "a", SHARED);
    let admin = format!("http://{}", server.admin);
    let file = folder.write("new.yaml", NEW);
    let file = file.to_str().expect("a plain path");
    let wrong = tollgate(&["rules", "apply", file, "--guard", "errors<1%", "--for", "5s", "--admin", &admin]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("'errors<1%' is not a valid guard"), "{wrong:?}");
    let short = tollgate(&["rules", "apply", file, "--guard", "denied<1%", "--for", "1s", "--admin", &admin]);
    assert_eq!(short.code, Some(1), "{short:?}");
    assert!(short.stderr.contains("5s to 7d"), "{short:?}");
    let ran = tollgate(&["rules", "apply", file, "--guard", "denied<1%", "--for", "5s", "--admin", &admin]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.stdout
            .starts_with("1 created, 0 changed, 0 deleted, 0 unchanged, version 0-2\n  + new\nrunning, 1 %"),
        "{ran:?}"
    );
    // No request was sent, and the report said "the guard held (0 of 0 decisions)".
    assert!(
        ran.stdout.contains("\nfinished: nothing was measured (0 decisions), so the guard denied<1%"),
        "{ran:?}"
    );
    assert!(!ran.stdout.contains("held"), "{ran:?}");
    assert!(ran.stderr.contains("goes on if this command ends"), "{ran:?}");
    let status = tollgate(&["rules", "ramp", "status", "--admin", &admin]);
    assert!(status.stdout.contains("  change 0-2 by local"), "{status:?}");
    let again = tollgate(&["rules", "apply", file, "--guard", "denied<1%", "--for", "5s", "--admin", &admin]);
    assert!(again.code == Some(0) && again.stderr.contains("nothing has changed"), "{again:?}");
}
