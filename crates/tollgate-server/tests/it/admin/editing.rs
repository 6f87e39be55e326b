//! Rules of the database: created, replaced and deleted while traffic flows, each at the version its author has seen.

use serde_json::{Value, json};
use tollgate_testkit::{Answer, Client, Server, Waits};

const FILE: &str = "rules: [{ id: filed, match: /filed, limit: 9/h }]";

fn send(server: &Server, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    Client::to(server.admin).request(method, path, headers, body.as_bytes())
}

fn tag(answer: &Answer) -> String {
    answer.header("etag").unwrap_or_else(|| panic!("no ETag: {answer}")).to_owned()
}

fn ids(answer: &Answer) -> Vec<String> {
    let rules = answer.json()["rules"].as_array().cloned().unwrap_or_default();
    rules.iter().filter_map(|rule| rule["id"].as_str().map(str::to_owned)).collect()
}

#[test]
fn a_rule_is_created_in_force_replaced_and_deleted() {
    let server = Server::start(FILE);
    let rule = json!({ "id": "login", "match": "POST /login", "key": ["email"], "limits": ["2/h"] });
    let created = send(&server, "POST", "/v1/rules", &[], &rule);
    assert_eq!((created.status, created.header("location")), (201, Some("/v1/rules/login")), "{created}");
    let shown = created.json();
    assert_eq!((&shown["source"], &shown["version"]), (&json!("database"), &json!("0-1")));
    assert_eq!(tag(&created), "\"0-1\"");
    // It is in force when the answer comes.
    let hit = json!({ "method": "POST", "path": "/login", "email": "ann@example.com" });
    let statuses = [(); 3].map(|()| server.check(&hit).status);
    assert_eq!(statuses, [200, 200, 429]);

    let got = send(&server, "GET", "/v1/rules/login", &[], &Value::Null);
    assert_eq!((got.status, tag(&got), got.json()), (200, tag(&created), shown.clone()));
    // A rule as shown can be sent back: its additional fields are ignored.
    let mut edited = shown;
    edited["limits"] = json!(["5/h"]);
    let replaced = send(&server, "PUT", "/v1/rules/login", &[("if-match", &tag(&got))], &edited);
    assert_eq!((replaced.status, tag(&replaced)), (200, "\"0-2\"".to_owned()), "{replaced}");
    assert_eq!(server.check(&hit).status, 200, "2 of 5 are used (I6)");
    let same = send(&server, "PUT", "/v1/rules/login", &[], &edited);
    assert_eq!((same.status, tag(&same)), (200, "\"0-2\"".to_owned()), "nothing changed: no new version");

    let deleted = send(&server, "DELETE", "/v1/rules/login", &[("if-match", "\"0-2\"")], &Value::Null);
    assert_eq!((deleted.status, &deleted.json()["removed"]["limits"]), (200, &json!(["5/h"])), "{deleted}");
    assert_eq!(server.check(&hit).json()["reason"], "no_rule");
    for method in ["GET", "DELETE"] {
        assert_eq!(send(&server, method, "/v1/rules/login", &[], &Value::Null).status, 404);
    }
}

#[test]
fn a_rule_put_under_a_new_id_is_created() {
    let server = Server::start(FILE);
    let put = send(&server, "PUT", "/v1/rules/new", &[], &json!({ "limit": "5/m" }));
    assert_eq!((put.status, &put.json()["id"]), (201, &json!("new")), "{put}");
    let other = send(&server, "PUT", "/v1/rules/new", &[], &json!({ "id": "other", "limit": "5/m" }));
    assert_eq!((other.status, &other.json()["field"]), (400, &json!("id")), "{other}");
    let yaml = Client::to(server.admin).request("PUT", "/v1/rules/new", &[], b"limit: 7/m\nmode: off\n");
    assert_eq!((yaml.status, &yaml.json()["limits"]), (200, &json!(["7/m"])), "{yaml}");
    let written = send(&server, "GET", "/v1/rules/new?as=written", &[], &Value::Null).json();
    assert_eq!(written["rule"], json!({ "id": "new", "limit": "7/m", "mode": "off" }));
}

