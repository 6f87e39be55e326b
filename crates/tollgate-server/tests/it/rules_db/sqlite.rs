//! One file that nodes of one machine share.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use tollgate_testkit::{Folder, Server, Waits, binary, eventually, tollgate};

use crate::rules_db::editor::{Editor, agree, deletion, in_force, rule};

const FILE_RULES: &str = "rules: [{ id: of-file, match: /file, key: user, limit: 3/d }]\n";

fn node(folder: &Arc<Folder>, name: &str, rest: &str) -> Server {
    let listen = "listen: { http: 127.0.0.1:0, admin: 127.0.0.1:0 }\nrules_db: sqlite:shared.db\n";
    std::fs::create_dir_all(folder.path(name)).expect("a folder for its state");
    let file = folder.write(&format!("{name}.yaml"), format!("{listen}state_dir: {name}\n{rest}"));
    Server::start_at(folder, &file)
}

fn editor(folder: &Folder) -> Editor {
    Editor::open("sqlite:shared.db", &folder.path(""))
}

fn limit_of(server: &Server, id: &str) -> Option<String> {
    in_force(server).remove(id)
}

fn left(server: &Server, user: &str, path: &str) -> i64 {
    let answer = server.check(&json!({ "user": user, "path": path, "peek": true })).json();
    answer["remaining"].as_i64().unwrap_or(-1)
}

#[test]
fn a_change_is_in_force_on_three_nodes_within_a_second_and_keeps_what_was_used() {
    let folder = Folder::new();
    let nodes = ["a", "b", "c"].map(|name| node(&folder, name, FILE_RULES));
    let editor = editor(&folder);
    let mut waits = Waits::default();
    editor.put("search", "match: /search, limit: 5/d");
    waits.until("the new rule", || {
        nodes.iter().all(|node| limit_of(node, "search").as_deref() == Some("5/d"))
    });
    for node in &nodes {
        for _ in 0..4 {
            assert_eq!(node.check(&json!({ "user": "ann", "path": "/search" })).status, 200);
        }
    }
    editor.put("search", "match: /search, limit: 50/d");
    waits.until("the edit", || nodes.iter().all(|node| limit_of(node, "search").as_deref() == Some("50/d")));
    assert!(nodes.iter().all(|node| left(node, "ann", "/search") == 46), "four of fifty are used");
    editor.edit(vec![deletion("search")]);
    waits.until("the deletion", || nodes.iter().all(|node| limit_of(node, "search").is_none()));
    waits.are_within_a_second();
    assert!(nodes.iter().all(|node| limit_of(node, "of-file").as_deref() == Some("3/d")));
}

#[test]
fn ten_thousand_changes_in_batches_lose_none() {
    let folder = Folder::new();
    let nodes = ["a", "b", "c"].map(|name| node(&folder, name, "rules: []"));
    let editor = editor(&folder);
    let mut expected = BTreeMap::new();
    let mut random = fastrand::Rng::with_seed(7);
    let mut made = 0;
    while made < 10_000 {
        let mut edits = BTreeMap::new();
        for _ in 0..random.usize(1..=100) {
            let id = format!("r{}", random.u32(0..500));
            let limit = format!("{}/d", random.u32(1..1_000_000));
            let known = expected.contains_key(&id) && !edits.contains_key(&id);
            if known && random.u8(0..4) == 0 {
                edits.insert(id.clone(), deletion(&id));
                expected.remove(&id);
            } else if !edits.contains_key(&id) {
                edits.insert(id.clone(), rule(&id, &format!("match: /{id}, limit: {limit}")));
                expected.insert(id, limit);
            }
        }
        made += editor.edit(edits.into_values().collect()).len();
    }
    agree(&nodes, &expected);
    assert_eq!(editor.rules(), expected);
}

#[test]
fn a_killed_node_restores_everything() {
    let folder = Folder::new();
    let editor = editor(&folder);
    let mut one = node(&folder, "a", "rules: []");
    let mut random = fastrand::Rng::with_seed(11);
    for n in 0..300 {
        let limit = format!("match: /r{}, limit: {}/d", n % 40, n + 1);
        editor.put(&format!("r{}", n % 40), &limit);
        if random.u8(0..30) == 0 {
            one.kill();
            one = node(&folder, "a", "rules: []");
        }
    }
    agree(&[one], &editor.rules());
}

