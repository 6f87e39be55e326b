//! The level and the format of the log change while the server runs.

use serde_json::{Value, json};
use tollgate_testkit::{Client, Folder, Server, eventually};

const RULES: &str = "rules: [{ id: a, key: user, limit: 5/y }]\n";

fn in_force(server: &Server) -> Value {
    server.admin("GET", "/v1/log", "").json()
}

#[test]
fn the_configuration_sets_the_log_and_a_reload_changes_it() {
    let folder = Folder::new();
    folder.configure(RULES);
    let server = Server::start_in(&folder);
    folder.configure(&format!("log: {{ format: json }}\n{}", RULES.replace("5/y", "6/y")));
    server.wait_for_log("rules generation 1 → 2");
    let log = server.log();
    let line = log.lines().find(|line| line.contains("rules generation")).expect("it is logged");
    let line: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!((&line["level"], &line["message"]), (&json!("INFO"), &json!("rules generation 1 → 2")));
    folder.configure(&format!("log: {{ level: warn }}\n{RULES}"));
    eventually("the file is in force", || in_force(&server) == json!({ "level": "warn", "format": "text" }));
    let (ended, log) = server.stop();
    assert!(ended.success());
    assert!(!log.contains("stopping"), "{log}");
}

#[test]
fn the_admin_api_changes_the_log_of_a_node() {
    let folder = Folder::new();
    folder
        .write("tokens", "read reader-token-0123456789abcdef r\noperate operator-token-0123456789abcdef o\n");
    folder.configure(&format!("tokens_file: tokens\n{RULES}"));
    let server = Server::start_in(&folder);
    let mut client = Client::to(server.admin);
    let mut call = |method: &str, path: &str, token: &str, body: &str| {
        let authorization = format!("Bearer {token}-token-0123456789abcdef");
        client.request(method, path, &[("authorization", &authorization)], body.as_bytes())
    };
    let foreign = [("host", "localhost"), ("origin", "http://evil.example")];
    assert_eq!(Client::to(server.admin).request("PUT", "/v1/log", &foreign, b"{}").status, 401);
    let info = json!({ "level": "info", "format": "text" });
    assert_eq!(call("GET", "/v1/log", "reader", "").json(), info);
    assert_eq!(call("PUT", "/v1/log", "reader", r#"{"level":"debug"}"#).status, 403);
    let tried = call("PUT", "/v1/log?dry_run=true", "operator", r#"{"level":"debug"}"#).json();
    assert_eq!(tried["changes"][0]["after"], json!({ "level": "debug", "format": "text" }));
    assert_eq!(call("GET", "/v1/log", "reader", "").json(), info, "a dry run changes nothing");
    for bad in [r#"{"level":"trace"}"#, r#"{"levl":"info"}"#, r#"{"format":1}"#, "[]", ""] {
        assert_eq!(call("PUT", "/v1/log", "operator", bad).status, 400, "{bad}");
    }
    let changed = call("PUT", "/v1/log", "operator", r#"{"level":"debug","format":"json"}"#);
    assert_eq!((changed.status, changed.json()), (200, json!({ "level": "debug", "format": "json" })));
    server.wait_for_log("the log was changed");
    let log = server.log();
    let line = log.lines().find(|line| line.contains("the log was changed")).expect("it is logged");
    let line: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(line["caller"], "o");

    // Another setting of the file leaves the log alone.
    let rules = RULES.replace("5/y", "6/y");
    folder.configure(&format!("tokens_file: tokens\n{rules}"));
    server.wait_for_log("rules generation 1 → 2");
    assert_eq!(call("GET", "/v1/log", "reader", "").json()["level"], "debug");
}
