//! The decision log of a running server.

use std::fs::{self, File};
use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::{Client, Folder, Server, eventually, tollgate};

use crate::grpc::authorization;
use crate::grpc::client::GrpcClient;
use crate::grpc::messages::{HttpRequest, RawHeaders};
use crate::resp::{RespClient, frame};

const RULES: &str = "rules: [{ id: login, key: [email], limit: 2/y }]\n";
const LOG: &str = "decisions.ndjson";

fn start(folder: &Arc<Folder>, decision_log: &str) -> Server {
    folder.configure(&format!("decision_log: {decision_log}\n{RULES}"));
    Server::start_in(folder)
}

fn lines(folder: &Folder) -> Vec<Value> {
    let text = fs::read_to_string(folder.path(LOG)).unwrap_or_default();
    let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
    whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}")))
        .collect()
}

fn check_times(server: &Server, email: &str, times: usize) {
    let mut client = Client::to(server.http);
    let body = json!({ "email": email }).to_string();
    for _ in 0..times {
        client.request("POST", "/v1/check", &[], body.as_bytes());
    }
}

fn metric(server: &Server, name: &str) -> u64 {
    let page = server.admin("GET", "/metrics", "").text();
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {page}"))
}

#[test]
fn a_key_under_attack_is_five_lines_without_its_text() {
    let folder = Folder::new();
    let server = start(&folder, &format!("{{ to: {LOG} }}"));
    check_times(&server, "ann@example.com", 1_000);
    eventually("the first lines are written", || lines(&folder).len() == 4);
    let (ended, _) = server.stop();
    assert!(ended.success());
    let lines = lines(&folder);
    let events: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap_or_default()).collect();
    assert_eq!(events, ["decision", "decision", "decision", "limiting_begins", "limiting_ends"]);
    assert_eq!(lines[4]["denied"], 998, "{}", lines[4]);
    for line in &lines {
        assert_eq!(line["rule"], "login");
        assert_eq!(line["key"], lines[0]["key"]);
        let mark = line["key"].as_str().unwrap_or_default();
        assert!(mark.starts_with('#') && !line.to_string().contains("ann"), "{line}");
    }
    let first = &lines[0];
    assert_eq!(
        (&first["allowed"], &first["reason"], &first["limit"]),
        (&json!(false), &json!("limit"), &json!("2/y"))
    );
    assert_eq!((&first["cost"], &first["remaining"]), (&json!(1), &json!(0)));
    assert!(first["retry_after_ms"].as_u64().is_some_and(|wait| wait > 0), "{first}");
}

#[test]
fn a_line_names_the_trace_of_its_request_on_every_transport() {
    let folder = Folder::new();
    folder.configure(&format!(
        "trusted_proxies: [127.0.0.1]\nupstreams: ['http://127.0.0.1:1']\ndecision_log: {{ to: {LOG}, sample: all }}\n"
    ));
    let server = Server::start_in(&folder);
    let traced = |number: u32| format!("00-{number:032x}-00f067aa0ba902b7-01");
    let gateway = |trace: &str| {
        let named = ["method", "uri", "host", "for"].map(|name| format!("x-forwarded-{name}"));
        let values = ["GET", "/", "a", "203.0.113.1"];
        let mut headers: Vec<_> = named.iter().map(String::as_str).zip(values).collect();
        headers.push(("traceparent", trace));
        Client::to(server.http).request("GET", "/v1/forward-auth", &headers, b"").status
    };
    let send = |method: &str, path: &str, trace: &str, body: &str| {
        Client::to(server.http).request(method, path, &[("traceparent", trace)], body.as_bytes()).status
    };
    let check = r#"{ "user": "ann" }"#;
    let descriptor =
        r#"{ "domain": "a", "descriptors": [{ "entries": [{ "key": "user", "value": "ann" }] }] }"#;
    assert_eq!(send("POST", "/v1/check", &traced(1), check), 200);
    assert_eq!(send("POST", "/v1/check/batch", &traced(2), &format!("[{check}]")), 200);
    assert_eq!(send("POST", "/json", &traced(3), descriptor), 200);
    assert_eq!(gateway(&traced(4)), 200);
    let through = [("host", "a"), ("traceparent", &*traced(5))];
    assert_eq!(Client::to(server.proxy).request("GET", "/", &through, b"").status, 502);
    assert_eq!(send("POST", "/v1/check", "not a trace", check), 200);
    eventually("all decisions are written", || lines(&folder).len() == 6);
    let traces: Vec<_> = lines(&folder).iter().map(|line| line["trace_id"].clone()).collect();
    let expected: Vec<_> = (1..=5).map(|number| json!(format!("{number:032x}"))).collect();
    assert_eq!((&traces[..5], &traces[5]), (&expected[..], &Value::Null));
}