#[test]
fn a_limit_that_changed_while_a_node_was_down_keeps_what_was_used() {
    let folder = Folder::new();
    let editor = editor(&folder);
    editor.put("search", "match: /search, limit: 5/d");
    let one = node(&folder, "a", "rules: []");
    for _ in 0..4 {
        assert_eq!(one.check(&json!({ "user": "ann", "path": "/search" })).status, 200);
    }
    assert!(one.stop().0.success());
    editor.put("search", "match: /search, limit: 50/d");
    editor.put("search", "match: /search, limit: 20/d");
    let one = node(&folder, "a", "rules: []");
    assert_eq!(left(&one, "ann", "/search"), 16, "four of twenty are used");
}

#[test]
fn an_id_used_in_the_file_cannot_be_used_in_the_database() {
    let folder = Folder::new();
    let editor = editor(&folder);
    editor.put("of-file", "match: /other, limit: 9/d");
    editor.put("theirs", "match: /theirs, limit: 9/d");
    let one = node(&folder, "a", FILE_RULES);
    assert_eq!(limit_of(&one, "of-file").as_deref(), Some("3/d"));
    let health = one.admin("GET", "/healthz", "").json();
    assert_eq!(health["status"], "impaired");
    let why = health["rules_db"]["left_out"][0]["why"].as_str().expect("why").to_owned();
    assert!(why.contains("configuration file") && why.contains("of-file"), "{why}");
    // A file that wants an id of the database is not taken.
    let listen =
        "listen: { http: 127.0.0.1:0, admin: 127.0.0.1:0 }\nrules_db: sqlite:shared.db\nstate_dir: a\n";
    let clash = "rules: [{ id: theirs, match: /x, limit: 1/d }]\n";
    folder.write("a.yaml", format!("{listen}{clash}"));
    one.wait_for_log("rule id 'theirs' is also used by a rule in the rules database");
    assert_eq!(limit_of(&one, "of-file").as_deref(), Some("3/d"));
    // Once the file lets go of an id, the database's rule comes into force.
    folder.write("a.yaml", format!("{listen}rules: []\n"));
    eventually("the rule of the database", || limit_of(&one, "of-file").as_deref() == Some("9/d"));
    assert_eq!(one.admin("GET", "/healthz", "").json()["status"], "ok");
}

#[test]
fn a_rule_of_the_database_that_the_file_hides_can_be_deleted() {
    let folder = Folder::new();
    let editor = editor(&folder);
    editor.put("of-file", "match: /other, limit: 9/d");
    let one = node(&folder, "a", FILE_RULES);
    assert_eq!(one.admin("GET", "/healthz", "").json()["status"], "impaired");
    let deleted = one.admin("DELETE", "/v1/rules/of-file", "");
    assert_eq!(deleted.status, 200, "{deleted}");
    let deleted = deleted.json();
    assert_eq!(
        (&deleted["removed"]["match"], &deleted["still_in_force"]),
        (&json!("/other"), &json!("file"))
    );
    assert_eq!(limit_of(&one, "of-file").as_deref(), Some("3/d"), "the rule of the file");
    eventually("nothing is left out", || one.admin("GET", "/healthz", "").json()["status"] == "ok");
    assert_eq!(one.admin("DELETE", "/v1/rules/of-file", "").status, 409, "it is only in the file now");
}

#[test]
fn rules_rm_says_that_the_rule_of_the_file_stays() {
    let folder = Folder::new();
    let editor = editor(&folder);
    editor.put("of-file", "match: /other, limit: 9/d");
    let one = node(&folder, "a", FILE_RULES);
    let admin = format!("http://{}", one.admin);
    let remove = || tollgate(&["rules", "rm", "of-file", "--admin", &admin]);
    let removed = remove();
    assert_eq!((removed.code, &*removed.stderr), (Some(0), ""), "{removed:?}");
    assert!(removed.stdout.starts_with("- of-file\n"), "{removed:?}");
    let last = removed.stdout.lines().last();
    assert_eq!(last, Some("rule of-file of the configuration file stays in force"), "{removed:?}");
    assert_eq!(limit_of(&one, "of-file").as_deref(), Some("3/d"));
    let again = remove();
    assert_eq!((again.code, &*again.stdout), (Some(1), ""), "{again:?}");
    assert!(again.stderr.contains("in the configuration file: change it there"), "{again:?}");
}

