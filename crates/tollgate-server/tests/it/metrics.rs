//! Metrics of a running node, and the alert rules that use them.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tollgate_testkit::{Client, Folder, Server, eventually};

const RULES: &str = "rules: [{ id: a, key: user, limit: 5/y }]\n";

fn value(page: &str, name: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in\n{page}"))
}

fn page(server: &Server) -> String {
    server.admin("GET", "/metrics", "").text()
}

#[test]
fn a_rejected_change_shows_until_the_file_is_valid_again() {
    let folder = Folder::new();
    folder.configure(RULES);
    let server = Server::start_in(&folder);
    let last_reload = || value(&page(&server), "tollgate_config_last_reload_success");
    assert_eq!(last_reload(), 1.0, "a node that started has read its file");
    folder.configure("rules: [{ id: a, key: user, limit: many }]\n");
    eventually("the change is rejected", || last_reload() == 0.0);
    folder.configure(RULES);
    eventually("the change is undone", || last_reload() == 1.0);
    folder.configure("rules: [{}]\n");
    eventually("the change is rejected", || last_reload() == 0.0);
    folder.configure(&RULES.replace("5/y", "6/y"));
    eventually("the file is valid", || last_reload() == 1.0);
    let page = page(&server);
    let loaded = value(&page, "tollgate_config_last_reload_success_timestamp_seconds");
    assert!(loaded >= value(&page, "process_start_time_seconds").floor(), "{page}");
}

#[cfg(target_os = "linux")]
#[test]
fn the_process_is_described() {
    let server = Server::start(RULES);
    let before = page(&server);
    let resident = value(&before, "process_resident_memory_bytes");
    assert!(resident > 1e6 && resident <= value(&before, "process_virtual_memory_bytes"), "{before}");
    let open = value(&before, "process_open_fds");
    assert!(open > 2.0 && open <= value(&before, "process_max_fds"), "{before}");
    let now = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_secs_f64();
    let age = now - value(&before, "process_start_time_seconds");
    assert!((-2.0..600.0).contains(&age), "{age}: {before}");
    let cpu = value(&before, "process_cpu_seconds_total");
    assert!(cpu > 0.0);
    assert!(value(&page(&server), "process_cpu_seconds_total") > cpu);
}

#[test]
fn requests_are_counted_by_transport_and_status() {
    let server = Server::start(
        "upstreams: ['http://127.0.0.1:1']\ntrusted_proxies: [127.0.0.1]\n\
         rules: [{ id: a, key: user, limit: 1/y }, { id: b, match: /b, key: ip, limit: 1/y }]\n",
    );
    for expected in [200, 429, 429] {
        assert_eq!(server.check(&serde_json::json!({ "user": "ann" })).status, expected);
    }
    assert_eq!(server.request("GET", "/v1/none", "").status, 404);
    let gateway = [
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/b"),
        ("x-forwarded-for", "203.0.113.1"),
        ("x-forwarded-host", "a"),
    ];
    for expected in [200, 429] {
        let answer = Client::to(server.http).request("GET", "/v1/forward-auth", &gateway, b"");
        assert_eq!(answer.status, expected);
    }
    let mut redis = std::net::TcpStream::connect(server.resp).expect("the listener accepts");
    let throttle = "CL.THROTTLE k 0 1 86400\r\n".repeat(3);
    redis
        .write_all(format!("PING\r\n{throttle}NOTHING\r\nTOLLGATE.CHECK user ann\r\n*x\r\n").as_bytes())
        .ok();
    redis.read_to_end(&mut Vec::new()).expect("a broken frame ends the connection");
    let through = || Client::to(server.proxy).request("GET", "/b", &[("host", "a")], b"").status;
    assert_eq!([through(), through()], [502, 429]);

    let page = page(&server);
    let mut counted: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("tollgate_requests_total{transport="))
        .filter(|line| !line.ends_with(" 0"))
        .collect();
    counted.sort_unstable();
    assert_eq!(
        counted,
        [
            "\"forward_auth\",status=\"200\"} 1",
            "\"forward_auth\",status=\"429\"} 1",
            "\"http\",status=\"200\"} 1",
            "\"http\",status=\"404\"} 1",
            "\"http\",status=\"429\"} 2",
            "\"proxy\",status=\"429\"} 1",
            "\"proxy\",status=\"502\"} 1",
            "\"resp\",status=\"error\"} 2",
            "\"resp\",status=\"limited\"} 3",
            "\"resp\",status=\"ok\"} 2",
        ]
    );
    for listener in ["http", "grpc", "resp", "proxy", "admin"] {
        let line = format!("tollgate_connections{{listener=\"{listener}\"}} ");
        assert!(page.contains(&line), "no {line} in\n{page}");
    }
}

