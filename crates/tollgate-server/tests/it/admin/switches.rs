//! The allow list, overrides and the panic switch.

use serde_json::{Value, json};
use tollgate_testkit::{Answer, Client, Server, eventually};

fn send(server: &Server, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    Client::to(server.admin).request(method, path, headers, body.as_bytes())
}

#[test]
fn allow_entries_come_and_go_and_the_files_stay() {
    let server = Server::start("allow: ['ip:10.0.0.0/8', 'user:health']\nrules: [{ id: all, limit: 0/h }]");
    let added = send(
        &server,
        "POST",
        "/v1/allow",
        &[],
        &json!({ "key": "email:CEO@example.com", "note": "the boss" }),
    );
    let entry =
        json!({ "key": "email:ceo@example.com", "note": "the boss", "source": "database", "version": "0-1" });
    assert_eq!((added.status, added.header("etag"), added.json()), (201, Some("\"0-1\""), entry.clone()));
    assert_eq!(server.check(&json!({ "email": "ceo@example.com" })).json()["reason"], "allow_list");
    let of_file = |key: &str| json!({ "key": key, "note": null, "source": "file", "version": null });
    let all = json!([of_file("ip:10.0.0.0/8"), of_file("user:health"), entry]);
    assert_eq!(
        send(&server, "GET", "/v1/allow", &[], &Value::Null).json(),
        json!({ "allow": all, "next": null })
    );
    let mut seen = Vec::new();
    let mut path = "/v1/allow?limit=1".to_owned();
    while seen.len() < 3 {
        let page = send(&server, "GET", &path, &[], &Value::Null).json();
        seen.extend(page["allow"].as_array().cloned().unwrap_or_default());
        path = format!("/v1/allow?limit=1&after={}", page["next"].as_str().unwrap_or_default());
    }
    assert_eq!(json!(seen), all);
    assert_eq!(send(&server, "GET", "/v1/allow?after=nonsense", &[], &Value::Null).status, 400);

    for (method, path) in [("POST", "/v1/allow"), ("DELETE", "/v1/allow/user:health")] {
        let refused = send(&server, method, path, &[], &json!({ "key": "user:health" }));
        assert_eq!(refused.status, 409, "{refused}");
        assert!(refused.text().contains("change it there"), "{refused}");
    }
    for (body, field) in [
        (json!({ "note": "x" }), "key"),
        (json!({ "key": "nonsense" }), "key"),
        (json!({ "key": "user:a", "colour": "red" }), "colour"),
        (json!({ "key": "user:a", "note": "x".repeat(2000) }), "note"),
    ] {
        let refused = send(&server, "POST", "/v1/allow", &[], &body);
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!(field)), "{refused}");
    }
    let late = send(
        &server,
        "POST",
        "/v1/allow",
        &[("if-none-match", "*")],
        &json!({ "key": "email:ceo@example.com" }),
    );
    assert_eq!((late.status, &late.json()["version"]), (412, &json!("0-1")), "{late}");
    let would =
        send(&server, "DELETE", "/v1/allow/email:ceo@example.com?dry_run=true", &[], &Value::Null).json();
    assert_eq!(would["changes"][0]["before"], json!({ "key": "email:ceo@example.com", "note": "the boss" }));
    let removed = send(&server, "DELETE", "/v1/allow/email%3Aceo%40example.com", &[], &Value::Null);
    assert_eq!((removed.status, &removed.json()["removed"]["note"]), (200, &json!("the boss")), "{removed}");
    assert_eq!(server.check(&json!({ "email": "ceo@example.com" })).status, 429);
    assert_eq!(send(&server, "DELETE", "/v1/allow/email:ceo@example.com", &[], &Value::Null).status, 404);
}

