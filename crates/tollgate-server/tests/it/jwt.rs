//! Claims of tokens as keys: only of tokens that verify.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde_json::{Value, json};
use tollgate_testkit::{Folder, Server, tollgate};

const SECRET: [u8; 32] = [7; 32];
const RULES: &str = "jwt: { keys_file: keys.json }
identity: { user: 'jwt:sub' }
rules:
  - { id: plan, match: /plan, key: 'jwt:plan', limit: 100/y, missing_key: deny }
  - { id: user, match: /user, key: user, limit: 100/y, missing_key: deny }
";

fn base64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn signed(header: &Value, claims: &Value, secret: &[u8]) -> String {
    let message = format!("{}.{}", base64(header.to_string()), base64(claims.to_string()));
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes());
    format!("{message}.{}", base64(signature))
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

fn claims() -> Value {
    json!({ "sub": "ann", "plan": "pro", "exp": now_s() + 3600 })
}

fn good() -> String {
    signed(&json!({ "alg": "HS256" }), &claims(), &SECRET)
}

fn folder() -> Arc<Folder> {
    let folder = Folder::new();
    let key = json!({ "kty": "oct", "alg": "HS256", "k": base64(SECRET) });
    folder.write("keys.json", json!({ "keys": [key] }).to_string());
    folder.configure(RULES);
    folder
}

fn send(server: &Server, path: &str, authorization: &str) -> u16 {
    server.check(&json!({ "path": path, "headers": { "Authorization": authorization } })).status
}

#[test]
fn two_different_tokens_are_denied_by_rules_that_count_by_a_claim() {
    let folder = folder();
    folder.configure(&RULES.replace(", missing_key: deny", ""));
    let server = Server::start_in(&folder);
    let send = |path: &str, other: &str| {
        let good = format!("Bearer {}", good());
        let headers = json!({ "Authorization": other, "authorization": good });
        server.check(&json!({ "path": path, "headers": headers })).status
    };
    for path in ["/plan", "/user"] {
        assert_eq!(send(path, "Bearer decoy"), 429, "{path}");
        assert_eq!(send(path, "Basic abc"), 200, "{path}");
    }
    assert_eq!(send("/other", "Bearer decoy"), 200);
}

/// With a decoy beside their token, banned users were not banned, and a user's own limit did not apply.
#[test]
fn a_second_token_hides_neither_a_ban_nor_a_users_own_limit() {
    let folder = folder();
    folder.configure(
        "jwt: { keys_file: keys.json }
identity: { user: 'jwt:sub' }
rules: [{ id: own, uid: bob, url: /own, time: hour, requests: 100 }]
bans: [{ key: 'user:ann' }]",
    );
    let server = Server::start_in(&folder);
    let token = |sub: &str| signed(&json!({ "alg": "HS256" }), &json!({ "sub": sub }), &SECRET);
    let raw = |path: &str, authorization: &str| send(&server, path, authorization);
    let send = |path: &str, tokens: &[&str]| {
        let tokens: Vec<_> = tokens.iter().map(|token| format!("Bearer {token}")).collect();
        raw(path, &tokens.join(", "))
    };
    let [ann, bob, carol] = ["ann", "bob", "carol"].map(token);
    assert_eq!(send("/", &[&ann]), 403);
    assert_eq!(send("/own", &[&bob]), 200);
    for decoy in ["decoy", &carol] {
        for tokens in [[&ann, decoy], [decoy, &ann]] {
            assert_eq!(send("/", &tokens), 403, "one of them is banned");
        }
        for tokens in [[&bob, decoy], [decoy, &bob]] {
            assert_eq!(send("/own", &tokens), 429, "which of them is the user is ambiguous");
            assert_eq!(send("/", &tokens), 200);
        }
        assert_eq!(
            send("/", &[decoy, &ann, "another", &carol, decoy]),
            200,
            "servers use the first or the last"
        );
    }
    assert_eq!(server.used("own", "user:bob"), [1]);
    assert_eq!(raw("/", &format!("Bearer {ann},")), 403, "some servers split at commas");
}

/// A regression: servers that split at white space saw a token, and the rule none.
#[test]
fn no_white_space_hides_a_token() {
    let folder = folder();
    folder.configure(&RULES.replace(", missing_key: deny", ""));
    let server = Server::start_in(&folder);
    for between in ["\t", " \t", "  "] {
        assert_eq!(send(&server, "/plan", &format!("Bearer{between}{}", good())), 200);
    }
    assert_eq!(server.used("plan", "jwt:plan:pro"), [3]);
    for behind in ["x", "\tx", "x y"] {
        let authorization = format!("Bearer {} {behind}", good());
        assert_eq!(send(&server, "/plan", &authorization), 429, "which word is the token is ambiguous");
    }
}

#[test]
fn the_claims_of_a_verified_token_are_its_keys() {
    let server = Server::start_in(&folder());
    assert_eq!(send(&server, "/plan", &format!("Bearer {}", good())), 200);
    assert_eq!(send(&server, "/plan", &format!("bearer {}", good())), 200);
    assert_eq!(send(&server, "/user", &format!("Bearer {}", good())), 200);
    assert_eq!(server.used("plan", "jwt:plan:pro"), [2]);
    assert_eq!(server.used("user", "user:ann"), [1]);
}

