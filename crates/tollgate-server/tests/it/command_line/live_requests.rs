//! `--live`: `tollgate suggest` and `tollgate simulate` on the latest requests of a server.

use std::fmt::Write;
use std::fs::File;
use std::process::Stdio;

use serde_json::{Value, json};
use tollgate_testkit::{CommandOutput, Server, binary, run, tollgate};

use crate::command_line::{fails, json_of};

const IN_FORCE: &str = "rules:
  - { id: all, key: ip, limit: 1000/h }
  - { id: mail, match: POST /login, key: email, limit: 1000/h }
";

/// A server after the requests of 20 clients: the first sends 1, the second 2 …
struct Live {
    server: Server,
    url: String,
}

impl Live {
    fn start() -> Live {
        let server = Server::start(IN_FORCE);
        let checks: Vec<Value> = requests()
            .map(|(client, ip)| {
                let email = format!("user{client}@example.com");
                json!({ "method": "POST", "path": "/login", "ip": ip, "email": email })
            })
            .collect();
        let answer = server.request("POST", "/v1/check/batch", json!(checks).to_string());
        assert_eq!(answer.status, 200, "{answer}");
        let url = format!("http://{}", server.admin);
        Live { server, url }
    }

    fn run(&self, args: &[&str]) -> CommandOutput {
        tollgate(&[args, &["--live", "--admin", &self.url]].concat())
    }

    fn write(&self, name: &str, text: &str) -> String {
        self.server.folder.write(name, text).to_str().expect("a plain path").to_owned()
    }
}

/// Clients with their addresses, once for each request.
fn requests() -> impl Iterator<Item = (u32, String)> {
    (1..=20).flat_map(|client| (0..client).map(move |_| (client, format!("192.0.2.{client}"))))
}

#[test]
fn suggestions_of_live_requests_equal_those_of_their_log() {
    let live = Live::start();
    let mut log = "time,method,path,ip\n".to_owned();
    for (_, ip) in requests() {
        writeln!(log, "2026-01-01T00:00:00Z,POST,/login,{ip}").expect("written");
    }
    let log = live.write("log.csv", &log);
    let of_log = json_of(&tollgate(&["suggest", &log, "--json"]));
    let of_live = json_of(&live.run(&["suggest", "--by", "ip", "--window", "1m", "--json"]));
    for name in ["by", "requests", "clients", "limits", "peaks", "step_ms"] {
        assert_eq!(of_live[name], of_log[name], "{name}");
    }
    assert_eq!((&of_live["limits"][0]["limit"], &of_live["clients"]), (&json!("19/m"), &json!(20)));
    assert!(of_live["from"].as_u64() > Some(0), "{of_live}");

    let text = live.run(&["suggest"]).stdout;
    assert!(text.starts_with("live requests: 210 requests of 20 clients by ip, "), "{text}");
    assert!(text.contains("20/m   20 of 20 clients"), "{text}");
    let matched = json_of(&live.run(&["suggest", "--match", "GET /search", "--json"]));
    assert_eq!((&matched["requests"], &matched["limits"]), (&json!(0), &json!([])));
}

#[test]
fn keys_in_suggestions_are_masked() {
    let server = Server::start(IN_FORCE);
    for client in 0..150 {
        let times = if client == 0 { 9 } else { 1 };
        for _ in 0..times {
            server.check(
                &json!({ "method": "POST", "path": "/login", "email": format!("u{client}@example.com") }),
            );
        }
    }
    let answer = server.admin("GET", "/v1/suggest?by=email&window=30s", "").json();
    let worst = &answer["limits"][0]["worst"];
    assert_eq!((&answer["limits"][0]["limit"], &worst[0]["peak"]), (&json!("1/30s"), &json!(9)), "{answer}");
    assert!(worst[0]["key"].as_str().is_some_and(|key| key.starts_with("email:#")), "{answer}");
    assert!(!answer.to_string().contains("example.com"), "{answer}");
    let without = server.admin("GET", "/v1/suggest?by=header%3Ax-tenant", "").json();
    assert!(
        without["notes"][0].as_str().is_some_and(|note| note.starts_with("158 requests have no such key")),
        "{without}"
    );
    for (query, field) in [
        ("by=colour", "by"),
        ("by=ip,ip,ip,ip,ip,ip,ip,ip,ip", "by"),
        ("window=soon", "window"),
        ("match=GTE%20/x", "match"),
        ("limit=5", "limit"),
    ] {
        let refused = server.admin("GET", &format!("/v1/suggest?{query}"), "");
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!(field)), "{refused}");
    }
}

