//! What a rule says to the clients that it denies: its own message and body, and the longest wait that they are told.

use serde_json::{Value, json};
use tollgate_testkit::{Answer, Client, Server};

use crate::proxy::api::Api;
use crate::proxy::{get, in_front_of};

const MESSAGE: &str = "One call a day: see https://example.com/limits";
const BODY: &str = "{\"error\":\"limited\"}";
const PAGE: &str = "<h1>Later</h1>";
const HTML: (&str, &str) = ("accept", "text/html");

/// A rule per option, each on a path of its own.
fn rules() -> String {
    format!(
        "rules:
  - {{ id: words, match: /words, limit: 1/d, deny: {{ message: '{MESSAGE}' }} }}
  - {{ id: json, match: /json, limit: 1/d,
      deny: {{ message: '{MESSAGE}', body: '{BODY}', content_type: application/json }} }}
  - {{ id: page, match: /page, limit: 1/d, deny: {{ body: '{PAGE}', content_type: text/html }} }}
  - {{ id: capped, match: /capped, limit: 1/d, deny: {{ retry_after_max: 90s }} }}
"
    )
}

fn content_type(answer: &Answer) -> &str {
    answer.header("content-type").unwrap_or_default()
}

/// The limit of a ticket, as any node explains it.
fn explained(server: &Server, ticket: &str) -> Value {
    let answer = server.admin("POST", "/v1/explain", json!({ "ticket": ticket }).to_string());
    assert_eq!(answer.status, 200, "{answer}");
    answer.json()["rule"].clone()
}

/// A denial by each rule, asked for in both formats by `ask`, which has used up the limits.
fn check_forms(server: &Server, ask: impl Fn(&str, &[(&str, &str)]) -> Answer) {
    let words = ask("/words", &[]);
    assert_eq!((words.status, content_type(&words)), (429, "application/problem+json"));
    assert_eq!(words.json()["detail"], MESSAGE);
    assert!(words.json()["instance"].is_string(), "{words}");
    assert!(ask("/words", &[HTML]).text().contains(MESSAGE));

    let own = ask("/json", &[]);
    assert_eq!((own.status, content_type(&own), own.text().as_str()), (429, "application/json", BODY));
    assert_eq!(own.header("cache-control"), Some("no-store"));
    let ticket = own.header("tollgate-ticket").expect("the body has no place for it");
    assert_eq!(explained(server, ticket), "json");
    let html = ask("/json", &[HTML]);
    assert_eq!(content_type(&html), "text/html; charset=utf-8");
    assert!(html.text().contains(MESSAGE), "{html}");

    let page = ask("/page", &[HTML]);
    assert_eq!((page.status, content_type(&page), page.text().as_str()), (429, "text/html", PAGE));
    assert!(page.header("tollgate-ticket").is_some());
    assert_eq!(content_type(&ask("/page", &[])), "application/problem+json");

    let capped = ask("/capped", &[]);
    assert_eq!(capped.header("retry-after"), Some("90"));
    assert_eq!(capped.header("ratelimit"), Some("\"capped\";r=0;t=90"));
    assert!(capped.text().contains("rule capped allows 1/d, try again in 90s"), "{capped}");
}

#[test]
fn the_proxy_answers_as_the_rule_says() {
    let api = Api::echo();
    let server = in_front_of(&api, &rules());
    for path in ["/words", "/json", "/page", "/capped"] {
        assert_eq!(get(&server, path, &[]).status, 200);
    }
    check_forms(&server, |path, headers| get(&server, path, headers));
    for format in [&[][..], &[HTML]] {
        let words = get(&server, "/words", format);
        assert_eq!(words.header("tollgate-ticket"), None, "it is in the body");
    }
    assert_eq!(api.received().len(), 4, "denied requests do not reach the API");
}