#[test]
fn an_edit_is_made_only_on_what_its_author_has_seen() {
    let server = Server::start(FILE);
    let rule = |limit: &str| json!({ "id": "a", "limit": limit });
    assert_eq!(send(&server, "POST", "/v1/rules", &[], &rule("1/m")).status, 201);
    assert_eq!(send(&server, "PUT", "/v1/rules/a", &[], &rule("2/m")).status, 200);
    for (method, headers, version) in [
        ("PUT", [("if-match", "\"0-1\"")], json!("0-2")),
        ("DELETE", [("if-match", "\"0-1\"")], json!("0-2")),
        ("PUT", [("if-none-match", "*")], json!("0-2")),
    ] {
        let late = send(&server, method, "/v1/rules/a", &headers, &rule("3/m"));
        assert_eq!((late.status, &late.json()["version"]), (412, &version), "{method} {headers:?}: {late}");
    }
    for tag in ["\"0-1\"", "*"] {
        let gone = send(&server, "PUT", "/v1/rules/b", &[("if-match", tag)], &json!({ "limit": "1/m" }));
        assert_eq!((gone.status, &gone.json()["version"]), (412, &Value::Null), "{gone}");
    }
    for (name, value) in
        [("if-match", "0-2"), ("if-match", "W/\"0-2\""), ("if-match", "\"x\""), ("if-none-match", "\"0-2\"")]
    {
        let odd = send(&server, "PUT", "/v1/rules/a", &[(name, value)], &rule("3/m"));
        assert_eq!(odd.status, 400, "{name}: {value}: {odd}");
    }
    for headers in [
        [("if-match", "\"0-1\""), ("if-match", "\"0-2\"")],
        [("if-match", "\"é\""), ("x", "y")],
        [("if-match", "*"), ("if-none-match", "*")],
    ] {
        let odd = send(&server, "PUT", "/v1/rules/a", &headers, &rule("3/m"));
        assert_eq!(odd.status, 400, "{headers:?}: {odd}");
    }
    assert_eq!(send(&server, "PUT", "/v1/rules/a", &[("if-match", "*")], &rule("3/m")).status, 200);
    let create = [("if-none-match", "*")];
    assert_eq!(send(&server, "PUT", "/v1/rules/b", &create, &json!({ "limit": "1/m" })).status, 201);
}

#[test]
fn an_id_is_used_once_over_file_and_database() {
    let server = Server::start(FILE);
    let rule = |id: &str| json!({ "id": id, "limit": "5/m" });
    assert_eq!(send(&server, "POST", "/v1/rules", &[], &rule("a")).status, 201);
    let twice = send(&server, "POST", "/v1/rules", &[], &rule("a"));
    assert_eq!((twice.status, &twice.json()["detail"]), (409, &json!("rule a exists already")));
    for (method, path) in [("POST", "/v1/rules"), ("PUT", "/v1/rules/filed"), ("DELETE", "/v1/rules/filed")] {
        let refused = send(&server, method, path, &[], &rule("filed"));
        let detail = refused.json()["detail"].to_string();
        assert_eq!(refused.status, 409, "{method} {path}: {refused}");
        assert!(detail.contains("change it there"), "{detail}");
    }
    let listed = send(&server, "GET", "/v1/rules", &[], &Value::Null);
    assert_eq!(ids(&listed), ["filed", "a"]);
}

#[test]
fn a_bad_rule_is_rejected_by_the_name_of_its_field_and_changes_nothing() {
    let server = Server::start(FILE);
    for (rule, field) in [
        (json!({ "id": "a", "limit": "five" }), "limit"),
        (json!({ "id": "a", "limit": "5/m", "colour": "red" }), "colour"),
        (json!({ "id": "a b", "limit": "5/m" }), "id"),
        (json!({ "limit": "5/m" }), "id"),
        (json!({ "id": "a" }), "body"),
        (json!({ "id": "a", "limit": "5/m", "mode": "loud" }), "mode"),
        (
            json!({ "id": "a", "key": "email", "limit": "5/m", "overrides": [{ "ip": "1.2.3.4", "limit": "9/m" }] }),
            "overrides[0]",
        ),
        (json!([]), "body"),
        (json!("text"), "body"),
    ] {
        for path in ["/v1/rules", "/v1/rules?dry_run=true"] {
            let refused = send(&server, "POST", path, &[], &rule);
            assert_eq!(refused.status, 400, "{rule}: {refused}");
            assert_eq!(refused.header("content-type"), Some("application/problem+json"));
            assert_eq!(refused.json()["field"], field, "{rule}: {refused}");
        }
    }
    let twice = Client::to(server.admin).request(
        "POST",
        "/v1/rules",
        &[],
        b"{\"id\":\"a\",\"limit\":\"1/m\",\"limit\":\"9/m\"}",
    );
    assert_eq!(twice.status, 400, "{twice}");
    let garbage = Client::to(server.admin).request("POST", "/v1/rules", &[], b"{\xff");
    assert_eq!(garbage.status, 400, "{garbage}");
    assert_eq!(ids(&send(&server, "GET", "/v1/rules", &[], &Value::Null)), ["filed"]);
}

#[test]
fn rules_that_do_not_fit_beside_those_in_force_are_refused() {
    let rules: String = (0..64).map(|n| format!("  - {{ id: r{n}, match: /x, limit: 5/m }}\n")).collect();
    let server = Server::start(&format!("rules:\n{rules}"));
    let one_more =
        send(&server, "POST", "/v1/rules", &[], &json!({ "id": "a", "match": "/x", "limit": "5/m" }));
    assert_eq!((one_more.status, &one_more.json()["field"]), (400, &json!("rule")), "{one_more}");
    assert!(one_more.text().contains("at most 64"), "{one_more}");
}