#[test]
fn one_decision_in_64_is_measured() {
    let server = Server::start("rules: [{ id: a, key: user, limit: 5/y }]");
    let checks = vec![serde_json::json!({ "user": "ann" }); 1_000];
    let answer = server.request("POST", "/v1/check/batch", serde_json::json!(checks).to_string());
    assert_eq!(answer.status, 200);
    let page = page(&server);
    let measured = value(&page, "tollgate_decision_seconds_count");
    assert!((7.0..100.0).contains(&measured), "{measured}");
    assert!(value(&page, "tollgate_decision_seconds_sum") > 0.0);
    assert!(page.contains("tollgate_decision_seconds_bucket{le=\"0.000001\"} "), "{page}");
}

#[test]
fn a_rule_shows_how_close_its_clients_are_to_the_limit() {
    let server =
        Server::start("rules: [{ id: a, key: user, limit: 5/y }, { id: other, key: ip, limit: 5/y }]");
    for (user, requests) in [("ann", 6), ("bob", 1)] {
        (0..requests)
            .for_each(|_| drop(server.check(&serde_json::json!({ "user": user, "ip": "203.0.113.1" }))));
    }
    let page = page(&server);
    let rule =
        |name: &str, labels: &str| value(&page, &format!("tollgate_rule_{name}{{rule=\"a\"{labels}}}"));
    assert_eq!(rule("limit_used_ratio", ",quantile=\"1\""), 1.0);
    assert!(rule("limit_used_ratio", ",quantile=\"0.5\"") < 1.0);
    assert_eq!(rule("limited_keys", ""), 1.0);
    assert!(rule("near_limit_requests", "") >= 1.0);
    let other = page.lines().filter(|line| line.starts_with("tollgate_rule_limited_keys{rule=\"other\"}"));
    assert_eq!(other.count(), 1, "a rule of this name is not shown twice: {page}");
}

#[test]
fn a_reason_has_the_id_of_one_of_its_decisions() {
    let server = Server::start("rules: [{ id: a, key: user, limit: 1/y }]");
    let ids = [(); 2].map(|()| server.check(&serde_json::json!({ "user": "ann" })).json()["id"].to_string());
    let page = page(&server);
    for (reason, id) in ["ok", "limit"].into_iter().zip(&ids) {
        let line = format!("tollgate_decisions_total{{reason=\"{reason}\"}} 1 # {{decision_id={id}}} 1");
        assert!(page.contains(&line), "no {line} in\n{page}");
    }
    assert!(page.contains("tollgate_decisions_total{reason=\"ban\"} 0\n"), "{page}");
}

#[test]
fn what_a_ban_would_have_stopped_is_counted_in_shadow() {
    let server = Server::start(&format!("bans: [{{ key: 'user:evil' }}]\n{RULES}"));
    let check = || server.check(&serde_json::json!({ "user": "evil" })).status;
    let shadow_bans = || value(&page(&server), "tollgate_shadow_bans_total");
    assert_eq!((check(), shadow_bans()), (403, 0.0));
    let turned = server.admin("PUT", "/v1/enforce", r#"{"enforce":"shadow"}"#);
    assert_eq!(turned.status, 200, "{turned}");
    assert_eq!((check(), check(), shadow_bans()), (200, 200, 2.0));
}

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

fn alerts() -> PathBuf {
    packaging().join("prometheus")
}

fn promtool(arguments: &[&str]) {
    let ran = Command::new("promtool").args(arguments).current_dir(alerts()).output();
    let ran = ran.expect("promtool, of the package prometheus: scripts/servers installs it");
    let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "promtool {arguments:?}: {said}");
}

#[test]
fn prometheus_accepts_the_alert_rules_and_their_tests_pass() {
    promtool(&["check", "rules", "alerts.yaml"]);
    promtool(&["test", "rules", "alerts_test.yaml"]);
}

