//! What a key has used, and forgetting it.

use serde_json::{Value, json};
use tollgate_testkit::Server;

#[test]
fn a_key_is_found_however_its_url_is_written() {
    let server = Server::start(
        "rules: [{ id: both, key: [ip, user], limit: 9/y }, { id: mail, key: email, limit: 9/y }, { id: all, limit: 9/y }]",
    );
    server.check(&json!({ "ip": "1.2.3.4", "user": "a b", "email": "a+b@x.org" }));
    for key in ["ip:1.2.3.4+user:a%20b", "user:a%20b+ip:1.2.3.4", "ip%3A1.2.3.4%2Buser%3Aa%2520b"] {
        assert_eq!(server.used("both", key), [1], "{key}");
    }
    for key in ["email:a%2Bb@x.org", "email%3Aa%252Bb%40x.org", "email:A%252Bb@X.org"] {
        assert_eq!(server.used("mail", key), [1], "{key}");
    }
    assert_eq!(server.used("all", ""), [1]);
    assert_eq!(server.admin("GET", "/v1/keys?rule=all", "").status, 200);
}

#[test]
fn a_reset_forgets_one_key_only() {
    let server = Server::start("rules: [{ id: a, key: user, limits: [9/month, 10/y], track: true }]");
    // Two users whose keys differ only in how often they are encoded.
    for user in ["a+b", "a%2Bb", "ann"] {
        server.check(&json!({ "user": user, "cost": 3 }));
    }
    let reset = server.admin("DELETE", "/v1/keys?rule=a&key=user:a%252Bb", "").json();
    assert_eq!(reset["reset"]["key"], "user:a%2Bb");
    assert_eq!(reset["reset"]["limits"][0]["used"], 3);
    assert_eq!(server.used("a", "user:a%252Bb"), [0, 0]);
    assert_eq!(server.used("a", "user:a%25252Bb"), [3, 3]);
    assert_eq!(server.used("a", "user:ann"), [3, 3]);
    let shown = server.admin("GET", "/v1/keys?rule=a&key=user:a%252Bb", "").json();
    assert_eq!((&shown["tries"], &shown["last_seen"]), (&json!(0), &Value::Null));
}

#[test]
fn a_tracked_key_shows_its_tries_denials_and_latest_times() {
    let server = Server::start(
        "rules: [{ id: a, key: user, limit: 2/y, track: true }, { id: b, key: user, limit: 9/y }]",
    );
    for _ in 0..20 {
        server.check(&json!({ "user": "ann" }));
    }
    let shown = server.admin("GET", "/v1/keys?rule=a&key=user:ann", "").json();
    assert_eq!((&shown["tries"], &shown["denials"]), (&json!(20), &json!(18)));
    let latest: Vec<_> =
        shown["latest"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert_eq!(latest.len(), 16);
    assert!(latest.is_sorted_by(|newer, older| newer >= older), "{latest:?}");
    assert_eq!(shown["last_seen"], latest[0]);
    assert!(server.admin("GET", "/v1/keys?rule=b&key=user:ann", "").json().get("tries").is_none());
}
