//! Bans by hand: added, listed, in force and lifted.

use serde_json::json;

use crate::harness::{Server, eventually};

pub fn bans(server: &Server) -> Vec<String> {
    let list = server.admin("GET", "/v1/bans", "").json();
    let keys = list["bans"].as_array().expect("a list").iter();
    keys.filter_map(|ban| ban["key"].as_str().map(str::to_owned)).collect()
}

#[test]
fn a_ban_is_added_listed_in_force_and_lifted() {
    let server = Server::start("");
    for (written, key, path, hit) in [
        ("user:evil", "user:evil", "user:evil", json!({ "user": "evil" })),
        ("ip:203.0.113.9/24", "ip:203.0.113.0/24", "ip:203.0.113.0/24", json!({ "ip": "203.0.113.77" })),
        (
            "user:42+ip:198.51.100.7",
            "ip:198.51.100.7+user:42",
            "ip:198.51.100.7+user:42",
            json!({ "ip": "198.51.100.7", "user": 42 }),
        ),
        (
            "email:a%2Bb@x.org",
            "email:a%2Bb@x.org",
            "email%3Aa%252Bb%40x.org",
            json!({ "email": "A+B@x.org" }),
        ),
        ("user:a b/c", "user:a%20b/c", "user%3Aa%20b%2Fc", json!({ "user": "a b/c" })),
        (
            "ip:2001:db8::/32",
            "ip:2001:db8::/32",
            "ip%3A2001%3Adb8%3A%3A%2F32",
            json!({ "ip": "2001:db8:9::1" }),
        ),
    ] {
        assert_eq!(server.check(&hit).status, 200, "{key}");
        let body = json!({ "key": written, "for": "1h", "reason": "no good" });
        let added = server.admin("POST", "/v1/bans", body.to_string());
        assert_eq!((added.status, &added.json()["key"]), (201, &json!(key)), "{added}");
        assert_eq!(bans(&server), [key]);
        let denied = server.check(&hit);
        assert_eq!((denied.status, &denied.json()["reason"]), (403, &json!("ban")), "{key}");
        let lifted = server.admin("DELETE", &format!("/v1/bans/{path}"), "");
        assert_eq!((lifted.status, &lifted.json()["removed"]["key"]), (200, &json!(key)), "{lifted}");
        assert_eq!(server.check(&hit).status, 200, "{key}");
        assert_eq!(server.admin("DELETE", &format!("/v1/bans/{path}"), "").status, 404);
    }
}

#[test]
fn a_combined_ban_takes_all_its_parts() {
    let server = Server::start("");
    let ban = json!({ "key": "ip:198.51.100.7+user:42", "for": "1h" });
    assert_eq!(server.admin("POST", "/v1/bans", ban.to_string()).status, 201);
    assert_eq!(server.check(&json!({ "ip": "198.51.100.7", "user": 42 })).status, 403);
    for other in
        [json!({ "ip": "198.51.100.7" }), json!({ "user": 42 }), json!({ "ip": "198.51.100.7", "user": 43 })]
    {
        assert_eq!(server.check(&other).status, 200, "{other}");
    }
}

#[test]
fn a_ban_ends_by_itself() {
    let server = Server::start("");
    let ban = json!({ "key": "user:ann", "for": "100ms" });
    assert_eq!(server.admin("POST", "/v1/bans", ban.to_string()).status, 201);
    eventually("the ban has ended", || server.check(&json!({ "user": "ann" })).status == 200);
    assert_eq!(bans(&server), [""; 0]);
    let ban = json!({ "key": "user:ann", "until": "2126-01-01T00:00:00Z" });
    assert_eq!(server.admin("POST", "/v1/bans", ban.to_string()).json()["until"], "2126-01-01T00:00:00Z");
    assert_eq!(server.check(&json!({ "user": "ann" })).status, 403);
}

#[test]
fn a_ban_of_the_file_is_lifted_in_the_file() {
    let server = Server::start("bans: [{ key: 'user:evil', reason: in the file }]");
    let listed = server.admin("GET", "/v1/bans", "").json();
    assert_eq!(
        listed["bans"],
        json!([{ "key": "user:evil", "until": null, "reason": "in the file", "source": "file", "strikes": 0, "version": null }])
    );
    let refused = server.admin("DELETE", "/v1/bans/user:evil", "");
    assert_eq!(refused.status, 409, "{refused}");
    // A shorter ban by hand once took its place, and could be lifted.
    let shorter = json!({ "key": "user:evil", "for": "1h" }).to_string();
    assert_eq!(server.admin("POST", "/v1/bans", shorter).status, 409);
    assert_eq!(server.check(&json!({ "user": "evil" })).status, 403);
}
