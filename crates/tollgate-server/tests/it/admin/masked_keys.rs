//! Keys that lists show as marks: a mark names no key, and a key is found by its plain text.

use serde_json::{Value, json};
use tollgate_testkit::Server;

const RULES: &str = "rules:
  - { id: mail, match: /mail, key: email, limit: 2/h }
  - { id: both, match: /both, key: [ip, email], limit: 1/h }
";

fn check(server: &Server, path: &str, email: &str, times: usize) {
    for _ in 0..times {
        server.check(&json!({ "path": path, "email": email, "ip": "192.0.2.7" }));
    }
}

fn shown_keys(server: &Server, query: &str) -> Vec<String> {
    let answer = server.admin("GET", &format!("/v1/decisions?{query}"), "");
    assert_eq!(answer.status, 200, "{answer}");
    let body = answer.json();
    let decisions = body["decisions"].as_array().expect("a list");
    decisions.iter().map(|one| one["key"].as_str().expect("a key").to_owned()).collect()
}

#[test]
fn a_mark_is_refused_wherever_a_key_is_expected() {
    let server = Server::start(RULES);
    let own = json!({ "id": "own", "key": "email", "limit": "9/h" }).to_string();
    assert_eq!(server.admin("POST", "/v1/rules", own).status, 201);
    check(&server, "/mail", "ann@example.com", 3);
    let top = server.admin("GET", "/v1/top?outcome=denied", "").json();
    let mark = top["keys"][0]["key"].as_str().expect("a key").to_owned();
    assert!(mark.starts_with("email:#"), "{top}");
    let encoded = mark.replace('#', "%23");
    let limits = json!({ "rule": "own", "key": mark, "limits": ["1/h"] }).to_string();
    let ban = json!({ "key": mark, "for": "1h" }).to_string();
    let entry = json!({ "key": mark }).to_string();
    for (method, path, body) in [
        ("GET", format!("/v1/keys?rule=mail&key={encoded}"), ""),
        ("DELETE", format!("/v1/keys?rule=mail&key={encoded}"), ""),
        ("POST", "/v1/bans".to_owned(), &*ban),
        ("DELETE", format!("/v1/bans/{encoded}"), ""),
        ("POST", "/v1/bans/import".to_owned(), &format!("{mark} 1h scraping")),
        ("POST", "/v1/overrides".to_owned(), &limits),
        ("DELETE", format!("/v1/overrides?rule=own&key={encoded}"), ""),
        ("POST", "/v1/allow".to_owned(), &entry),
        ("DELETE", format!("/v1/allow/{encoded}"), ""),
    ] {
        let refused = server.admin(method, &path, body);
        assert_eq!(refused.status, 400, "{method} {path}: {refused}");
        assert!(
            refused.text().contains(&format!("'{mark}' is the mark of a key")),
            "{method} {path}: {refused}"
        );
    }
    assert_eq!(server.admin("GET", "/v1/bans", "").json()["total"], 0);
    assert_eq!(server.used("mail", "email:ann@example.com"), [2]);
}

#[test]
fn a_value_that_looks_like_a_mark_is_written_with_an_escape() {
    let server = Server::start("rules: [{ id: a, key: user, limit: 9/h }]");
    server.check(&json!({ "user": "#0123456789abcdef" }));
    assert_eq!(server.used("a", "user:%25230123456789abcdef"), [1]);
    let ban = json!({ "key": "user:%230123456789abcdef", "for": "1h" }).to_string();
    assert_eq!(server.admin("POST", "/v1/bans", ban).status, 201);
    let lifted = server.admin("DELETE", "/v1/bans/user:%230123456789abcdef", "");
    assert_eq!(lifted.status, 200, "a ban in force is lifted under its shown key: {lifted}");
}

#[test]
fn decisions_of_a_masked_key_are_found_by_the_key_and_by_its_mark() {
    let server = Server::start(RULES);
    check(&server, "/mail", "a+nn@example.com", 3);
    check(&server, "/mail", "bob@example.com", 1);
    check(&server, "/both", "a+nn@example.com", 2);
    let denied = shown_keys(&server, "outcome=denied&rule=mail&key=email:a%252Bnn@example.com");
    assert_eq!(denied.len(), 1, "{denied:?}");
    assert!(denied[0].starts_with("email:#"), "{denied:?}");
    let mark = denied[0].replace('#', "%23");
    assert_eq!(shown_keys(&server, &format!("outcome=denied&key={mark}")), denied);
    assert_eq!(shown_keys(&server, "outcome=denied&key=email:bob@example.com"), Vec::<String>::new());
    assert_eq!(shown_keys(&server, "outcome=allowed&key=email:Bob@Example.com").len(), 1);
    let both = "email:a%252Bnn@example.com%2Bip:192.0.2.7";
    assert_eq!(shown_keys(&server, &format!("outcome=denied&key={both}")).len(), 1);
    let answer = server.admin("GET", &format!("/v1/decisions?outcome=denied&key={both}"), "");
    assert!(!answer.text().contains("example.com"), "{answer}");
    let none: Value = server.admin("GET", "/v1/decisions?outcome=denied&key=nonsense", "").json();
    assert_eq!(none["decisions"], json!([]));
}
