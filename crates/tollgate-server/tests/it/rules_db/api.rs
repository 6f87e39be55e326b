//! The admin API of nodes on a real PostgreSQL primary, reading a real standby.

use serde_json::{Value, json};
use tollgate_testkit::servers::postgres::Postgres;
use tollgate_testkit::{Answer, Client, Server, eventually};

use crate::rules_db::fleet::{nodes, pair};

fn send(node: &Server, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    Client::to(node.admin).request(method, path, headers, body.as_bytes())
}

fn rule(id: &str, limit: &str) -> Value {
    json!({ "id": id, "match": format!("/{id}"), "key": "user", "limit": limit })
}

#[test]
fn edits_of_two_nodes_are_seen_by_both_and_none_is_lost() {
    let Some((_primary, _standby, address)) = pair("the API on a primary and a standby") else { return };
    let nodes = nodes(&address, 2);
    let one = &nodes[0];
    let two = &nodes[1];
    let created = send(one, "POST", "/v1/rules", &[], &rule("a", "1/d"));
    assert_eq!(created.status, 201, "{created}");
    let tag = created.header("etag").expect("an ETag").to_owned();
    assert_eq!(tag, "\"1-1\"", "the timeline of the server");
    eventually("the other node has it", || send(two, "GET", "/v1/rules/a", &[], &Value::Null).status == 200);
    let seen = [("if-match", tag.as_str())];
    assert_eq!(send(two, "PUT", "/v1/rules/a", &seen, &rule("a", "2/d")).status, 200);
    let late = send(one, "PUT", "/v1/rules/a", &seen, &rule("a", "3/d"));
    assert_eq!((late.status, &late.json()["version"]), (412, &json!("1-2")), "{late}");
    assert_eq!(send(two, "POST", "/v1/rules", &[], &rule("a", "3/d")).status, 409);

    std::thread::scope(|scope| {
        for (n, node) in [one, two, one, two].into_iter().enumerate() {
            scope.spawn(move || {
                let body = json!({ "rule": "a", "key": format!("user:u{n}"), "limits": ["9/d"] });
                let added = send(node, "POST", "/v1/overrides", &[], &body);
                assert_eq!(added.status, 201, "{added}");
            });
        }
    });
    eventually("all overrides are there", || {
        let listed = send(one, "GET", "/v1/overrides?rule=a", &[], &Value::Null).json();
        listed["overrides"].as_array().map(Vec::len) == Some(4)
    });
    assert_eq!(send(one, "PUT", "/v1/enforce", &[], &json!({ "enforce": "shadow" })).status, 200);
    assert_eq!(send(one, "POST", "/v1/allow", &[], &json!({ "key": "user:good" })).status, 201);
    eventually("the switch is turned on the other node", || {
        send(two, "GET", "/healthz", &[], &Value::Null).json()["enforce"] == "shadow"
    });
    let log = send(one, "GET", "/v1/audit?item=setting:enforce", &[], &Value::Null).json();
    let version = log["changes"][0]["version"].as_str().expect("a version").to_owned();
    assert_eq!(send(one, "POST", &format!("/v1/audit/{version}/rollback"), &[], &Value::Null).status, 200);
    eventually("it is back", || send(two, "GET", "/healthz", &[], &Value::Null).json()["enforce"] == "on");
}

#[test]
fn a_nul_character_that_postgresql_cannot_store_is_a_client_error() {
    let Some(primary) = Postgres::start("NUL characters") else { return };
    let nodes = nodes(&primary.url(), 1);
    let node = &nodes[0];
    let nul = json!({ "id": "b", "uid": "a\0b", "url": "/b", "time": "day", "requests": 5 });
    for (method, path, body) in [
        ("POST", "/v1/allow", json!({ "key": "user:a", "note": "a\0b" })),
        ("POST", "/v1/allow", json!({ "key": "user:a\0b", "note": "a\0b" })),
        ("POST", "/v1/rules", nul.clone()),
        ("POST", "/v1/rules/import", json!({ "rules": [nul] })),
        ("GET", "/v1/rules?uid=a%00b", Value::Null),
        ("GET", "/v1/rules/a%00b", Value::Null),
        ("GET", "/v1/audit?item=ban:user:a%00b", Value::Null),
    ] {
        let answer = send(node, method, path, &[], &body);
        assert!((200..500).contains(&answer.status), "{method} {path}: {answer}");
    }
    let note = send(node, "POST", "/v1/allow", &[], &json!({ "key": "user:a", "note": "a\0b" }));
    assert_eq!(note.status, 400, "{note}");
    assert_eq!(send(node, "POST", "/v1/allow", &[], &json!({ "key": "user:a" })).status, 201, "it goes on");
}

