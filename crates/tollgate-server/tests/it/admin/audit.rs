//! The log of changes: author, time, before and after; and reverting one change.

use serde_json::{Value, json};
use tollgate_testkit::{Client, Folder, Server};

const ANN: &str = "ann-0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef";

fn start() -> Server {
    let folder = Folder::new();
    folder.write("tokens", format!("admin {ANN} ann@example.com\noperate {BOB}\n"));
    folder.configure("tokens_file: tokens\nrules: [{ id: filed, match: /filed, limit: 9/h }]");
    Server::start_in(&folder)
}

fn send(server: &Server, token: &str, method: &str, path: &str, body: Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let bearer = format!("Bearer {token}");
    let answer =
        Client::to(server.admin).request(method, path, &[("authorization", &bearer)], body.as_bytes());
    (answer.status, answer.json())
}

#[test]
fn every_change_is_logged_with_who_when_before_and_after() {
    let server = start();
    let rule = |limit: &str| json!({ "id": "a", "limit": limit });
    assert_eq!(send(&server, ANN, "POST", "/v1/rules", rule("1/m")).0, 201);
    assert_eq!(send(&server, ANN, "PUT", "/v1/rules/a", rule("2/m")).0, 200);
    assert_eq!(
        send(
            &server,
            BOB,
            "POST",
            "/v1/bans",
            json!({ "key": "user:evil", "until": "2126-01-01T00:00:00Z", "reason": "r" })
        )
        .0,
        201
    );
    assert_eq!(send(&server, ANN, "POST", "/v1/allow", json!({ "key": "user:good", "note": "n" })).0, 201);
    assert_eq!(send(&server, ANN, "PUT", "/v1/enforce", json!({ "enforce": "shadow" })).0, 200);
    assert_eq!(send(&server, BOB, "DELETE", "/v1/bans/user:evil", Value::Null).0, 200);
    assert_eq!(send(&server, ANN, "DELETE", "/v1/rules/a", Value::Null).0, 200);

    for (what, versions) in [
        ("rule", &["0-7", "0-2", "0-1"] as &[_]),
        ("ban", &["0-6", "0-3"]),
        ("allow", &["0-4"]),
        ("enforce", &["0-5"]),
        ("ramp", &[]),
    ] {
        let (status, log) = send(&server, BOB, "GET", &format!("/v1/audit?what={what}"), Value::Null);
        let found = log["changes"].as_array().expect("a list");
        let found: Vec<_> = found.iter().filter_map(|change| change["version"].as_str()).collect();
        assert_eq!((status, found.as_slice(), &log["next"]), (200, versions, &Value::Null), "{what}");
    }
    let (_, page) = send(&server, BOB, "GET", "/v1/audit?what=rule&limit=1", Value::Null);
    assert_eq!((&page["changes"][0]["version"], &page["next"]), (&json!("0-7"), &json!("0-7")));
    let (_, page) = send(&server, BOB, "GET", "/v1/audit?what=rule&limit=1&before=0-7", Value::Null);
    assert_eq!(page["changes"][0]["version"], "0-2");
    for wrong in ["what=rules", "what=rule&item=rule:a"] {
        assert_eq!(send(&server, BOB, "GET", &format!("/v1/audit?{wrong}"), Value::Null).0, 400, "{wrong}");
    }

    let (status, log) = send(&server, BOB, "GET", "/v1/audit", Value::Null);
    assert_eq!((status, &log["next"]), (200, &Value::Null));
    let changes = log["changes"].as_array().expect("a list");
    let reply: Vec<_> = changes
        .iter()
        .map(|change| {
            ["version", "who", "what", "name"].map(|name| change[name].as_str().unwrap_or_default())
        })
        .collect();
    assert_eq!(
        reply,
        [
            ["0-7", "ann@example.com", "rule", "a"],
            ["0-6", "operate-2", "ban", "user:evil"],
            ["0-5", "ann@example.com", "setting", "enforce"],
            ["0-4", "ann@example.com", "allow", "user:good"],
            ["0-3", "operate-2", "ban", "user:evil"],
            ["0-2", "ann@example.com", "rule", "a"],
            ["0-1", "ann@example.com", "rule", "a"],
        ]
    );
    let ban = json!({ "key": "user:evil", "until": "2126-01-01T00:00:00Z", "reason": "r", "source": "manual", "strikes": 0 });
    let states: Vec<_> =
        changes.iter().map(|change| (change["before"].clone(), change["after"].clone())).collect();
    assert_eq!(states[0], (rule("2/m"), Value::Null));
    assert_eq!(states[1], (ban.clone(), Value::Null));
    assert_eq!(states[2], (Value::Null, json!("shadow")));
    assert_eq!(states[3], (Value::Null, json!({ "key": "user:good", "note": "n" })));
    assert_eq!(states[4], (Value::Null, ban));
    assert_eq!(states[5], (rule("1/m"), rule("2/m")));
    assert!(changes.iter().all(|change| change["at"].as_str().is_some_and(|at| at.ends_with('Z'))), "{log}");

    let versions = |path: &str| {
        let (_, log) = send(&server, BOB, "GET", path, Value::Null);
        let list: Vec<_> = log["changes"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|change| change["version"].to_string())
            .collect();
        (list.join(" ").replace('"', ""), log["next"].clone())
    };
    assert_eq!(versions("/v1/audit?limit=3"), ("0-7 0-6 0-5".to_owned(), json!("0-5")));
    assert_eq!(versions("/v1/audit?limit=3&before=0-3"), ("0-2 0-1".to_owned(), Value::Null));
    assert_eq!(versions("/v1/audit?item=rule:a"), ("0-7 0-2 0-1".to_owned(), Value::Null));
    assert_eq!(versions("/v1/audit?item=rule:a&limit=1&before=0-7"), ("0-2".to_owned(), json!("0-2")));
    assert_eq!(versions("/v1/audit?item=ban:user:evil").0, "0-6 0-3");
    assert_eq!(versions("/v1/audit?item=allow:user:good").0, "0-4");
    assert_eq!(versions("/v1/audit?item=setting:enforce").0, "0-5");
    for (query, field) in [
        ("before=yesterday", "before"),
        ("item=moon:a", "item"),
        ("item=rule:", "item"),
        ("limit=0", "limit"),
        ("item=ban:x", "item"),
    ] {
        let (status, reply) = send(&server, BOB, "GET", &format!("/v1/audit?{query}"), Value::Null);
        assert_eq!((status, &reply["field"]), (400, &json!(field)), "{query}");
    }
}

