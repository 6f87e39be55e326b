//! Why a request is allowed or denied: tickets of denials, and requests that are explained without charging them.

use std::sync::Arc;

use serde_json::{Value, json};
use tollgate_testkit::{Client, CommandOutput, Folder, Server, tollgate};

const RULES: &str = "rules:
  - { id: login, match: POST /login, key: email, limit: 1/y }
  - { id: address, key: ip, limit: 9/y }
  - { id: strict, key: ip, limit: 0/y, mode: shadow }
allow: ['ip:10.0.0.1']
bans: [{ key: 'ip:203.0.113.9', until: 2099-01-01T00:00:00Z, reason: scraping }]
";

fn login() -> Value {
    json!({ "method": "POST", "path": "/login", "email": "ann@example.com", "ip": "192.0.2.1" })
}

/// The ticket of a login that is denied.
fn ticket(server: &Server) -> String {
    server.check(&login());
    let denied = server.check(&login());
    assert_eq!(denied.status, 429, "{denied}");
    denied.json()["ticket"].as_str().expect("a denial has a ticket").to_owned()
}

fn explain(server: &Server, body: &Value) -> Value {
    let answer = server.admin("POST", "/v1/explain", body.to_string());
    assert_eq!(answer.status, 200, "{answer}");
    answer.json()
}

fn run(server: &Server, args: &[&str]) -> CommandOutput {
    let url = format!("http://{}", server.admin);
    tollgate(&[&["explain"], args, &["--admin", &url]].concat())
}

fn node(settings: &str) -> (Arc<Folder>, Server) {
    let folder = Folder::new();
    folder.write("key", "0123456789abcdef0123456789abcdef");
    folder.configure(&format!("{settings}\n{RULES}"));
    let server = Server::start_in(&folder);
    (folder, server)
}

#[test]
fn a_ticket_names_the_rule_and_its_limit() {
    let server = Server::start(RULES);
    let ticket = ticket(&server);
    let explained = explain(&server, &json!({ "ticket": ticket }));
    assert_eq!((&explained["decision"], &explained["rule"]), (&json!("denied"), &json!("login")));
    assert_eq!((&explained["ticket"]["limit"], &explained["ticket"]["used"]), (&json!("1/y"), &json!(1)));
    let source = explained["steps"][0]["source"].as_str().expect("a source");
    assert!(source.starts_with("file ") && source.contains(".yaml:"), "{source}");
    let ran = run(&server, &[&ticket]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("login") && ran.stdout.contains("1/y"), "{ran:?}");
    assert!(!ran.stdout.contains("ann@"), "a ticket does not contain the key: {ran:?}");
    assert_eq!(server.check(&json!({ "ip": "192.0.2.2" })).json()["ticket"], Value::Null);
}