#[test]
fn forward_auth_answers_as_the_rule_says() {
    let server = Server::start(&format!("trusted_proxies: [127.0.0.1]\n{}", rules()));
    let ask = |path: &str, headers: &[(&str, &str)]| {
        let described = [
            ("x-forwarded-method", "GET"),
            ("x-forwarded-host", "a.example"),
            ("x-forwarded-for", "203.0.113.9"),
            ("x-forwarded-uri", path),
        ];
        Client::to(server.http).request("GET", "/v1/forward-auth", &[&described, headers].concat(), b"")
    };
    for path in ["/words", "/json", "/page", "/capped"] {
        assert_eq!(ask(path, &[]).status, 200);
    }
    check_forms(&server, ask);
    for format in [&[][..], &[HTML]] {
        let words = ask("/words", format);
        let ticket = words.header("tollgate-ticket").expect("for gateways that drop the body");
        assert_eq!(explained(&server, ticket), "words");
    }
}

#[test]
fn a_check_has_the_message_and_the_exact_wait() {
    let server = Server::start(&rules());
    let check = |path: &str| {
        server.check(&json!({ "path": path }));
        server.check(&json!({ "path": path }))
    };
    for path in ["/words", "/json"] {
        let denied = check(path);
        assert_eq!((denied.status, &denied.json()["message"]), (429, &json!(MESSAGE)));
    }
    let capped = check("/capped");
    assert_eq!(capped.header("retry-after"), Some("90"));
    for wait in [&capped.json()["retry_after_ms"], &capped.json()["rules"][0]["retry_after_ms"]] {
        assert!(wait.as_u64().is_some_and(|wait| wait > 86_000_000), "it is exact: {capped}");
    }
}

#[test]
fn the_cap_of_one_rule_does_not_shorten_the_wait_of_another() {
    let server = Server::start(
        "rules:
  - { id: day, limit: 1/d, deny: { message: no more today, retry_after_max: 10s } }
  - { id: hour, limit: 1/h }
  - { id: minute, limit: 1/m }
",
    );
    server.check(&json!({}));
    let denied = server.check(&json!({}));
    assert_eq!((&denied.json()["rule"], &denied.json()["message"]), (&json!("day"), &json!("no more today")));
    let wait: u64 = denied.header("retry-after").and_then(|wait| wait.parse().ok()).expect("a wait");
    assert!((3_590..=3_600).contains(&wait), "that of the hour: {wait}");
}

#[test]
fn bans_and_missing_counters_have_their_own_words() {
    let server = Server::start(
        "bans: [{ key: 'user:evil', reason: scraping }]
rules: [{ id: all, key: user, limit: 1/d, deny: { message: slow down, retry_after_max: 1s } }]
",
    );
    let banned = server.check(&json!({ "user": "evil" }));
    assert_eq!(
        (banned.status, &banned.json()["message"]),
        (403, &json!("Banned until further notice: scraping"))
    );
}

#[test]
fn a_rule_of_the_database_keeps_its_words() {
    let server = Server::start("rules_db: sqlite:rules.db");
    let deny = json!({ "message": MESSAGE, "body": BODY, "content_type": "application/json", "retry_after_max": "1h" });
    let rule = json!({ "id": "stored", "match": "/stored", "limits": ["1/d"], "deny": deny });
    let added = server.admin("POST", "/v1/rules", rule.to_string());
    assert_eq!(added.status, 201, "{added}");
    for query in ["", "?as=written"] {
        let shown = server.admin("GET", &format!("/v1/rules/stored{query}"), "").json();
        let shown = if query.is_empty() { &shown } else { &shown["rule"] };
        assert_eq!(shown["deny"], deny, "{shown}");
    }
    server.check(&json!({ "path": "/stored" }));
    let denied = server.check(&json!({ "path": "/stored" }));
    assert_eq!((&denied.json()["message"], denied.header("retry-after")), (&json!(MESSAGE), Some("3600")));
    let bad = json!({ "id": "bad", "limit": "1/d", "deny": { "body": "x" } });
    let refused = server.admin("POST", "/v1/rules", bad.to_string());
    assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("deny.body")), "{refused}");
}