#[test]
fn too_many_rules_on_one_path_leave_out_the_last_one_only() {
    let folder = Folder::new();
    let editor = editor(&folder);
    let rules = |count: usize| (0..count).map(|n| rule(&format!("r{n:02}"), "match: /one, limit: 9/d"));
    let one = node(&folder, "a", "rules: []");
    editor.edit(rules(66).chain([rule("zz", "match: /two, limit: 8/d")]).collect());
    eventually("the rest", || limit_of(&one, "zz").is_some());
    assert_eq!(in_force(&one).len(), 65, "64 on one path, and the other one");
    assert_eq!(
        one.admin("GET", "/healthz", "").json()["rules_db"]["left_out"].as_array().map(Vec::len),
        Some(2)
    );
    drop(one);
    assert_eq!(in_force(&node(&folder, "a", "rules: []")).len(), 65, "the same at a start");
}

#[test]
fn ten_nodes_that_start_at_once_do_not_fight_over_the_schema() {
    let folder = Folder::new();
    let nodes: Vec<_> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..10)
            .map(|n| {
                scope.spawn({
                    let folder = Arc::clone(&folder);
                    move || node(&folder, &format!("n{n}"), "rules: []")
                })
            })
            .collect();
        starts.into_iter().map(|start| start.join().expect("it starts")).collect()
    });
    editor(&folder).put("a", "limit: 5/d");
    agree(&nodes, &[("a".to_owned(), "5/d".to_owned())].into());
}

#[test]
fn by_default_the_database_is_beside_the_state_and_none_disables_it() {
    let server = Server::start("rules: []");
    assert!(server.folder.path("tollgate.db").is_file());
    let server = Server::start("rules: []\nrules_db: none");
    assert!(!server.folder.path("tollgate.db").exists());
    let health = server.admin("GET", "/healthz", "").json();
    assert_eq!((&health["status"], health.get("rules_db")), (&json!("ok"), None));
}

/// A caller of the admin API could otherwise read the server's environment.
#[test]
fn rules_of_the_admin_api_and_of_the_database_do_not_read_the_environment() {
    const SECRET: &str = "secret-of-the-environment";
    let folder = Folder::new();
    let denies =
        |id: &str| format!("{{ id: {id}, match: /{id}, limit: 0/m, deny: {{ message: '{id} ${{WORD}}' }} }}");
    let config = folder.configure(&format!("rules: [{}]\n", denies("file")));
    let start = || {
        let mut command = binary();
        command.env("WORD", SECRET).env("LIMIT", "5/m").args(["serve", "-c"]).arg(&config);
        Server::run(&folder, &mut command)
    };
    let check = |server: &Server, id: &str| {
        let denied = server.check(&json!({ "path": format!("/{id}") }));
        assert_eq!(denied.status, 429, "{id}: {denied}");
        denied.json()["message"].as_str().expect("a message").to_owned()
    };
    let server = start();
    let rule = json!({ "id": "api", "match": "/api", "limit": "0/m", "deny": { "message": "api ${WORD}" } });
    assert_eq!(server.admin("POST", "/v1/rules", rule.to_string()).status, 201);
    let list = format!("- {}\n", denies("imported"));
    assert_eq!(server.admin("POST", "/v1/rules/import", list).status, 200);
    let limit = json!({ "id": "b", "limit": "${LIMIT}" }).to_string();
    let refused = server.admin("POST", "/v1/rules", limit);
    assert!(refused.status == 400 && refused.text().contains("${LIMIT}"), "{refused}");
    let expected = ["file", "api", "imported"].map(|id| match id {
        "file" => format!("file {SECRET}"),
        id => format!("{id} ${{WORD}}"),
    });
    assert_eq!(["file", "api", "imported"].map(|id| check(&server, id)), expected);
    server.stop();
    let server = start();
    assert_eq!(["file", "api", "imported"].map(|id| check(&server, id)), expected, "read from the database");
    for path in ["/v1/rules", "/v1/rules/export", "/v1/audit"] {
        let shown = server.admin("GET", path, "").text();
        assert!(shown.contains("api ${WORD}"), "{path}: {shown}");
    }
}
