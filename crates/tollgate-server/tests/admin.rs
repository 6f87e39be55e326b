//! The admin address: health, metrics, rules, bans, keys, and who may use them.

mod harness;

use std::sync::Arc;

use harness::{Client, Folder, Server, eventually, tollgate};
use serde_json::{Value, json};

#[test]
fn health_and_readiness_are_told_to_everybody() {
    let server = Server::start("rules: [{ id: a, limit: 1/h }]");
    let health = server.admin("GET", "/healthz", "").json();
    assert_eq!((&health["status"], &health["enforce"]), (&json!("ok"), &json!("on")));
    let ready = server.admin("GET", "/readyz", "");
    assert_eq!((ready.status, ready.json()), (200, json!({ "status": "ready", "rules_generation": 1 })));
    let mut client = Client::to(server.admin);
    assert_eq!(client.ask("HEAD", "/healthz", &[("host", "evil.example")], b"").status, 200);
}

#[test]
fn the_page_shows_the_rules_and_runs_no_scripts() {
    let server = Server::start("rules: [{ id: login, match: POST /login, key: user, limits: [5/m, 20/h] }]");
    server.check(&json!({ "method": "POST", "path": "/login", "user": "<script>" }));
    let page = server.admin("GET", "/", "");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(
        page.header("content-security-policy").is_some_and(|policy| policy.starts_with("default-src 'none'"))
    );
    let text = page.text();
    assert!(
        text.contains("<td>login</td><td>POST /login</td><td>5/m, 20/h</td><td>enforce</td><td>1</td>"),
        "{text}"
    );
    assert!(!text.contains("<script"), "{text}");
    let elsewhere = Client::to(server.admin).ask("GET", "/", &[("host", "evil.example")], b"");
    assert_eq!(elsewhere.status, 403);
}

#[test]
fn an_earned_ban_is_heard_of_in_the_log() {
    let server = Server::start(
        "rules: [{ id: a, key: user, limit: 0/h, ban: { key: [user], after: 1, within: 1h, for: 1h, max: 1h } }]",
    );
    server.check(&json!({ "user": "somebody" }));
    server.wait_for_log("keys were banned after repeated denials");
    assert!(!server.log().contains("somebody"), "{}", server.log());
}