#[test]
fn an_altered_ticket_prints_nothing_but_an_error() {
    let server = Server::start(RULES);
    let ticket = ticket(&server);
    let altered = format!("{}{}", &ticket[..30], ticket[30..].replace(['A', 'B', 'C', 'D'], "E"));
    let first = format!("B{}", &ticket[1..]);
    for (bad, message) in [
        (&altered[..], "was altered"),
        (&first, "was altered"),
        (&ticket[..ticket.len() - 8], "incomplete"),
        (&ticket[..20], "incomplete"),
        ("null", "a request that was allowed has none"),
        ("hello", "this is not a ticket"),
        ("no-ticket", "this is not a ticket"),
    ] {
        let ran = run(&server, &[bad]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{bad}: {ran:?}");
        assert!(ran.stderr.contains(message) && !ran.stderr.contains("newer version"), "{bad}: {ran:?}");
    }
    for body in [json!({}), json!({ "ticket": ticket, "request": {} }), json!({ "ticket": 5 })] {
        assert_eq!(server.admin("POST", "/v1/explain", body.to_string()).status, 400, "{body}");
    }
}

#[test]
fn nodes_with_the_same_key_file_explain_each_others_tickets() {
    let (_, one) = node("receipt_key_file: key");
    let (_, other) = node("receipt_key_file: key");
    assert_eq!(explain(&other, &json!({ "ticket": ticket(&one) }))["rule"], "login");
}

#[test]
fn a_node_without_a_key_file_explains_its_own_tickets_after_a_restart() {
    let (folder, one) = node("");
    let (_, other) = node("");
    let ticket = ticket(&one);
    let foreign = run(&other, &[&ticket]);
    let health = one.admin("GET", "/healthz", "").json();
    let key = health["ticket_key"]["id"].as_str().expect("the id of the key");
    assert_eq!((foreign.code, foreign.stdout.as_str()), (Some(1), ""), "{foreign:?}");
    assert!(foreign.stderr.contains(key), "it names the node to ask: {foreign:?}");
    one.stop();
    let one = Server::start_in(&folder);
    assert_eq!(explain(&one, &json!({ "ticket": ticket }))["rule"], "login");
}

#[test]
fn a_request_is_explained_step_by_step_and_not_charged() {
    let server = Server::start(RULES);
    server.check(&login());
    let explained = explain(&server, &json!({ "request": login() }));
    assert_eq!((&explained["decision"], &explained["rule"]), (&json!("denied"), &json!("login")));
    let steps = explained["steps"].as_array().expect("steps");
    let named = |step: &Value| (step["step"].clone(), step["rule"].clone(), step["charged"].clone());
    let named: Vec<_> = steps.iter().map(named).collect();
    let rule = |id: &str| (json!("rule"), json!(id), json!(false));
    let list = |name: &str| (json!(name), Value::Null, json!(false));
    assert_eq!(named, [list("allow_list"), list("ban"), rule("login"), rule("address"), rule("strict")]);
    assert_eq!(steps[2]["key"], "email:ann@example.com");
    assert!(steps[3]["why"].as_str().is_some_and(|why| why.contains("login denies")), "{explained}");
    assert_eq!(steps[4]["shadow"], true);
    for (ip, reason) in [("10.0.0.1", "allow_list"), ("203.0.113.9", "ban"), ("192.0.2.7", "ok")] {
        let explained = explain(&server, &json!({ "request": { "ip": ip } }));
        assert_eq!(explained["reason"], reason, "{explained}");
    }
    assert_eq!(server.used("address", "ip:192.0.2.1"), [1], "only the check was charged");
    let ran = run(&server, &["POST", "/login", "--ip", "192.0.2.1"]);
    assert!(ran.stdout.contains("login: skipped: the request has no email"), "{ran:?}");
    assert!(ran.stdout.contains(", would be charged"), "nothing is: {ran:?}");
}

#[test]
fn a_check_tells_what_shadow_rules_would_have_done() {
    let server = Server::start(RULES);
    let ran = tollgate(&["check", "/", "--ip", "192.0.2.1", "--http", &format!("http://{}", server.http)]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("shadow: rule strict (0/y) would deny it"), "{ran:?}");
}

#[test]
fn a_denied_response_has_its_ticket_as_the_instance() {
    let server = Server::start(&format!("trusted_proxies: [127.0.0.1]\n{RULES}"));
    let ask = |accept: &str| {
        let headers = [
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", "/"),
            ("x-forwarded-for", "203.0.113.9"),
            ("accept", accept),
        ];
        Client::to(server.http).request("GET", "/v1/forward-auth", &headers, b"")
    };
    let denied = ask("*/*");
    assert_eq!(denied.status, 403, "{denied}");
    let explained = explain(&server, &json!({ "ticket": denied.json()["instance"] }));
    assert_eq!((&explained["reason"], &explained["steps"][0]["step"]), (&json!("ban"), &json!("ban")));
    let page = ask("text/html").text();
    assert!(page.contains("Ticket: <code>"), "{page}");
}