#[test]
fn without_a_database_the_allow_list_is_the_files() {
    let server = Server::start("rules_db: none\nallow: ['user:health']");
    assert_eq!(send(&server, "POST", "/v1/allow", &[], &json!({ "key": "user:a" })).status, 409);
    assert_eq!(send(&server, "DELETE", "/v1/allow/user:a", &[], &Value::Null).status, 409);
    assert_eq!(send(&server, "POST", "/v1/overrides", &[], &json!({})).status, 409);
    let listed = send(&server, "GET", "/v1/allow", &[], &Value::Null).json();
    assert_eq!((&listed["allow"][0]["key"], &listed["next"]), (&json!("user:health"), &Value::Null));
}

#[test]
fn an_override_is_part_of_its_rule_and_edited_alone() {
    let server = Server::start(
        "rules: [{ id: filed, match: /filed, key: user, limit: 9/h, overrides: [{ user: a, limit: 5/h }] }]",
    );
    let rule = json!({ "id": "login", "match": "/login", "key": ["email", "ip"], "limits": ["1/d"] });
    assert_eq!(send(&server, "POST", "/v1/rules", &[], &rule).status, 201);
    let hit = json!({ "path": "/login", "email": "ceo@example.com", "ip": "203.0.113.9" });
    assert_eq!(server.check(&hit).json()["limit"], "1/d");
    let add = |key: &str, limits: Value, query: &str| {
        send(
            &server,
            "POST",
            &format!("/v1/overrides{query}"),
            &[],
            &json!({ "rule": "login", "key": key, "limits": limits }),
        )
    };
    let added = add("email:CEO@example.com", json!(["50/m"]), "");
    assert_eq!((added.status, added.header("etag")), (201, Some("\"0-2\"")), "{added}");
    assert_eq!(server.check(&hit).json()["limit"], "50/m");
    let would = add("email:ceo@example.com", json!(["60/m"]), "?dry_run=true").json();
    assert_eq!(would["changes"][0]["after"]["overrides"][0]["limits"], json!(["60/m"]));
    assert_eq!(add("email:ceo@example.com", json!(["70/m"]), "").status, 201);
    assert_eq!(
        add("ip:203.0.113.0+email:x+1@y.org", json!(["5/m"]), "").status,
        400,
        "a + in a value is %2B"
    );
    assert_eq!(add("ip:203.0.113.1+email:x%2B1@y.org", json!(["5/m", "9/h"]), "").status, 201);
    let list = |query: &str| send(&server, "GET", &format!("/v1/overrides{query}"), &[], &Value::Null).json();
    let listed = list("?rule=login");
    let keys: Vec<_> =
        listed["overrides"].as_array().expect("a list").iter().map(|each| each["key"].clone()).collect();
    assert_eq!(keys.len(), 2, "{listed}");
    assert!(
        keys.contains(&json!("email:ceo@example.com"))
            && keys.contains(&json!("email:x%2B1@y.org+ip:203.0.113.1"))
    );
    let first = list("?limit=1");
    assert_eq!((&first["overrides"][0]["rule"], &first["next"]), (&json!("filed"), &json!("filed")));
    assert_eq!(list("?after=filed")["overrides"][0]["rule"], "login");
    for (body, status, field) in [
        (json!({ "rule": "login", "key": "user:a", "limits": ["5/m"] }), 400, json!("overrides[2]")),
        (
            json!({ "rule": "login", "key": "email:a", "limits": ["five"] }),
            400,
            json!("overrides[2].limits[0]"),
        ),
        (json!({ "rule": "login", "key": "email:a", "limits": [] }), 400, json!("limits")),
        (json!({ "rule": "login", "key": "email:a" }), 400, json!("limits")),
        (json!({ "rule": "nobody", "key": "email:a", "limits": ["5/m"] }), 404, Value::Null),
        (json!({ "rule": "filed", "key": "user:a", "limits": ["5/m"] }), 409, Value::Null),
    ] {
        let refused = send(&server, "POST", "/v1/overrides", &[], &body);
        assert_eq!((refused.status, &refused.json()["field"]), (status, &field), "{body}: {refused}");
    }
    let stale = send(
        &server,
        "DELETE",
        "/v1/overrides?rule=login&key=email:ceo@example.com",
        &[("if-match", "\"0-1\"")],
        &Value::Null,
    );
    assert_eq!(stale.status, 412, "{stale}");
    let removed =
        send(&server, "DELETE", "/v1/overrides?rule=login&key=email:ceo@example.com", &[], &Value::Null);
    assert_eq!((removed.status, &removed.json()["removed"]["limits"]), (200, &json!(["70/m"])), "{removed}");
    assert_eq!(server.check(&hit).json()["limit"], "1/d");
    let again =
        send(&server, "DELETE", "/v1/overrides?rule=login&key=email:ceo@example.com", &[], &Value::Null);
    assert_eq!(again.status, 404, "{again}");
    assert_eq!(send(&server, "DELETE", "/v1/overrides?rule=login", &[], &Value::Null).status, 400);
}

