//! Bans by hand: added, listed, in force and lifted.

use serde_json::json;
use tollgate_testkit::{Client, Server, Waits, eventually};

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

#[test]
fn bans_are_listed_by_pages_and_changed_only_as_they_were_seen() {
    let server = Server::start("bans: [{ key: 'user:c' }]");
    for user in ["b", "d", "a"] {
        let ban = json!({ "key": format!("user:{user}"), "for": "1h" });
        assert_eq!(server.admin("POST", "/v1/bans", ban.to_string()).status, 201);
    }
    let mut seen = Vec::new();
    let mut path = "/v1/bans?limit=3".to_owned();
    loop {
        let page = server.admin("GET", &path, "").json();
        assert_eq!(page["total"], 4);
        for ban in page["bans"].as_array().expect("a list") {
            let version = if ban["source"] == "file" { json!(null) } else { ban["version"].clone() };
            assert_eq!((version.is_null(), &version), (ban["source"] == "file", &ban["version"]), "{ban}");
            seen.extend(ban["key"].as_str().map(str::to_owned));
        }
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/bans?limit=3&after={next}");
    }
    assert_eq!(seen, ["user:a", "user:b", "user:c", "user:d"]);
    assert_eq!(server.admin("GET", "/v1/bans?after=nonsense", "").status, 400);

    let send = |method: &str, path: &str, header: (&str, &str), body: &str| {
        Client::to(server.admin).request(method, path, &[header], body.as_bytes())
    };
    let longer = json!({ "key": "user:a", "for": "2h" }).to_string();
    let late = send("POST", "/v1/bans", ("if-match", "\"0-1\""), &longer);
    assert_eq!((late.status, &late.json()["version"]), (412, &json!("0-3")), "{late}");
    assert_eq!(send("POST", "/v1/bans", ("if-none-match", "*"), &longer).status, 412);
    let changed = send("POST", "/v1/bans", ("if-match", "\"0-3\""), &longer);
    assert_eq!((changed.status, changed.header("etag")), (201, Some("\"0-4\"")), "{changed}");
    assert_eq!(send("DELETE", "/v1/bans/user:a", ("if-match", "\"0-3\""), "").status, 412);
    let would = server.admin("DELETE", "/v1/bans/user:a?dry_run=true", "").json();
    assert_eq!((&would["dry_run"], &would["changes"][0]["after"]), (&json!(true), &json!(null)), "{would}");
    assert_eq!(send("DELETE", "/v1/bans/user:a", ("if-match", "\"0-4\""), "").status, 200);
    let would = server.admin("POST", "/v1/bans?dry_run=true", &longer).json();
    assert_eq!(would["changes"][0]["name"], "user:a");
    assert_eq!(bans(&server), ["user:b", "user:c", "user:d"]);
}

#[test]
fn a_ban_by_hand_is_on_the_other_node_within_a_second_and_survives_a_kill() {
    let server = Server::start("");
    let other = server.start_beside();
    let mut waits = Waits::default();
    for user in ["bad", "worse", "evil"] {
        let ban = json!({ "key": format!("user:{user}"), "for": "1h" });
        assert_eq!(server.admin("POST", "/v1/bans", ban.to_string()).status, 201);
        waits.until("the other node has it", || other.check(&json!({ "user": user })).status == 403);
    }
    waits.are_within_a_second();
    let folder = std::sync::Arc::clone(&server.folder);
    server.kill();
    assert_eq!(Server::start_in(&folder).check(&json!({ "user": "evil" })).status, 403);
}