#[test]
fn an_import_is_paged_exported_and_replaced() {
    let Some((_primary, _standby, address)) = pair("imports on a primary and a standby") else { return };
    let nodes = nodes(&address, 1);
    let node = &nodes[0];
    let lines = |count: usize| -> String {
        (0..count).map(|n| format!("- {{ id: r{n:05}, match: /a/{n}, key: user, limit: 5/m }}\n")).collect()
    };
    let import = |query: &str, text: &str| node.admin("POST", &format!("/v1/rules/import{query}"), text);
    let bad = import("", &(lines(3_000) + "- { id: bad, limit: five }\n"));
    assert_eq!((bad.status, &bad.json()["problems"][0]["line"]), (400, &json!(3_001)), "{bad}");
    assert_eq!(node.admin("GET", "/v1/rules/export", "").text(), "rules: []\n");
    assert_eq!(import("", &lines(3_000)).json()["created"], 3_000);
    eventually("all are in force", || node.admin("GET", "/v1/rules?limit=1", "").json()["total"] == 3_000);
    let page = node.admin("GET", "/v1/rules?limit=2&after=database:r01499&prefix=r01", "").json();
    assert_eq!((&page["rules"][0]["id"], &page["next"]), (&json!("r01500"), &json!("database:r01501")));
    assert_eq!(page["rules"][0]["version"], "1-1501");
    assert_eq!(node.admin("GET", "/v1/rules/export", "").text().lines().count(), 3_001);
    let would = import("?mode=replace&dry_run=true", &lines(10)).json();
    assert_eq!((&would["deleted"], &would["unchanged"]), (&json!(2_990), &json!(10)), "{would}");
    assert_eq!(import("?mode=replace", &lines(10)).json()["deleted"], 2_990);
    eventually("they are gone", || node.admin("GET", "/v1/rules?limit=1", "").json()["total"] == 10);
}

#[test]
fn without_a_primary_edits_are_refused_and_what_is_in_force_is_shown() {
    let Some((mut primary, mut standby, address)) = pair("the API without a primary") else { return };
    let nodes = nodes(&address, 1);
    let node = &nodes[0];
    assert_eq!(send(node, "POST", "/v1/rules", &[], &rule("a", "1/d")).status, 201);
    primary.stop();
    let refused = |method: &str, path: &str, body: &Value| {
        let refused = send(node, method, path, &[], body);
        assert_eq!(refused.status, 503, "{method} {path}: {refused}");
        refused.text()
    };
    let reply = refused("POST", "/v1/rules", &rule("b", "1/d"));
    assert!(reply.contains("nothing was changed"), "{reply}");
    let shown = send(node, "GET", "/v1/rules/a", &[], &Value::Null);
    assert_eq!((shown.status, &shown.json()["version"]), (200, &json!("1-1")), "a standby can be read");
    standby.stop();
    refused("GET", "/v1/audit", &Value::Null);
    for path in ["/v1/rules/a", "/v1/rules"] {
        let shown = send(node, "GET", path, &[], &Value::Null);
        let text = shown.text();
        assert!(shown.status == 200 && text.contains("\"limits\":[\"1/d\"]"), "{path}: {shown}");
        assert!(text.contains("\"version\":null"), "{path}: {shown}");
    }
    primary.restart();
    eventually("edits are taken again", || {
        send(node, "PUT", "/v1/rules/b", &[], &rule("b", "1/d")).status < 300
    });
}

#[test]
fn bans_and_the_panic_switch_work_without_the_database_and_are_written_when_it_is_back() {
    let Some((mut primary, mut standby, address)) = pair("bans without the database") else { return };
    let nodes = nodes(&address, 2);
    let [one, other] = [&nodes[0], &nodes[1]];
    assert_eq!(send(one, "POST", "/v1/bans", &[], &json!({ "key": "user:old", "for": "1h" })).status, 201);
    eventually("the other node has it", || other.check(&json!({ "user": "old" })).status == 403);
    primary.stop();
    standby.stop();
    let pending = |method: &str, path: &str, body: &Value| {
        let answer = send(one, method, path, &[], body);
        assert!(answer.status == 202 && answer.json()["pending"].is_string(), "{method} {path}: {answer}");
    };
    pending("POST", "/v1/bans", &json!({ "key": "user:evil", "for": "1h", "reason": "attack" }));
    pending("DELETE", "/v1/bans/user:old", &Value::Null);
    assert_eq!(one.check(&json!({ "user": "evil" })).status, 403);
    assert_eq!(one.check(&json!({ "user": "old" })).status, 200);
    pending("PUT", "/v1/enforce", &json!({ "enforce": "shadow" }));
    let report = one.admin("GET", "/healthz", "").json();
    assert_eq!((&report["enforce"], &report["rules_db"]["pending_edits"]), (&json!("shadow"), &json!(3)));
    let conditional = [("if-none-match", "*")];
    let refused = send(one, "POST", "/v1/bans", &conditional, &json!({ "key": "user:x", "for": "1h" }));
    assert_eq!(refused.status, 503, "its condition cannot be checked: {refused}");
    primary.restart();
    eventually("the other node follows", || other.admin("GET", "/healthz", "").json()["enforce"] == "shadow");
    let bans = other.admin("GET", "/v1/bans", "").text();
    assert!(bans.contains("user:evil") && !bans.contains("user:old"), "{bans}");
    let audit = one.admin("GET", "/v1/audit", "").text();
    assert!(audit.contains("user:evil") && audit.contains("\"local\""), "{audit}");
    assert_eq!(one.admin("GET", "/healthz", "").json()["rules_db"]["pending_edits"], 0);
}