#[test]
fn one_change_is_reverted_by_a_new_one() {
    let server = start();
    let rule = |limit: &str| json!({ "id": "a", "match": "/a", "limit": limit });
    assert_eq!(send(&server, ANN, "POST", "/v1/rules", rule("1/m")).0, 201);
    assert_eq!(send(&server, ANN, "PUT", "/v1/rules/a", rule("2/m")).0, 200);
    let rollback = |version: &str, query: &str| {
        send(&server, ANN, "POST", &format!("/v1/audit/{version}/rollback{query}"), Value::Null)
    };
    let (status, reply) = rollback("0-1", "");
    assert_eq!((status, &reply["version"]), (412, &json!("0-2")), "{reply}");
    let (status, would) = rollback("0-2", "?dry_run=true");
    assert_eq!((status, &would["changes"][0]["after"]), (200, &rule("1/m")), "{would}");
    let (status, reply) = rollback("0-2", "");
    let change = json!({ "what": "rule", "name": "a", "before": rule("2/m"), "after": rule("1/m"), "version": "0-3", "undoes": "0-2" });
    assert_eq!((status, reply), (200, json!({ "changes": [change] })));
    assert_eq!(server.check(&json!({ "path": "/a" })).json()["limit"], "1/m", "it is in force");
    let (_, log) = send(&server, ANN, "GET", "/v1/audit?limit=1", Value::Null);
    assert_eq!((&log["changes"][0]["undoes"], &log["changes"][0]["version"]), (&json!("0-2"), &json!("0-3")));

    assert_eq!(send(&server, ANN, "DELETE", "/v1/rules/a", Value::Null).0, 200);
    assert_eq!(rollback("0-4", "").0, 200, "what was deleted is there again");
    assert_eq!(send(&server, ANN, "GET", "/v1/rules/a", Value::Null).1["limits"], json!(["1/m"]));
    assert_eq!(rollback("0-99", "").0, 404);
    assert_eq!(rollback("yesterday", "").0, 400);
    let (status, _) = send(&server, BOB, "POST", "/v1/audit/0-5/rollback", Value::Null);
    assert_eq!(status, 403, "an operator does not change rules");
}