#[test]
fn metrics_are_prometheus_text_with_labels_from_the_configuration_only() {
    let server = Server::start(
        "rules: [{ id: a, key: user, limit: 1/h, ban: { key: [user], after: 2, within: 1h, for: 1h, max: 1h } }]",
    );
    for _ in 0..4 {
        server.check(&json!({ "user": "made-up\"\n{}", "ip": "203.0.113.9", "path": "/secret" }));
    }
    let answer = server.admin("GET", "/metrics", "");
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let page = answer.text();
    for made_up in ["made-up", "203.0.113.9", "secret"] {
        assert!(!page.contains(made_up), "{page}");
    }
    for line in [
        r#"tollgate_decisions_total{reason="ok"} 1"#,
        r#"tollgate_decisions_total{reason="limit"} 2"#,
        r#"tollgate_decisions_total{reason="ban"} 1"#,
        r#"tollgate_rule_hits_total{rule="a",outcome="allowed"} 1"#,
        r#"tollgate_rule_hits_total{rule="a",outcome="denied"} 2"#,
        r#"tollgate_rule_bans_total{rule="a"} 1"#,
        "tollgate_bans 1",
        "tollgate_rules 1",
        "tollgate_rules_generation 1",
    ] {
        assert!(page.lines().any(|each| each == line), "{line} is not in\n{page}");
    }
    let mut described = Vec::new();
    for line in page.lines() {
        if let Some(described_now) = line.strip_prefix("# TYPE ") {
            let (name, kind) = described_now.split_once(' ').expect("a name and a kind");
            assert!(matches!(kind, "counter" | "gauge") && !described.contains(&name), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            described.push(name);
        } else if !line.starts_with("# HELP ") {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let name = series.split('{').next();
            assert_eq!(name, described.last().copied(), "{line} stands below its type");
        }
    }
    assert!(page.ends_with('\n'));
}

/// One rule for each thing that can be said of a rule.
const RULES: &str = r#"
  - { id: plain, limit: 5/m }
  - { id: path, match: "POST /a/{id}/**", host: "*.example.com", key: [ip, user], limits: [5/m, 20/h], cost: 2, missing_key: deny, track: true }
  - { id: bucket, key: email, limit: 5/m, burst: 9, algorithm: token-bucket, refill: tick, tick: 10s, mode: shadow }
  - { id: calendar, key: mac, limit: 1000/month, algorithm: token-bucket, refill: calendar, missing_key: shared, mode: off }
  - { id: leaky, key: api_key, limit: 5/m, burst: 6, algorithm: leaky-bucket, max_wait: 10s }
  - { id: nodelay, key: "header:X-A", limit: 5/m, algorithm: leaky-bucket, on_exceed: reject }
  - { id: fixed, key: "cookie:c", limit: 30/10s, algorithm: fixed-window, window: first-hit, on_store_error: closed }
  - { id: log, key: "query:q", limit: 5/m, algorithm: sliding-log, count_denied: true }
  - { id: compact, key: "attr:a", limit: 5/m, algorithm: sliding-compact, resolution: 5s, enforce_percent: 10 }
  - { id: counter, key: host, limit: 5/m, algorithm: sliding-counter, ban: { key: [ip], after: 3, within: 10m, for: 1h, max: 24h } }
  - { id: tiers, key: path, limit: 5/d, algorithm: tiered-window, levels: [m, h] }
  - { id: by, key: user, limits_by: { attr: plan, free: [10/m], pro: [100/m, 1000/h] } }
  - { id: over, key: [email, ip], limit: 5/m, overrides: [{ email: ceo@example.com, limits: [50/m] }, { email: a@b.c, ip: 203.0.113.9, limit: 7/m }] }
  - { id: short, url: /search, time: minute, requests: 5 }
  - { id: own, uid: "42", url: /search, time: minute, requests: 50 }
"#;

#[test]
fn a_rule_written_back_can_be_read_again() {
    let server = Server::start(&format!("rules:{RULES}"));
    let written = server.admin("GET", "/v1/rules", "").json();
    assert_eq!(written["generation"], 1);
    let rules = written["rules"].as_array().expect("a list");
    assert_eq!(rules.len(), RULES.matches("{ id: ").count());
    for rule in rules {
        let id = rule["id"].as_str().expect("an id");
        assert_eq!(&server.admin("GET", &format!("/v1/rules/{id}"), "").json(), rule);
    }
    let again = Server::start(&format!("rules: {}\n", written["rules"]));
    let rewritten = again.admin("GET", "/v1/rules", "").json();
    for (rule, again) in rules.iter().zip(rewritten["rules"].as_array().expect("a list")) {
        assert_eq!(again, rule);
    }
    assert_eq!(server.admin("GET", "/v1/rules/nobody", "").status, 404);
}

#[test]
fn a_rule_reads_back_as_it_was_written() {
    let server = Server::start(&format!("rules:{RULES}"));
    let show = |id: &str| server.admin("GET", &format!("/v1/rules/{id}"), "").json();
    for (id, part) in [
        (
            "path",
            json!({ "match": "POST /a/{id}/**", "host": "*.example.com", "key": ["ip", "user"],
                         "limits": ["5/m", "20/h"], "cost": 2, "missing_key": "deny", "track": true }),
        ),
        ("bucket", json!({ "burst": 9, "refill": "tick", "tick": "10s", "mode": "shadow" })),
        ("leaky", json!({ "burst": 6, "max_wait": "10s", "on_exceed": "hold" })),
        ("fixed", json!({ "limits": ["30/10s"], "window": "first-hit", "on_store_error": "closed" })),
        (
            "counter",
            json!({ "ban": { "key": ["ip"], "after": 3, "within": "10m", "for": "1h", "max": "1d" } }),
        ),
        ("compact", json!({ "resolution": "5s", "enforce_percent": 10 })),
        ("tiers", json!({ "levels": ["m", "h"] })),
        ("own", json!({ "uid": "42" })),
    ] {
        let rule = show(id);
        for (name, value) in part.as_object().expect("an object") {
            assert_eq!(&rule[name], value, "{rule}");
        }
    }
}

fn bans(server: &Server) -> Vec<String> {
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
        json!([{ "key": "user:evil", "until": null, "reason": "in the file", "source": "file", "strikes": 0 }])
    );
    let refused = server.admin("DELETE", "/v1/bans/user:evil", "");
    assert_eq!(refused.status, 409, "{refused}");
    // A shorter ban by hand once took its place, and could be lifted.
    let shorter = json!({ "key": "user:evil", "for": "1h" }).to_string();
    assert_eq!(server.admin("POST", "/v1/bans", shorter).status, 409);
    assert_eq!(server.check(&json!({ "user": "evil" })).status, 403);
}

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
fn a_tracked_key_tells_its_tries_denials_and_latest_times() {
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

#[test]
fn without_tokens_only_local_hosts_and_the_own_origin_are_served() {
    let server = Server::start("");
    let own = server.admin.to_string();
    let status =
        |headers: &[(&str, &str)]| Client::to(server.admin).ask("GET", "/v1/bans", headers, b"").status;
    assert_eq!(status(&[("host", &own)]), 200);
    assert_eq!(status(&[("host", "localhost:7070")]), 200);
    assert_eq!(status(&[("host", "[::1]:7070")]), 200);
    assert_eq!(status(&[("host", &own), ("origin", &format!("http://{own}"))]), 200);
    for host in ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:7070", "203.0.113.9"] {
        assert_eq!(status(&[("host", host)]), 403, "{host}");
    }
    for origin in ["http://evil.example", "null", &format!("http://{own}.evil.example"), ""] {
        assert_eq!(status(&[("host", &own), ("origin", origin)]), 403, "{origin}");
    }
    let mut client = Client::to(server.admin);
    client.write(b"GET /v1/bans HTTP/1.1\r\n\r\n");
    assert_eq!(client.answer().status, 403, "no Host at all");
    let ban = json!({ "key": "user:ann", "for": "1h" }).to_string();
    let forged = Client::to(server.admin).ask(
        "POST",
        "/v1/bans",
        &[("origin", "http://evil.example")],
        ban.as_bytes(),
    );
    assert_eq!((forged.status, bans(&server).len()), (403, 0));
}