#[test]
fn all_decisions_of_every_transport_are_written_and_a_key_may_hold_anything() {
    let folder = Folder::new();
    folder.configure(&format!("log_keys: plain\ndecision_log: {{ to: {LOG}, sample: all }}\n{RULES}"));
    let server = Server::start_in(&folder);
    let hostile = "\"},\n{\"allowed\":true\u{0}\u{1b}[31m";
    check_times(&server, hostile, 3);
    let batch = json!([{ "email": "b" }, { "email": "b", "peek": true }, { "user": "no rule" }]).to_string();
    server.request("POST", "/v1/check/batch", batch);
    eventually("five decisions, and no peek", || lines(&folder).len() == 5);
    let lines = lines(&folder);
    let allowed: Vec<_> = lines.iter().map(|line| line["allowed"].as_bool()).collect();
    assert_eq!(allowed, [Some(true), Some(true), Some(false), Some(true), Some(true)]);
    assert!(lines[0]["key"].as_str().is_some_and(|key| key.starts_with("email:")), "{}", lines[0]);
    assert_eq!((&lines[4]["reason"], &lines[4]["rule"]), (&json!("no_rule"), &Value::Null));
    assert_eq!(metric(&server, "tollgate_decision_log_lines_total"), 5);
}

#[test]
fn every_transport_writes_its_decisions() {
    let folder = Folder::new();
    folder.configure(&format!(
        "log_keys: plain\ndecision_log: {{ to: {LOG}, sample: all }}\nidentity: {{ user: header:x-user }}\n\
         trusted_proxies: [127.0.0.1]\nupstreams: ['http://127.0.0.1:1']\nrules: [{{ id: each, key: user, limit: 1/y }}]\n"
    ));
    let server = Server::start_in(&folder);
    let mut written = 0;
    let mut is_written = |what: &str, decide: &dyn Fn()| {
        decide();
        decide();
        written += 2;
        eventually("both decisions are written", || lines(&folder).len() >= written);
        let lines = lines(&folder);
        assert_eq!(lines.len(), written, "{what}: {lines:?}");
        for (line, allowed) in lines[written - 2..].iter().zip([true, false]) {
            assert_eq!(
                (&line["allowed"], &line["rule"]),
                (&json!(allowed), &json!("each")),
                "{what}: {line}"
            );
            assert_eq!(line["key"], format!("user:{what}"), "{line}");
        }
    };
    is_written("http", &|| drop(server.check(&json!({ "user": "http" }))));
    is_written("batch", &|| drop(server.request("POST", "/v1/check/batch", "[{\"user\": \"batch\"}]")));
    let json = "{\"domain\": \"default\", \"descriptors\": [{\"entries\": [{\"key\": \"user\", \"value\": \"json\"}]}]}";
    is_written("json", &|| drop(server.request("POST", "/json", json)));
    is_written("gateway", &|| {
        let described = [
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", "/"),
            ("x-forwarded-host", "a"),
            ("x-forwarded-for", "203.0.113.9"),
            ("x-user", "gateway"),
        ];
        Client::to(server.http).request("GET", "/v1/forward-auth", &described, b"");
    });
    let grpc = GrpcClient::to(server.grpc);
    is_written("grpc", &|| drop(grpc.single("default", &[("user", "grpc")])));
    is_written("envoy", &|| {
        let headers = vec![authorization::header("x-user", "envoy")];
        let header_map = Some(RawHeaders { headers });
        let request = HttpRequest { header_map, ..authorization::http("GET", "/") };
        authorization::status(&grpc, "203.0.113.9", request);
    });
    is_written("resp", &|| {
        let reply = RespClient::to(server.resp)
            .exchange_until(&frame("TOLLGATE.CHECK user resp"), |reply| reply.ends_with("\r\n"));
        assert!(reply.starts_with("*6\r\n"), "{reply}");
    });
    is_written("proxy", &|| {
        Client::to(server.proxy).request("GET", "/", &[("host", "a"), ("x-user", "proxy")], b"");
    });
}

