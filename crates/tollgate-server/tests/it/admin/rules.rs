//! The rules in force, as they are shown.

use serde_json::{Value, json};
use tollgate_testkit::Server;

/// One rule for each thing that can be said of a rule.
const RULES: &str = r#"
  - { id: plain, limit: 5/m }
  - { id: path, match: "POST /a/{id}/**", host: "*.example.com", key: [ip, user], limits: [5/m, 20/h], cost: 2, missing_key: deny, ambiguous_key: each, track: true }
  - { id: bucket, key: email, limit: 5/m, burst: 9, algorithm: token-bucket, refill: tick, tick: 10s, mode: shadow }
  - { id: calendar, key: mac, limit: 1000/month, algorithm: token-bucket, refill: calendar, missing_key: shared, mode: off }
  - { id: leaky, key: api_key, limit: 5/m, burst: 6, algorithm: leaky-bucket, max_wait: 10s }
  - { id: leaky-part, key: api_key, limit: 5/m, burst: 13, algorithm: leaky-bucket, hold_after: 8 }
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

/// A rule without what the API says beside it.
pub fn unmarked(mut rule: Value) -> Value {
    let map = rule.as_object_mut().expect("a rule");
    for name in ["source", "version"] {
        map.remove(name).expect("every rule tells where it is");
    }
    rule
}

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
    let unmarked: Vec<_> = rules.iter().cloned().map(unmarked).collect();
    let again = Server::start(&format!("rules: {}\n", json!(unmarked)));
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
                         "limits": ["5/m", "20/h"], "cost": 2, "missing_key": "deny", "ambiguous_key": "each", "track": true }),
        ),
        ("bucket", json!({ "burst": 9, "refill": "tick", "tick": "10s", "mode": "shadow" })),
        ("leaky", json!({ "burst": 6, "max_wait": "10s", "hold_after": null, "on_exceed": "hold" })),
        ("leaky-part", json!({ "burst": 13, "max_wait": null, "hold_after": 8, "on_exceed": "hold" })),
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