#[test]
fn a_simulation_of_live_requests_is_compared_with_the_rules_in_force() {
    let live = Live::start();
    let new = live.write(
        "new.yaml",
        "listen: { http: off }\nrules: [{ id: all, key: ip, limit: 15/h }, { id: trial, match: /other, limit: 1/h }]\n",
    );
    let report = json_of(&live.run(&["simulate", "-c", &new, "--json"]));
    // Of client n, n − 15 requests are denied: 1 + 2 + 3 + 4 + 5.
    assert_eq!((&report["requests"], &report["denied"]), (&json!(210), &json!(15)), "{report}");
    let all = &report["rules"][0];
    assert_eq!((&all["rule"], &all["allowed"], &all["clients"]), (&json!("all"), &json!(195), &json!(5)));
    assert_eq!(all["worst"][0], json!({ "key": "ip:192.0.2.20", "denied": 5 }));
    let compare = &report["compare"];
    assert_eq!((&compare["file"], &compare["newly_denied"]), (&json!("the rules in force"), &json!(15)));
    assert!(report.get("timeline").is_none() && report.get("algorithms").is_none(), "{report}");

    let old = live.write("old.yaml", "- { id: all, key: ip, limit: 10/h }\n");
    let plot = live.server.folder.path("plot.svg");
    let args =
        ["--compare", &old, "--algorithms", "--plot", plot.to_str().expect("text"), "--max-denied", "5%"];
    let ran = live.run(&[&["simulate", "-c", &new], &args[..]].concat());
    assert_eq!(ran.code, Some(1), "15 of 210 are more than 5 %: {ran:?}");
    assert!(ran.stdout.starts_with("live requests: 210 requests, "), "{ran:?}");
    assert!(ran.stdout.contains("denied: 15 (7.14 %)"), "{ran:?}");
    assert!(ran.stdout.contains("old.yaml: 0 more denied, 40 no longer denied (55 denied there)"), "{ran:?}");
    assert!(ran.stdout.contains("\nsliding-log"), "{ran:?}");
    let drawn = std::fs::read_to_string(plot).expect("it is drawn");
    assert!(drawn.contains("live requests: requests and denials"), "{drawn}");
}

#[test]
fn live_simulations_take_rules_from_stdin_and_keep_keys_masked() {
    let live = Live::start();
    let rules = live.write("rules.yaml", "rules: [{ id: mail, key: email, limit: '${LIMIT}' }]\n");
    let mut command = binary();
    command.args(["simulate", "--live", "-c", "-", "--admin", &live.url, "--json"]).env("LIMIT", "19/h");
    let ran = run(command.stdin(Stdio::from(File::open(rules).expect("the rules"))));
    let report = json_of(&ran);
    assert_eq!(report["denied"], 1, "{report}");
    let key = &report["rules"][0]["worst"][0]["key"];
    assert!(key.as_str().is_some_and(|key| key.starts_with("email:#")), "{report}");
    assert!(!ran.stdout.contains("example.com"), "{report}");
}

#[test]
fn live_and_a_log_exclude_each_other_and_a_server_must_be_there() {
    for command in ["simulate", "suggest"] {
        fails(&tollgate(&[command]), 2, &["<LOG>"]);
        fails(&tollgate(&[command, "access.log", "--live"]), 2, &["--live"]);
    }
    fails(&tollgate(&["suggest", "--live", "--admin", "http://127.0.0.1:1"]), 4, &["no answer from"]);
    let live = Live::start();
    fails(&live.run(&["suggest", "--by", "colour"]), 1, &["colour"]);
    let bad = live.write("bad.yaml", "rules: [{ id: a, limit: soon }]");
    let ran = live.run(&["simulate", "-c", &bad]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains("bad.yaml"), "{ran:?}");
}
