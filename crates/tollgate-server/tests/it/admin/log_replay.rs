//! `/v1/simulate` with a log in place of the live requests.

use std::fmt::Write;

use serde_json::{Value, json};
use tollgate_testkit::{Answer, Client, Folder, Server, tollgate};

const RULES: &str = "- { id: login, match: POST /login, key: ip, limit: 2/m }";

fn simulate(server: &Server, body: &Value) -> Answer {
    server.admin("POST", "/v1/simulate", body.to_string())
}

/// Lines of one second after the other, from so many addresses in turn.
fn log(lines: u64, clients: u64) -> String {
    let mut log = String::new();
    for n in 0..lines {
        let ip = format!("10.{}.{}.{}", n % clients / 65_536, n % clients / 256 % 256, n % clients % 256);
        let second = format!("{:02}:{:02}:{:02}", n / 3_600 % 24, n / 60 % 60, n % 60);
        let line = "\"POST /login HTTP/1.1\" 200 1";
        writeln!(log, "{ip} - - [01/Jan/2026:{second} +0000] {line}").expect("written");
    }
    log
}

#[test]
fn a_log_is_replayed_as_by_the_command() {
    let server = Server::start("rules: [{ id: login, key: ip, limit: 1/m }]");
    let log = format!("{}not a line\n", log(40, 4));
    let answer = simulate(&server, &json!({ "rules": RULES, "log": log, "report": { "compare": RULES } }));
    assert_eq!(answer.status, 200, "{answer}");
    let answer = answer.json();
    let folder = Folder::new();
    let path = |name: &str, text: &str| folder.write(name, text).to_str().expect("text").to_owned();
    let [log, rules] = [path("access.log", &log), path("rules.yaml", RULES)];
    let ran = tollgate(&["simulate", &log, "-c", &rules, "--compare", &rules, "--json"]);
    let mut expected: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    expected["compare"]["file"] = json!("compare");
    assert_eq!(answer["report"], expected);
    assert!(expected["denied"].as_u64() > Some(0), "{expected}");
    assert_eq!((&answer["denied"], &answer["unreadable"]), (&expected["denied"], &json!(1)));
    assert_eq!((&answer["from"], &answer["to"]), (&json!(1_767_225_600), &json!(1_767_225_639)));
    assert!(answer["compare"]["denied"].as_u64() > answer["denied"].as_u64(), "the rule in force: {answer}");
    assert_eq!(answer["clients"].as_array().map(Vec::len), Some(4), "{answer}");
}

#[test]
fn a_long_log_is_taken_and_a_longer_one_is_refused() {
    let server = Server::start("rules: []");
    let body = json!({ "rules": RULES, "sample": "log", "log": log(20_000, 10_000) });
    assert!(body.to_string().len() > 1 << 20);
    let answer = simulate(&server, &body);
    assert_eq!((answer.status, &answer.json()["requests"]), (200, &json!(20_000)));
    // Refused by its head, before the body is sent.
    let mut client = Client::to(server.admin);
    let address = server.admin;
    let head =
        format!("POST /v1/simulate HTTP/1.1\r\nhost: {address}\r\ncontent-length: {}\r\n\r\n", 17 << 20);
    client.write(head.as_bytes());
    let refused = client.answer();
    assert_eq!(refused.status, 413, "{refused}");
    for (body, field) in [
        (json!({ "rules": RULES, "log": "what is this?" }), "log"),
        (json!({ "rules": RULES, "sample": "log" }), "sample"),
        (json!({ "rules": RULES, "sample": "live", "log": "" }), "sample"),
    ] {
        let refused = simulate(&server, &body);
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!(field)), "{refused}");
    }
    let empty = simulate(&server, &json!({ "rules": RULES, "log": "" })).json();
    assert_eq!((&empty["requests"], &empty["from"]), (&json!(0), &Value::Null));
}