#[test]
fn a_token_that_does_not_verify_has_no_claims() {
    let server = Server::start_in(&folder());
    let token = good();
    let (message, signature) = token.rsplit_once('.').expect("three parts");
    let header = message.split('.').next().expect("a header");
    let mut other = claims();
    other["plan"] = json!("free");
    let tampered = format!("{header}.{}.{signature}", base64(other.to_string()));
    let mut expired = claims();
    expired["exp"] = json!(now_s() - 3600);
    let none = json!({ "alg": "none" });
    let unsigned = format!("{}.{}.", base64(none.to_string()), base64(claims().to_string()));
    for (what, authorization) in [
        ("none", String::new()),
        ("tampered", format!("Bearer {tampered}")),
        ("expired", format!("Bearer {}", signed(&json!({ "alg": "HS256" }), &expired, &SECRET))),
        ("unsigned", format!("Bearer {unsigned}")),
        ("none, but signed", format!("Bearer {}", signed(&none, &claims(), &SECRET))),
        ("of another key", format!("Bearer {}", signed(&json!({ "alg": "HS256" }), &claims(), &[8; 32]))),
        ("cut", format!("Bearer {message}")),
        ("basic", format!("Basic {token}")),
        ("garbage", "Bearer \u{0}\u{7f}..".to_owned()),
    ] {
        assert_eq!(send(&server, "/plan", &authorization), 429, "{what}");
        assert_eq!(send(&server, "/user", &authorization), 429, "{what}");
    }
    for plan in ["pro", "free"] {
        assert_eq!(server.used("plan", &format!("jwt:plan:{plan}")), [0]);
    }
}

#[test]
fn claims_cannot_be_set_by_a_field_of_a_check() {
    let server = Server::start_in(&folder());
    for hit in [
        json!({ "path": "/plan", "attributes": { "jwt:plan": "pro", "plan": "pro" } }),
        json!({ "path": "/plan", "headers": { "jwt:plan": "pro", "plan": "pro" } }),
        json!({ "path": "/plan?plan=pro&jwt:plan=pro" }),
        json!({ "path": "/user", "attributes": { "user": "ann", "sub": "ann", "jwt:sub": "ann" } }),
    ] {
        assert_eq!(server.check(&hit).status, 429, "{hit}");
    }
    let unknown = server.check(&json!({ "path": "/plan", "jwt": { "plan": "pro" } }));
    assert_eq!((unknown.status, &unknown.json()["field"]), (400, &json!("jwt")));
}

#[test]
fn a_manual_ban_may_name_a_claim_that_no_rule_uses() {
    let folder = folder();
    let server = Server::start_in(&folder);
    let bearer = format!("Bearer {}", signed(&json!({ "alg": "HS256" }), &json!({ "org": "evil" }), &SECRET));
    assert_eq!(send(&server, "/", &bearer), 200);
    server.admin("POST", "/v1/bans", json!({ "key": "jwt:org:evil", "for": "1h" }).to_string());
    assert_eq!(send(&server, "/", &bearer), 403);
    folder.configure(&RULES.replace("100/y", "99/y"));
    server.wait_for_log("rules generation 1 → 2");
    assert_eq!(send(&server, "/", &bearer), 403, "after a reload");
    assert_eq!(server.stop().0.code(), Some(0));
    assert_eq!(send(&Server::start_in(&folder), "/", &bearer), 403, "after a restart");
}

#[test]
fn a_sighup_reloads_changed_keys() {
    let folder = folder();
    let server = Server::start_in(&folder);
    let bearer = format!("Bearer {}", good());
    assert_eq!(send(&server, "/plan", &bearer), 200);
    let key = json!({ "kty": "oct", "k": base64([9; 32]) });
    folder.write("keys.json", json!({ "keys": [key] }).to_string());
    server.signal("HUP");
    server.wait_for_log("rules generation 1 → 2");
    assert_eq!(send(&server, "/plan", &bearer), 429);
}

#[test]
fn a_key_set_that_cannot_be_used_stops_the_start() {
    let folder = folder();
    let config = folder.path("tollgate.yaml");
    let config = config.to_str().expect("a plain path");
    for keys in ["", "{}", r#"{"keys":[]}"#, r#"{"keys":[{"kty":"oct","k":"c2hvcnQ"}]}"#] {
        folder.write("keys.json", keys);
        let ran = tollgate(&["serve", "-c", config]);
        assert_eq!(ran.code, Some(3), "{ran:?}");
        assert!(ran.stderr.contains("jwt.keys_file") && !ran.stderr.contains("c2hvcnQ"), "{ran:?}");
    }
    std::fs::remove_file(folder.path("keys.json")).expect("it is there");
    let ran = tollgate(&["serve", "-c", config]);
    assert!(ran.code == Some(3) && ran.stderr.contains("keys.json cannot be read"), "{ran:?}");
}