#[test]
fn overrides_added_at_once_are_all_kept() {
    let server = Server::start("");
    let rule = json!({ "id": "a", "key": "user", "limit": "1/d" });
    assert_eq!(send(&server, "POST", "/v1/rules", &[], &rule).status, 201);
    std::thread::scope(|scope| {
        for n in 0..4 {
            let server = &server;
            scope.spawn(move || {
                let body = json!({ "rule": "a", "key": format!("user:u{n}"), "limits": ["9/d"] });
                assert_eq!(send(server, "POST", "/v1/overrides", &[], &body).status, 201);
            });
        }
    });
    let listed = send(&server, "GET", "/v1/overrides?rule=a", &[], &Value::Null).json();
    assert_eq!(listed["overrides"].as_array().map(Vec::len), Some(4), "{listed}");
}

#[test]
fn the_panic_switch_is_set_for_the_fleet() {
    let server = Server::start("rules: [{ id: all, limit: 0/h }]");
    let other = server.start_beside();
    let shown = send(&server, "GET", "/v1/enforce", &[], &Value::Null).json();
    assert_eq!(shown, json!({ "enforce": "on", "scope": "fleet", "version": null, "who": null, "at": null }));
    assert_eq!(other.check(&json!({})).status, 429);
    let would = send(&server, "PUT", "/v1/enforce?dry_run=true", &[], &json!({ "enforce": "off" })).json();
    assert_eq!(would["changes"][0]["after"], "off");
    let turned = send(&server, "PUT", "/v1/enforce", &[], &json!({ "enforce": "shadow" }));
    assert_eq!((turned.status, turned.header("etag")), (200, Some("\"0-1\"")), "{turned}");
    let reply = turned.json();
    assert_eq!(
        (&reply["enforce"], &reply["scope"], &reply["who"]),
        (&json!("shadow"), &json!("fleet"), &json!("local"))
    );
    assert_eq!(server.check(&json!({})).status, 200);
    eventually("the other node follows", || other.check(&json!({})).status == 200);
    assert_eq!(send(&other, "GET", "/v1/enforce", &[], &Value::Null).json(), reply);
    let same = send(&server, "PUT", "/v1/enforce", &[], &json!({ "enforce": "shadow" }));
    assert_eq!((same.status, same.json()), (200, reply));
    let late = send(&server, "PUT", "/v1/enforce", &[("if-match", "\"0-9\"")], &json!({ "enforce": "on" }));
    assert_eq!(late.status, 412, "{late}");
    for body in [json!({ "enforce": "perhaps" }), json!({ "enforce": 7 }), json!({})] {
        let refused = send(&server, "PUT", "/v1/enforce", &[], &body);
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("enforce")), "{refused}");
    }
}

#[test]
fn without_a_database_the_switch_is_this_nodes_only() {
    let server = Server::start("rules_db: none\nrules: [{ id: all, limit: 0/h }]");
    let turned = send(&server, "PUT", "/v1/enforce", &[], &json!({ "enforce": "off" }));
    assert_eq!((turned.status, &turned.json()["scope"]), (200, &json!("node")), "{turned}");
    assert_eq!(server.check(&json!({})).status, 200);
    assert_eq!(send(&server, "GET", "/v1/enforce", &[], &Value::Null).json()["enforce"], "off");
}