#[test]
fn a_dry_run_says_what_would_change_and_changes_nothing() {
    let server = Server::start(FILE);
    let rule = |limit: &str| json!({ "id": "a", "limit": limit });
    let would = send(&server, "POST", "/v1/rules?dry_run=true", &[], &rule("1/m"));
    let change =
        json!({ "what": "rule", "name": "a", "before": null, "after": { "id": "a", "limit": "1/m" } });
    assert_eq!((would.status, would.json()), (200, json!({ "dry_run": true, "changes": [change] })));
    assert_eq!(send(&server, "GET", "/v1/rules/a", &[], &Value::Null).status, 404);
    assert_eq!(send(&server, "POST", "/v1/rules", &[], &rule("1/m")).status, 201);
    assert_eq!(send(&server, "POST", "/v1/rules?dry_run=true", &[], &rule("1/m")).status, 409);
    let stale = [("if-match", "\"0-9\"")];
    assert_eq!(send(&server, "PUT", "/v1/rules/a?dry_run=true", &stale, &rule("2/m")).status, 412);
    let same = send(&server, "PUT", "/v1/rules/a?dry_run=true", &[], &rule("1/m")).json();
    assert_eq!(same, json!({ "dry_run": true, "changes": [] }));
    let gone = send(&server, "DELETE", "/v1/rules/a?dry_run=true", &[], &Value::Null).json();
    assert_eq!(gone["changes"][0]["after"], Value::Null);
    assert_eq!(send(&server, "DELETE", "/v1/rules/a?dry_run=maybe", &[], &Value::Null).status, 400);
    assert_eq!(send(&server, "GET", "/v1/rules/a", &[], &Value::Null).json()["version"], "0-1");
}

#[test]
fn rules_are_listed_by_pages_the_files_first() {
    let server = Server::start("rules: [{ id: z, limit: 9/h, match: /z }, { id: y, limit: 9/h, match: /y }]");
    for id in ["c", "a", "b1", "b2"] {
        let rule = json!({ "id": id, "match": format!("/{id}"), "limit": "5/m" });
        assert_eq!(send(&server, "POST", "/v1/rules", &[], &rule).status, 201);
    }
    let all = ["z", "y", "a", "b1", "b2", "c"];
    for limit in 1..=7 {
        let mut seen = Vec::new();
        let mut path = format!("/v1/rules?limit={limit}");
        loop {
            let page = send(&server, "GET", &path, &[], &Value::Null);
            assert_eq!((page.status, &page.json()["total"]), (200, &json!(6)), "{page}");
            assert!(ids(&page).len() <= limit);
            seen.extend(ids(&page));
            let Some(next) = page.json()["next"].as_str().map(str::to_owned) else { break };
            path = format!("/v1/rules?limit={limit}&after={next}");
        }
        assert_eq!(seen, all, "by {limit}");
    }
    let list = |query: &str| ids(&send(&server, "GET", &format!("/v1/rules?{query}"), &[], &Value::Null));
    assert_eq!(list("source=file"), ["z", "y"]);
    assert_eq!(list("source=database&prefix=b"), ["b1", "b2"]);
    assert_eq!(list("prefix=z"), ["z"]);
    for query in [
        "after=nonsense",
        "after=file:gone",
        "after=database:a%20b",
        "limit=0",
        "limit=1001",
        "limit=x",
        "source=moon",
        "colour=red",
    ] {
        let refused = send(&server, "GET", &format!("/v1/rules?{query}"), &[], &Value::Null);
        let field = query.split('=').next().expect("a name");
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!(field)), "{query}: {refused}");
    }
}

#[test]
fn without_a_database_rules_are_changed_in_the_file() {
    let server = Server::start(&format!("rules_db: none\n{FILE}"));
    let rule = json!({ "id": "a", "limit": "5/m" });
    for (method, path) in [
        ("POST", "/v1/rules"),
        ("PUT", "/v1/rules/a"),
        ("DELETE", "/v1/rules/a"),
        ("GET", "/v1/audit"),
        ("POST", "/v1/audit/0-1/rollback"),
    ] {
        let refused = send(&server, method, path, &[], &rule);
        assert_eq!(refused.status, 409, "{method} {path}: {refused}");
        assert!(refused.text().contains("rules_db is none"), "{refused}");
    }
    assert_eq!(ids(&send(&server, "GET", "/v1/rules", &[], &Value::Null)), ["filed"]);
    assert_eq!(send(&server, "GET", "/v1/rules/filed", &[], &Value::Null).json()["source"], "file");
}

#[test]
fn a_second_node_has_the_change_within_a_second() {
    let server = Server::start(FILE);
    let other = server.start_beside();
    let mut waits = Waits::default();
    for (id, rules) in [("a", 2), ("b", 3), ("c", 4)] {
        let rule = json!({ "id": id, "match": "/a", "limit": "1/h" });
        assert_eq!(send(&server, "POST", "/v1/rules", &[], &rule).status, 201);
        let reply = format!("tollgate_rules {rules}\n");
        waits.until("the other node has the rule", || {
            send(&other, "GET", "/metrics", &[], &Value::Null).text().contains(&reply)
        });
    }
    waits.are_within_a_second();
}