const READER: &str = "reader-0123456789";
const OPERATOR: &str = "operator-0123456789";

fn with_tokens() -> Arc<Folder> {
    let folder = Folder::new();
    folder.write("tokens", format!("# who may do what\nread {READER}\noperate {OPERATOR}\n"));
    folder.configure("tokens_file: tokens\nrules: [{ id: a, limit: 9/y }]");
    folder
}

#[test]
fn tokens_have_roles() {
    let server = Server::start_in(&with_tokens());
    let ban = json!({ "key": "user:ann", "for": "1h" }).to_string();
    let ask = |method: &str, path: &str, token: &str| {
        let authorization = format!("Bearer {token}");
        let headers: &[_] = if token.is_empty() { &[] } else { &[("authorization", authorization.as_str())] };
        let body = if method == "POST" { ban.as_str() } else { "" };
        Client::to(server.admin).ask(method, path, headers, body.as_bytes())
    };
    for (method, path) in
        [("GET", "/v1/rules"), ("GET", "/v1/bans"), ("GET", "/metrics"), ("GET", "/v1/keys?rule=a")]
    {
        for (token, status) in [("", 401), ("wrong-0123456789", 401), (READER, 200), (OPERATOR, 200)] {
            assert_eq!(ask(method, path, token).status, status, "{method} {path} {token}");
        }
    }
    assert_eq!(ask("GET", "/v1/rules", "").header("www-authenticate"), Some("Bearer"));
    for (method, path, done) in
        [("POST", "/v1/bans", 201), ("DELETE", "/v1/bans/user:ann", 200), ("DELETE", "/v1/keys?rule=a", 200)]
    {
        for (token, status) in [("", 401), (READER, 403), (OPERATOR, done)] {
            assert_eq!(ask(method, path, token).status, status, "{method} {path} {token}");
        }
    }
    assert_eq!(ask("GET", "/healthz", "").status, 200);
    assert_eq!(ask("GET", "/readyz", "").status, 200);
    let elsewhere = [("host", "tollgate.example"), ("authorization", &format!("Bearer {READER}"))];
    assert_eq!(Client::to(server.admin).ask("GET", "/v1/rules", &elsewhere, b"").status, 200);
    for secret in [READER, OPERATOR, "wrong-0123456789"] {
        assert!(!server.log().contains(secret), "the log tells no tokens");
    }
}

#[test]
fn the_command_line_sends_the_token_of_its_environment() {
    let server = Server::start_in(&with_tokens());
    let admin = format!("http://{}", server.admin);
    let run = |token: &str, args: &[&str]| {
        let mut command = harness::binary();
        if !token.is_empty() {
            command.env("TOLLGATE_TOKEN", token);
        }
        harness::run(command.args(args).args(["--admin", &admin])).code
    };
    assert_eq!(run("", &["ban", "ls"]), Some(5));
    assert_eq!(run(READER, &["ban", "ls"]), Some(0));
    assert_eq!(run(READER, &["ban", "add", "user:ann"]), Some(5));
    assert_eq!(run(OPERATOR, &["ban", "add", "user:ann"]), Some(0));
    assert_eq!(run("wrong-0123456789", &["key", "show", "a"]), Some(5));
}

#[test]
fn an_admin_address_open_to_others_needs_tokens() {
    let folder = Folder::new();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let config = folder.write("open.yaml", format!("listen: {{ http: off, admin: '{address}' }}\n"));
        let ran = tollgate(&["serve", "-c", config.to_str().expect("a plain path")]);
        assert_eq!(ran.code, Some(3), "{ran:?}");
        assert!(ran.stderr.contains("tokens_file") && ran.stderr.contains(address), "{ran:?}");
    }
    let folder = with_tokens();
    let config = folder.write("open.yaml", "listen: { http: off, admin: 0.0.0.0:0 }\ntokens_file: tokens\n");
    let server = Server::start_at(&folder, &config);
    assert!(server.log().contains("admin listens on 0.0.0.0:"));
}
