//! The sample of live requests, when not all clients fit it.

use serde_json::{Value, json};
use tollgate_testkit::{Server, tollgate};

const RULES: &str = "rules:
  - { id: all, limit: 100000/h }
  - { id: path, key: path, limit: 100000/h }
  - { id: each, key: ip, limit: 100000/h }
  - { id: narrow, key: [ip, path], limit: 100000/h }
  - { id: unused, match: /other, limit: 100000/h }
  - { id: unset, mode: off, limit: 100000/h }
";

/// Clients whose requests do not all fit the sample, because each is long.
const CLIENTS: usize = 250;
const PATH_BYTES: usize = 12_000;

fn busy() -> Server {
    let server = Server::start(RULES);
    let path = format!("/{}", "x".repeat(PATH_BYTES));
    for n in 0..CLIENTS {
        server.check(&json!({ "path": path, "ip": format!("192.0.2.{n}") }));
    }
    server
}

fn notes(of: &Value) -> Vec<&str> {
    of["notes"].as_array().expect("a list").iter().filter_map(Value::as_str).collect()
}

#[test]
fn rules_whose_keys_clients_share_are_named_when_clients_are_sampled() {
    let server = busy();
    let tried = server.admin("POST", "/v1/simulate", json!({ "rules": RULES, "sample": "live" }).to_string());
    let tried = tried.json();
    let one_in = tried["sampled_one_in"].as_u64().expect("a number");
    assert!(one_in > 1, "{tried}");
    let expected = [
        format!("rule all counts all clients together: one client in {one_in} is recorded"),
        format!(
            "rule path counts by path, which several clients may share: one client in {one_in} is recorded"
        ),
    ];
    let found = notes(&tried);
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, expected) in found.iter().zip(&expected) {
        assert!(found.starts_with(expected), "{found}");
    }
    let file = server.folder.write("new.yaml", RULES);
    let admin = format!("http://{}", server.admin);
    let args = ["simulate", "--live", "-c", file.to_str().expect("a plain path"), "--admin", &admin];
    let printed = tollgate(&args);
    assert!(printed.stdout.contains(&expected[0]) || printed.stderr.contains(&expected[0]), "{printed:?}");
    let report = tollgate(&[&args[..], &["--json"]].concat());
    let report: Value = serde_json::from_str(&report.stdout).expect("JSON");
    assert!(notes(&report).iter().any(|note| note.starts_with(&expected[1])), "{report}");
}

#[test]
fn no_rule_is_named_when_every_client_is_recorded() {
    let server = Server::start(RULES);
    server.check(&json!({ "path": "/", "ip": "192.0.2.1" }));
    let tried = server.admin("POST", "/v1/simulate", json!({ "rules": RULES, "sample": "live" }).to_string());
    assert_eq!((&tried.json()["sampled_one_in"], notes(&tried.json()).len()), (&json!(1), 0), "{tried}");
}