/// The metrics in queries exist, with the labels that they are selected by.
fn check_names<'q>(queries: impl Iterator<Item = &'q str>) -> usize {
    let known = std::fs::read_to_string(packaging().join("../docs/reference/metrics.md")).expect("metrics");
    let is_part = |each: char| each.is_ascii_alphanumeric() || each == '_';
    let mut count = 0;
    for query in queries {
        for (start, _) in query.match_indices("tollgate_").chain(query.match_indices("process_")) {
            let rest = &query[start..];
            let (name, rest) = rest.split_at(rest.find(|each| !is_part(each)).unwrap_or(rest.len()));
            let name = name.strip_suffix("_bucket").unwrap_or(name);
            let row = known.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
            let row = row.unwrap_or_else(|| panic!("{name} is not a metric: {query}"));
            let selector =
                rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(all, _)| all);
            for label in selector.split(", ").filter(|label| !label.is_empty()) {
                let label = &label[..label.find(|each| !is_part(each)).expect("a comparison")];
                assert!(label == "instance" || row.contains(&format!("`{label}`")), "{name}: {label}");
            }
            count += 1;
        }
    }
    count
}

#[test]
fn alert_rules_name_metrics_that_exist() {
    let rules = std::fs::read_to_string(alerts().join("alerts.yaml")).expect("alert rules");
    // An expression may have several lines, until the next key.
    let expressions = rules.split(" expr: ").skip(1).filter_map(|rest| rest.split(" labels: ").next());
    let count = check_names(expressions);
    assert!(count > 15, "{count} names");
}

/// All values of a key, at any depth.
fn values<'v>(tree: &'v Value, key: &str, found: &mut Vec<&'v str>) {
    match tree {
        Value::Object(map) => {
            found.extend(map.get(key).and_then(Value::as_str));
            map.values().for_each(|value| values(value, key, found));
        }
        Value::Array(list) => list.iter().for_each(|value| values(value, key, found)),
        _ => {}
    }
}

#[test]
fn prometheus_can_run_every_query_of_the_board() {
    let board = std::fs::read(packaging().join("grafana/tollgate.json")).expect("the board");
    let board: Value = serde_json::from_slice(&board).expect("JSON");
    let mut queries = Vec::new();
    values(&board, "expr", &mut queries);
    assert!(queries.len() > 40, "{} queries", queries.len());
    assert!(check_names(queries.iter().copied()) >= queries.len());
    let rule = |(n, query): (usize, &&str)| {
        let query = query.replace("$__rate_interval", "5m").replace("$instance", ".*");
        serde_json::json!({ "record": format!("query_{n}"), "expr": query })
    };
    let rules: Vec<_> = queries.iter().enumerate().map(rule).collect();
    let folder = Folder::new();
    let file = folder
        .write("rules.yaml", serde_json::json!({ "groups": [{ "name": "a", "rules": rules }] }).to_string());
    promtool(&["check", "rules", file.to_str().expect("a path")]);
}

/// The page as the older text format describes it, the only one that `promtool check metrics` reads.
fn in_the_older_format(page: &str) -> String {
    let described = |line: &str| Some(line.strip_prefix("# TYPE ")?.split_once(' ')?.1.to_owned());
    let kind_of = |name: &str| {
        page.lines().find(|line| line.starts_with(&format!("# TYPE {name} "))).and_then(described)
    };
    let mut converted = String::new();
    for line in page.lines() {
        let parts: Vec<&str> = line.splitn(4, ' ').collect();
        converted += &match parts[..] {
            ["#", word @ ("HELP" | "TYPE"), name, rest] => {
                let suffix = match kind_of(name).as_deref() {
                    Some("counter") => "_total",
                    Some("info") => "_info",
                    _ => "",
                };
                let rest = match rest {
                    "info" => "gauge",
                    "unknown" => "untyped",
                    known => known,
                };
                format!("# {word} {name}{suffix} {rest}\n")
            }
            // It has no exemplars.
            _ => format!("{}\n", line.split(" # {").next().unwrap_or_default()),
        };
    }
    converted
}

