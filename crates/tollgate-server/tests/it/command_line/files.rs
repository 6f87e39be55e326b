//! Configuration files: `tollgate rules check`, and what `serve` makes of them.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;
use tollgate_testkit::{Folder, Server, tollgate};

use crate::command_line::{RULES, fails, json_of};

fn configured(contents: impl AsRef<[u8]>) -> (std::sync::Arc<Folder>, String) {
    let folder = Folder::new();
    let path = folder.write("t.yaml", contents);
    (folder, path.to_str().expect("a plain path").to_owned())
}

#[test]
fn a_valid_file_is_0() {
    let (_folder, path) = configured(RULES);
    let ran = tollgate(&["rules", "check", &path]);
    assert_eq!((ran.code, ran.stdout), (Some(0), format!("{path}: valid, 4 rules\n")));
    let json = json_of(&tollgate(&["rules", "check", "--json", &path]));
    assert_eq!((&json["valid"], &json["rules"]), (&json!(true), &json!(4)));
    let (_folder, list) = configured("# rules only\n---\n- { id: a, limit: 5/m }\n");
    assert_eq!(tollgate(&["rules", "check", &list]).stdout, format!("{list}: valid, 1 rule\n"));
    let (_folder, list) = configured("- { id: a, limit: 5/m }\n- { id: a, limit: 5/m }\n");
    fails(&tollgate(&["rules", "check", &list]), 3, &[":2:", "rule id 'a' is used twice"]);
    let (_folder, empty) = configured("");
    assert_eq!(tollgate(&["rules", "check", &empty]).code, Some(0));
}

#[test]
fn all_problems_of_a_file_are_reported_at_once_by_line_and_column() {
    let (_folder, path) = configured(
        "listen: { http: 127.0.0.1:1, admin: 127.0.0.1:1 }
memory: lots
ipv6_prefix: 300
colour: red
rules:
  - { id: a, limit: 5/fortnight }
  - { id: 'b b', limit: 5/m }
  - { id: c, limit: -5/m }
  - { id: d, limit: 5/m, algorithm: magic }
  - { id: e, limit: 5/m, burst: 2, cost: 3 }
  - { id: f, limit: 5/m }
  - { id: f, limit: 6/m }
  - { id: g, key: shoe_size, limit: 5/m }
  - { id: h }
allow: [nobody]
bans: [{ key: 'ip:1.2.3' }]
",
    );
    let expected = [
        ("1:9", "both listen on 127.0.0.1:1"),
        ("2:9", "'lots'"),
        ("3:14", "from 1 to 128"),
        ("4:1", "unknown key 'colour'"),
        ("6:21", "unknown unit 'fortnight' in '5/fortnight': use s, m, h, d, week, month"),
        ("7:11", "'b b' is not a valid id"),
        ("8:21", "'-5/m'"),
        ("9:37", "'magic'"),
        ("10:21", "less than the cost 3"),
        ("12:", "rule id 'f' is used twice, first at line 11"),
        ("13:19", "unknown attribute 'shoe_size'"),
        ("14:", "limit"),
        ("15:9", "'nobody' has no value"),
        ("16:", "'1.2.3' is not an IP address"),
    ];
    let ran = tollgate(&["rules", "check", &path]);
    fails(&ran, 3, &[&format!("\n{} problems", expected.len())]);
    for (place, words) in expected {
        let start = format!("{path}:{place}");
        let found = ran.stderr.lines().any(|line| line.starts_with(&start) && line.contains(words));
        assert!(found, "{place} {words}:\n{}", ran.stderr);
    }
    let json = tollgate(&["rules", "check", "--json", &path]);
    let problems = json_of(&json)["problems"].as_array().cloned().expect("a list");
    assert_eq!((json.code, problems.len()), (Some(3), expected.len()));
    for problem in problems {
        assert_eq!(problem["file"], path);
        assert!(problem["line"].is_u64() && problem["column"].is_u64() && problem["message"].is_string());
    }
    fails(&tollgate(&["serve", "-c", &path]), 3, &["'5/fortnight'", "unknown key 'colour'"]);
}

