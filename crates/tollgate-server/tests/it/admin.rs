//! The admin address: health, metrics, rules, bans, keys, and who may use them.

mod access;
mod audit;
mod bans;
mod doors;
mod editing;
mod import;
mod keys;
mod live;
mod live_sample;
mod log_replay;
mod masked_keys;
mod rules;
mod switches;

use serde_json::json;
use tollgate_testkit::{Answer, Client, Server};

#[test]
fn health_and_readiness_need_no_token() {
    let server = Server::start("rules: [{ id: a, limit: 1/h }]");
    let health = server.admin("GET", "/healthz", "").json();
    assert_eq!((&health["status"], &health["enforce"]), (&json!("ok"), &json!("on")));
    let ready = server.admin("GET", "/readyz", "");
    assert_eq!((ready.status, ready.json()), (200, json!({ "status": "ready", "rules_generation": 1 })));
    let mut client = Client::to(server.admin);
    assert_eq!(client.request("HEAD", "/healthz", &[("host", "evil.example")], b"").status, 200);
}

#[test]
fn the_page_contains_no_data_and_is_open_under_any_name() {
    let server = Server::start("rules: [{ id: login, match: POST /login, key: user, limits: [5/m, 20/h] }]");
    let page = server.admin("GET", "/", "");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    assert!(policy.ends_with("require-trusted-types-for 'script'"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert!(!page.text().contains("login"), "{}", page.text());
    let elsewhere =
        |path: &str| Client::to(server.admin).request("GET", path, &[("host", "evil.example")], b"");
    assert_eq!(elsewhere("/").status, 200);
    assert_eq!(elsewhere("/v1/rules").status, 403, "DNS rebinding");
}

#[test]
fn a_file_of_the_dashboard_is_sent_once() {
    let server = Server::start("rules: []");
    let script = server.admin("GET", "/dashboard/main.js", "");
    assert_eq!((script.status, script.header("cache-control")), (200, Some("no-cache")));
    let tag = script.header("etag").expect("a tag").to_owned();
    let again =
        Client::to(server.admin).request("GET", "/dashboard/main.js", &[("if-none-match", &tag)], b"");
    assert_eq!((again.status, again.text().len()), (304, 0));
    for missing in ["/dashboard/", "/dashboard/index.html", "/dashboard/other.js", "/dashboard/../main.js"] {
        assert_eq!(server.admin("GET", missing, "").status, 404, "{missing}");
    }
}

#[test]
fn a_caller_can_ask_for_its_name_and_role() {
    let server = Server::start("rules: []");
    assert_eq!(server.admin("GET", "/v1/caller", "").json(), json!({ "name": "local", "role": "admin" }));
}

#[test]
fn an_automatic_ban_is_logged() {
    let server = Server::start(
        "rules: [{ id: a, key: user, limit: 0/h, ban: { key: [user], after: 1, within: 1h, for: 1h, max: 1h } }]",
    );
    server.check(&json!({ "user": "somebody" }));
    server.wait_for_log("keys were banned after repeated denials");
    assert!(!server.log().contains("somebody"), "{}", server.log());
}

#[test]
fn metrics_are_openmetrics_text_with_labels_from_the_configuration_only() {
    let server = Server::start(
        "rules: [{ id: a, key: user, limit: 1/h, ban: { key: [user], after: 2, within: 1h, for: 1h, max: 1h } }]",
    );
    for _ in 0..4 {
        server.check(&json!({ "user": "made-up\"\n{}", "ip": "203.0.113.9", "path": "/secret" }));
    }
    let answer = server.admin("GET", "/metrics", "");
    assert_eq!(
        answer.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
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
        assert!(page.lines().any(|each| without_exemplar(each) == line), "{line} is not in\n{page}");
    }
    let mut described = Vec::new();
    let mut suffixes: &[&str] = &[];
    for line in page.lines() {
        if let Some(described_now) = line.strip_prefix("# TYPE ") {
            let (name, kind) = described_now.split_once(' ').expect("a name and a kind");
            assert!(!described.contains(&name), "{line}");
            suffixes = match kind {
                "counter" => &["_total"],
                "gauge" => &[""],
                "info" => &["_info"],
                "histogram" => &["_sum", "_count", "_bucket"],
                _ => panic!("{line}"),
            };
            described.push(name);
        } else if !line.starts_with("# ") {
            let (series, value) = without_exemplar(line).rsplit_once(' ').expect("a value");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let name = series.split('{').next().expect("a name");
            let suffix = described.last().and_then(|described| name.strip_prefix(*described));
            assert!(suffix.is_some_and(|suffix| suffixes.contains(&suffix)), "{line} stands below its type");
        }
    }
    assert!(page.ends_with("\n# EOF\n"));
}

fn without_exemplar(line: &str) -> &str {
    line.split_once(" # ").map_or(line, |(sample, _)| sample)
}

fn head_of(server: &Server, path: &str) -> Answer {
    let mut client = Client::to(server.admin);
    client.write(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes());
    client.head()
}

#[test]
fn every_described_route_exists() {
    let server = Server::start("rules: [{ id: a, limit: 9/h }]");
    let described = server.admin("GET", "/openapi.json", "");
    assert_eq!((described.status, described.header("content-type")), (200, Some("application/json")));
    let described = described.json();
    assert_eq!(described["openapi"], "3.1.0");
    for (path, operations) in described["paths"].as_object().expect("paths") {
        let decides = operations.get("servers").is_some();
        for (method, operation) in
            operations.as_object().expect("operations").iter().filter(|(name, _)| *name != "servers")
        {
            let method = method.to_uppercase();
            let path = path.replace(['{', '}'], "");
            let has_no_end = !operation["responses"]["200"]["content"]["text/event-stream"].is_null();
            let answer = match decides {
                true => server.request(&method, &path, ""),
                false if has_no_end => head_of(&server, &path),
                false => server.admin(&method, &path, ""),
            };
            assert_ne!(answer.status, 405, "{method} {path}");
            let nothing = answer.status == 404 && answer.text().contains("there is nothing at");
            assert!(!nothing, "{method} {path}: {answer}");
            let status = answer.status.to_string();
            assert!(
                operation["responses"].get(&status).is_some(),
                "{method} {path} answers {status}: {answer}"
            );
        }
    }
}