#[test]
fn prometheus_finds_nothing_wrong_with_the_page_but_two_older_names() {
    let server = Server::start(RULES);
    let folder = Folder::new();
    let file = folder.write("page", in_the_older_format(&page(&server)));
    let input = std::fs::File::open(file).expect("the page");
    let ran = Command::new("promtool").args(["check", "metrics"]).stdin(input).output().expect("promtool");
    let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    let milliseconds = ["tollgate_state_age_milliseconds ", "tollgate_state_interval_milliseconds "];
    let new: Vec<_> =
        said.lines().filter(|line| !milliseconds.iter().any(|name| line.starts_with(name))).collect();
    assert!(new.is_empty(), "{new:#?}");
}

#[test]
fn the_page_has_the_names_of_other_rate_limiters_if_they_are_chosen() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("envoy")).expect("a folder");
    folder.write(
        "envoy/shop.yaml",
        "domain: shop\ndescriptors:\n\
         - { key: plan, value: 'a \"b\"', descriptors: [{ key: user, rate_limit: { unit: hour, requests_per_unit: 5, name: per-user } }] }\n\
         - { key: colour, shadow_mode: true, rate_limit: { unit: hour, requests_per_unit: 1 } }\n",
    );
    let rules = "envoy_config: envoy\nrules: [{ id: native, key: attr:tenant, limit: 1/h }]\n";
    folder.configure(rules);
    let server = Server::start_in(&folder);
    let call = |entries: &str| {
        let body = format!("{{\"domain\":\"shop\",\"descriptors\":[{{\"entries\":[{entries}]}}]}}");
        server.request("POST", "/json", body).status
    };
    let nested = r#"{"key":"plan","value":"a \"b\""},{"key":"user","value":"ann"}"#;
    assert_eq!([(); 6].map(|()| call(nested)), [200, 200, 200, 200, 200, 429]);
    assert_eq!([(); 3].map(|()| call(r#"{"key":"colour","value":"red"}"#)), [200; 3]);
    assert_eq!([(); 2].map(|()| call(r#"{"key":"tenant","value":"t"}"#)), [200, 429]);
    let plain = page(&server);
    assert!(!plain.contains("ratelimit_service") && !plain.contains("limitador"), "{plain}");

    folder.configure(&format!("metrics: {{ compat: [envoy, limitador] }}\n{rules}"));
    eventually("the names are chosen", || page(&server).contains("limitador_up 1\n"));
    let page = page(&server);
    let limit = |name: &str, labels: &str| {
        value(&page, &format!("ratelimit_service_rate_limit_{name}{{domain={labels}}}"))
    };
    let nested = r#""shop",key1="plan_a \"b\"",key2="user""#;
    let shadow = r#""shop",key1="colour""#;
    let native = r#""tollgate",key1="native""#;
    for (labels, counts) in
        [(nested, [6.0, 5.0, 1.0, 0.0]), (shadow, [3.0, 1.0, 2.0, 2.0]), (native, [2.0, 1.0, 1.0, 0.0])]
    {
        let names = ["total_hits", "within_limit", "over_limit", "shadow_mode"];
        assert_eq!(names.map(|name| limit(name, labels)), counts, "{labels}");
    }
    assert!((1.0..=2.0).contains(&limit("near_limit", nested)), "{page}");
    assert_eq!(value(&page, "ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"}"), 0.0);
    assert!(
        page.contains("ratelimit_service_response_time_seconds_bucket{le=\"10.0\",grpc_method="),
        "{page}"
    );
    assert!(value(&page, "ratelimit_service_config_load_success") >= 2.0);
    assert_eq!(value(&page, "ratelimit_service_config_load_error"), 0.0);
    let namespace = "{limitador_namespace=\"tollgate\"";
    assert!(value(&page, &format!("authorized_calls{namespace}}}")) >= 9.0, "{page}");
    assert_eq!(
        value(&page, &format!("authorized_hits{namespace}}}")),
        value(&page, &format!("authorized_calls{namespace}}}"))
    );
    assert_eq!(value(&page, &format!("limited_calls{namespace},limit_name=\"native\"}}")), 1.0);
    assert_eq!(value(&page, "limited_calls{limitador_namespace=\"shop\",limit_name=\"per-user\"}"), 1.0);
    assert_eq!(value(&page, "datastore_partitioned"), 0.0);
    let file = folder.write("page", in_the_older_format(&page));
    let input = std::fs::File::open(file).expect("the page");
    let ran = Command::new("promtool").args(["check", "metrics"]).stdin(input).output().expect("promtool");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(!said.contains("error while linting"), "Prometheus reads the page: {said}");
}