#[test]
fn a_reload_switches_the_log_on_and_off() {
    let folder = Folder::new();
    let server = start(&folder, "{ to: off }");
    check_times(&server, "ann@example.com", 3);
    folder.configure(&format!("decision_log: {{ to: {LOG}, sample: all }}\n{RULES}"));
    eventually("a decision is written", || {
        check_times(&server, "ann@example.com", 1);
        !lines(&folder).is_empty()
    });
    folder.configure(RULES);
    server.wait_for_log_times("rules generation", 2);
    let before = metric(&server, "tollgate_decision_log_lines_total");
    check_times(&server, "ann@example.com", 100);
    let (ended, _) = server.stop();
    assert!(ended.success());
    // Decisions of requests that had begun before the reload may follow.
    assert!((lines(&folder).len() as u64) < before + 100);
}

#[test]
fn a_log_that_cannot_be_opened_is_an_invalid_configuration() {
    let folder = Folder::new();
    let config = folder.configure("decision_log: { to: missing/decisions }\n");
    let ran = tollgate(&["serve", "-c", &config.display().to_string()]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert!(ran.stderr.contains("decision_log.to: "), "{}", ran.stderr);
}

#[test]
fn a_log_that_nothing_reads_delays_neither_decisions_nor_the_stop() {
    let folder = Folder::new();
    let pipe = folder.path(LOG);
    assert!(Command::new("mkfifo").arg(&pipe).status().is_ok_and(|made| made.success()));
    let _reader = File::options().read(true).write(true).open(&pipe).expect("a reader");
    let server = start(&folder, &format!("{{ to: {LOG}, sample: all }}"));
    let batch = json!(vec![json!({ "email": "e@example.com" }); 1_000]).to_string();
    let mut client = Client::to(server.http);
    eventually("decisions are dropped", || {
        assert_eq!(client.request("POST", "/v1/check/batch", &[], batch.as_bytes()).status, 200);
        metric(&server, "tollgate_decision_log_dropped_total") > 0
    });
    let (ended, log) = server.stop();
    assert!(ended.success(), "{log}");
    assert!(log.contains("the last lines of the decision log could not be written in time"), "{log}");
}

#[test]
fn verify_finds_no_excess_in_a_log_and_the_one_that_is_added() {
    let folder = Folder::new();
    let rules = "rules:
  - { id: user, key: user, limit: 3/y }
  - { id: second, limit: 1000/s, algorithm: sliding-log }
  - { id: window, key: user, limits: [2/h, 9/d], algorithm: fixed-window, mode: shadow }
  - { id: busy, limit: 9/m, algorithm: concurrency }
";
    let config = folder.configure(&format!("decision_log: {{ to: {LOG}, sample: all }}\n{rules}"));
    let server = Server::start_in(&folder);
    let mut client = Client::to(server.http);
    for n in 0..12 {
        let body = json!({ "user": format!("u{}", n % 3) }).to_string();
        client.request("POST", "/v1/check", &[], body.as_bytes());
    }
    server.stop();
    let log = folder.path(LOG);
    let paths = [&log, &config].map(|path| path.to_str().expect("a plain path").to_owned());
    let verify = || tollgate(&["verify", &paths[0], "-c", &paths[1], "--json"]);
    let ran = verify();
    let report: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
    assert_eq!((ran.code, &report["violations"], &report["decisions"]), (Some(0), &json!([]), &json!(12)));
    assert_eq!((&report["limits"], &report["keys"]), (&json!(4), &json!(10)), "{report}");
    assert_eq!(report["unchecked"][0]["rule"], "busy", "permits are given back: {report}");
    let text = fs::read_to_string(&log).expect("a log");
    let first = text.lines().next().expect("a line");
    fs::write(&log, format!("{text}{first}\n")).expect("it is written");
    let ran = verify();
    let report: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
    let found = report["violations"].as_array().expect("a list").iter().map(|found| &found["rule"]);
    let found: Vec<_> = found.collect();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(found, ["window", "user"], "the earliest first: {report}");
    // Denials forged to be admissions passed: "no limit was exceeded", exit code 0.
    assert!(text.contains("\"allowed\":false"), "{text}");
    fs::write(&log, text.replace("\"allowed\":false", "\"allowed\":true")).expect("it is written");
    let ran = tollgate(&["verify", &paths[0], "-c", &paths[1]]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains("it is not proven that no limit was exceeded"), "{ran:?}");
    assert!(
        ran.stdout.contains("not proven: 3 admitted requests without charges in the log, the first at"),
        "{ran:?}"
    );
    // Admissions that charge nothing prove nothing wrong; charges of unknown rules prove nothing.
    let free = ["no_rule", "allow_list"].map(|reason| {
        format!(
            "{{\"event\":\"decision\",\"allowed\":true,\"reason\":\"{reason}\",\"rule\":null,\"cost\":1}}\n"
        )
    });
    fs::write(&log, format!("{text}{}", free.concat())).expect("it is written");
    let ran = tollgate(&["verify", &paths[0], "-c", &paths[1]]);
    assert!(ran.code == Some(0) && ran.stdout.ends_with("no limit was exceeded\n"), "{ran:?}");
    fs::write(&log, text.replace("\"rule\":\"user\"", "\"rule\":\"nobody\"")).expect("it is written");
    let ran = tollgate(&["verify", &paths[0], "-c", &paths[1]]);
    assert!(ran.code == Some(1) && ran.stdout.contains("under limits that"), "{ran:?}");
    let denials: String = text.lines().filter(|line| line.contains("\"allowed\":false")).collect();
    fs::write(&log, denials.replace("}{", "}\n{")).expect("it is written");
    let ran = tollgate(&["verify", &paths[0], "-c", &paths[1]]);
    assert!(ran.code == Some(1) && ran.stdout.contains("only denials"), "{ran:?}");
    fs::write(&log, "not JSON\n").expect("it is written");
    let ran = verify();
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
    assert!(ran.stderr.contains("line 1 is not one of a decision log"), "{ran:?}");
}

/// The logs of two nodes whose counters were on one Redis.
struct LoggedFleet {
    folders: [Arc<Folder>; 2],
    settings: String,
}

impl LoggedFleet {
    /// Charges the key of one client on both nodes.
    fn run(redis: &Redis, secret: Option<&str>) -> LoggedFleet {
        let secret_file = secret.map_or("", |_| "store_secret_file: secret\n");
        let rules =
            "store_deadline: 5s\nrules: [{ id: a, key: user, limit: 10/d, algorithm: sliding-log }]\n";
        let settings = format!("counters: {}\n{secret_file}{rules}", redis.url());
        let folders = [Folder::new(), Folder::new()];
        for folder in &folders {
            secret.inspect(|secret| _ = folder.write("secret", secret));
            folder.configure(&format!("decision_log: {{ to: {LOG}, sample: all }}\n{settings}"));
            let server = Server::start_in(folder);
            eventually("a request is charged", || {
                server.check(&json!({ "user": "ann" })).json()["reason"] == "ok"
            });
            for _ in 0..3 {
                server.check(&json!({ "user": "ann" }));
            }
            server.stop();
        }
        LoggedFleet { folders, settings }
    }

    fn log(&self, node: usize) -> String {
        fs::read_to_string(self.folders[node].path(LOG)).expect("a log")
    }

    /// The exit code and the output of `verify` with these logs.
    fn verify(&self, logs: &[usize], more: &str) -> (Option<i32>, String) {
        let config = self.folders[0].write("verify.yaml", format!("{more}{}", self.settings));
        let logs = logs.iter().map(|node| self.folders[*node].path(LOG).display().to_string());
        let mut arguments = vec!["verify".to_owned(), "-c".to_owned(), config.display().to_string()];
        arguments.extend(logs);
        let ran = tollgate(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        (ran.code, ran.stdout)
    }
}

/// A regression: marks were keyed per node, so the logs of two nodes were checked apart and proved nothing, which
/// `verify` did not say.
#[test]
fn verify_adds_up_what_a_key_was_charged_on_nodes_that_share_a_secret() {
    let Some(redis) = Redis::start(Make::Redis, "decision logs of a fleet") else { return };
    let fleet = LoggedFleet::run(&redis, Some("a secret that all nodes of the fleet share"));
    let (code, report) = fleet.verify(&[0, 1], "nodes: 2\n");
    assert_eq!(code, Some(0), "{report}");
    assert!(report.ends_with("charges of 1 key under 1 limit: no limit was exceeded\n"), "{report}");
    let (code, report) = fleet.verify(&[0], "nodes: 2\n");
    assert_eq!(code, Some(1), "{report}");
    assert!(
        report.contains("not proven: the charges are of 1 node, and 2 share the counters on"),
        "{report}"
    );
    let (code, report) = fleet.verify(&[0, 1], "");
    assert!(code == Some(1) && report.contains("set `nodes` to their number"), "{report}");
    // Ten charges of both nodes together pass, the eleventh does not, although no node made more than nine.
    let charged = |log: &str| log.lines().filter(|line| line.contains("\"charged\"")).count();
    let logs = [fleet.log(0), fleet.log(1)];
    let lacking = 11 - charged(&logs[0]) - charged(&logs[1]);
    let last = logs[1].lines().rfind(|line| line.contains("\"charged\"")).expect("a charge");
    let forged = format!("{}{}", logs[1], format!("{last}\n").repeat(lacking));
    assert!(charged(&forged) < 10, "{forged}");
    fs::write(fleet.folders[1].path(LOG), forged).expect("it is written");
    let (code, report) = fleet.verify(&[0, 1], "nodes: 2\n");
    assert!(code == Some(1) && report.contains("rule a exceeded 10/d"), "{report}");
}

#[test]
fn verify_proves_nothing_of_nodes_that_share_counters_and_no_secret() {
    let Some(redis) = Redis::start(Make::Redis, "decision logs without a secret") else { return };
    let fleet = LoggedFleet::run(&redis, None);
    let (code, report) = fleet.verify(&[0, 1], "nodes: 2\n");
    assert_eq!(code, Some(1), "{report}");
    assert!(report.contains("it is not proven that no limit was exceeded"), "{report}");
    assert!(report.contains("each of which marks keys under a secret of its own"), "{report}");
    let (code, report) = fleet.verify(&[0], "nodes: 1\n");
    assert_eq!(code, Some(0), "one node alone: {report}");
}

/// A regression: limits beside the rules in force denied without a line.
#[test]
fn limits_that_a_descriptor_brings_along_are_in_the_log() {
    let folder = Folder::new();
    let server = start(&folder, &format!("{{ to: {LOG}, sample: all }}"));
    let limit = json!({ "requestsPerUnit": 1, "unit": "YEAR" });
    let descriptor = json!({ "entries": [{ "key": "user", "value": "ann" }], "limit": limit });
    let body = json!({ "domain": "d", "descriptors": [descriptor] }).to_string();
    let call = || Client::to(server.http).request("POST", "/json", &[], body.as_bytes()).status;
    assert_eq!([call(), call()], [200, 429]);
    let denied = || lines(&folder).into_iter().filter(|line| line["allowed"] == false).count();
    eventually("the denial is written", || denied() == 1);
}