#[test]
fn a_file_that_cannot_be_read_is_3_and_named() {
    let folder = Folder::new();
    let missing = folder.path("missing.yaml").to_str().expect("a plain path").to_owned();
    let directory = folder.path("").to_str().expect("a plain path").to_owned();
    let binary =
        folder.write("binary.yaml", b"rules:\n  - \xff\xfe\n").to_str().expect("a plain path").to_owned();
    let broken = folder.write("broken.yaml", "rules: [\n").to_str().expect("a plain path").to_owned();
    for (path, words) in [
        (&missing, "No such file"),
        (&directory, "directory"),
        (&binary, "is not UTF-8 text: see line 2"),
        (&broken, "broken.yaml:"),
    ] {
        fails(&tollgate(&["serve", "-c", path]), 3, &[path.as_str(), words]);
        fails(&tollgate(&["rules", "check", path]), 3, &[path.as_str(), words]);
    }
    let locked = folder.write("locked.yaml", "");
    std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o000)).expect("a mode");
    if std::fs::read(&locked).is_err() {
        // Root may read everything.
        let locked = locked.to_str().expect("a plain path");
        fails(&tollgate(&["serve", "-c", locked]), 3, &[locked, "denied"]);
    }
    let nowhere = folder.write("nowhere.yaml", "state_dir: nowhere\n");
    fails(&tollgate(&["serve", "-c", nowhere.to_str().expect("a plain path")]), 3, &["state_dir", "nowhere"]);
    let tokens = folder.write("tokens.yaml", "tokens_file: nobody\n");
    fails(&tollgate(&["serve", "-c", tokens.to_str().expect("a plain path")]), 3, &["tokens_file", "nobody"]);
}

#[test]
fn a_busy_port_is_1_and_named_with_what_it_was_for() {
    let busy = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = busy.local_addr().expect("an address").to_string();
    for (listener, other) in [("http", "admin"), ("admin", "http")] {
        let (_folder, path) = configured(format!("listen: {{ {listener}: {address}, {other}: off }}\n"));
        fails(&tollgate(&["serve", "-c", &path]), 1, &[&address, listener, "in use"]);
    }
}

#[test]
fn unsupported_settings_are_reported() {
    let (_folder, path) = configured("envoy_config: envoy/\n");
    fails(&tollgate(&["rules", "check", &path]), 3, &["envoy_config", "cannot be read"]);
    let (_folder, path) = configured(
        "nodes: 3
listen: { proxy: 127.0.0.1:8000 }
rules:
  - { id: a, limit: 5/m, on_exceed: queue, on_store_error: closed }
  - { id: b, limit: 5/m, count_when: failure, key: 'json:email' }
",
    );
    let ran = tollgate(&["rules", "check", &path]);
    assert_eq!(ran.code, Some(0));
    for name in [
        "nodes has no effect without counters on a server",
        "listen.proxy has no effect without upstreams",
        "on_exceed: queue (rule a) has no effect without upstreams",
        "on_store_error (rule a) has no effect without counters on a server",
        "a key of json: or form: (rule b) has no effect without upstreams",
    ] {
        assert!(ran.stderr.contains(&format!("note: {name}")), "{ran:?}");
    }
}

#[test]
fn a_queue_longer_than_client_timeouts_is_warned_of() {
    let rules = "- { id: slow, limit: 5/m, algorithm: leaky-bucket }\n- { id: quick, limit: 5/s, algorithm: leaky-bucket }\n";
    let (_folder, list) = configured(rules);
    let (_folder, config) = configured(format!("rules:\n{rules}"));
    for path in [&list, &config] {
        let ran = tollgate(&["rules", "check", path]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let report: Vec<_> = ran.stderr.lines().filter(|line| line.starts_with("warning: ")).collect();
        assert_eq!(report.len(), 1, "{ran:?}");
        assert!(report[0].starts_with("warning: rule slow: 5/m holds requests for up to 48s"), "{ran:?}");
        let ran = tollgate(&["rules", "check", path, "--json"]);
        let report: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
        assert_eq!(report["warnings"].as_array().map(Vec::len), Some(1), "{ran:?}");
    }
}

#[test]
fn listeners_can_be_switched_off() {
    let folder = Folder::new();
    let path = folder.write("off.yaml", "listen: { http: off, admin: 127.0.0.1:0 }\n");
    let server = Server::start_at(&folder, &path);
    assert_eq!(server.admin("GET", "/readyz", "").status, 200);
    assert!(!server.log().contains("http listens on"));
}
