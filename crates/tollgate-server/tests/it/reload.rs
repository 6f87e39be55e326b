//! A changed file is reloaded however it was changed, and an invalid one is not.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::json;
use tollgate_testkit::{Client, Folder, Server, eventually};

const LISTEN: &str = "listen: { http: 127.0.0.1:0, admin: 127.0.0.1:0 }\n";

fn limit(limit: &str) -> String {
    format!("{LISTEN}rules: [{{ id: a, key: user, limit: {limit}, algorithm: sliding-log }}]\n")
}

fn start(folder: &Arc<Folder>) -> Server {
    folder.write("tollgate.yaml", limit("5/y"));
    Server::start_in(folder)
}

fn in_force(server: &Server) -> String {
    let rules = server.admin("GET", "/v1/rules", "").json();
    rules["rules"][0]["limits"][0].as_str().unwrap_or_default().to_owned()
}

/// The limit is in force, and logged.
fn taken_up(server: &Server, limit: &str, generations: &str) {
    eventually(limit, || in_force(server) == limit);
    server.wait_for_log(&format!("rules generation {generations}"));
}

fn rename_over(folder: &Folder, contents: &str) {
    let new = folder.write("new.yaml", contents);
    fs::rename(new, folder.path("tollgate.yaml")).expect("a rename");
}

#[test]
fn a_file_changed_in_place_renamed_over_or_linked_is_reloaded() {
    let folder = Folder::new();
    let server = start(&folder);
    folder.write("tollgate.yaml", limit("6/y"));
    taken_up(&server, "6/y", "1 → 2");
    rename_over(&folder, &limit("7/y"));
    taken_up(&server, "7/y", "2 → 3");
    folder.write("other.yaml", limit("8/y"));
    symlink("other.yaml", folder.path("link")).expect("a link");
    fs::rename(folder.path("link"), folder.path("tollgate.yaml")).expect("a rename");
    taken_up(&server, "8/y", "3 → 4");
    folder.write("other.yaml", limit("9/y"));
    taken_up(&server, "9/y", "4 → 5");
    let metrics = server.admin("GET", "/metrics", "").text();
    assert!(metrics.contains("tollgate_reloads_total{result=\"applied\"} 4"), "{metrics}");
}

#[test]
fn a_change_that_keeps_length_and_timestamp_is_reloaded() {
    let folder = Folder::new();
    let path = folder.write("tollgate.yaml", limit("5/y"));
    let write = |contents: &str| {
        fs::write(&path, contents).expect("a file of the test");
        let file = fs::File::options().write(true).open(&path).expect("it is there");
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_000)).expect("a time stamp");
    };
    write(&limit("5/y"));
    let server = Server::start_in(&folder);
    write(&limit("6/y"));
    taken_up(&server, "6/y", "1 → 2");
    write(&limit("7/y"));
    taken_up(&server, "7/y", "2 → 3");
}

/// As Kubernetes mounts a ConfigMap: `tollgate.yaml → ..data/tollgate.yaml`, `..data → ..2026_01`.
fn mount(folder: &Folder, version: &str, contents: &str) {
    fs::create_dir(folder.path(version)).expect("a folder");
    folder.write(&format!("{version}/tollgate.yaml"), contents);
    symlink(version, folder.path("..data_tmp")).expect("a link");
    fs::rename(folder.path("..data_tmp"), folder.path("..data")).expect("a rename");
}

#[test]
fn a_folder_swapped_behind_two_links_is_reloaded() {
    let folder = Folder::new();
    mount(&folder, "..2026_01", &limit("5/y"));
    symlink(Path::new("..data/tollgate.yaml"), folder.path("tollgate.yaml")).expect("a link");
    let server = Server::start_in(&folder);
    mount(&folder, "..2026_02", &limit("6/y"));
    fs::remove_dir_all(folder.path("..2026_01")).expect("the old version goes");
    taken_up(&server, "6/y", "1 → 2");
    mount(&folder, "..2026_03", &limit("7/y"));
    taken_up(&server, "7/y", "2 → 3");
}

#[test]
fn a_sighup_reads_the_file_at_once() {
    let folder = Folder::new();
    let server = start(&folder);
    server.signal("HUP");
    server.wait_for_log("the configuration has not changed");
    folder.write("tollgate.yaml", limit("6/y"));
    server.signal("HUP");
    taken_up(&server, "6/y", "1 → 2");
}

#[test]
fn a_bad_file_is_reported_by_line_and_column_and_the_rules_in_force_stay() {
    let folder = Folder::new();
    let server = start(&folder);
    let bad = format!("{LISTEN}rules:\n  - id: a\n    limit: 5/fortnight\ncolour: red\n");
    folder.write("tollgate.yaml", bad);
    server.wait_for_log("the configuration was rejected: the rules in force stay");
    let log = server.log();
    assert!(log.contains("tollgate.yaml:4:12: rules[0].limit: unknown unit 'fortnight'"), "{log}");
    assert!(log.contains("tollgate.yaml:5:1: unknown key 'colour'"), "{log}");
    assert_eq!(in_force(&server), "5/y");
    assert_eq!(server.check(&json!({ "user": "ann" })).json()["remaining"], 4);
    let health = || server.admin("GET", "/healthz", "").json();
    let report = health();
    let trouble = report["reload"]["trouble"].as_str().unwrap_or_default();
    assert!(report["status"] == "impaired" && trouble.contains("unknown unit 'fortnight'"), "{report}");

    folder.write("tollgate.yaml", b"rules: \xff\xfe\n");
    server.wait_for_log("is not UTF-8");
    fs::remove_file(folder.path("tollgate.yaml")).expect("it is there");
    server.signal("HUP");
    server.wait_for_log("cannot be read");
    assert_eq!(in_force(&server), "5/y");
    let metrics = server.admin("GET", "/metrics", "").text();
    assert!(metrics.contains("tollgate_rules_generation 1\n"), "{metrics}");

    folder.write("tollgate.yaml", limit("6/y"));
    taken_up(&server, "6/y", "1 → 2");
    assert_eq!((&health()["status"], &health()["reload"]), (&json!("ok"), &json!(null)));
}

#[test]
fn an_emptied_file_does_not_remove_the_rules() {
    let folder = Folder::new();
    let server = start(&folder);
    for empty in ["", "\n \n"] {
        folder.write("tollgate.yaml", empty);
        server.signal("HUP");
        server.wait_for_log("is empty");
        assert_eq!(in_force(&server), "5/y");
    }
    folder.write("tollgate.yaml", format!("{LISTEN}rules: []\n"));
    eventually("no rules", || in_force(&server).is_empty());
}

#[test]
fn what_was_used_stays_used_under_the_new_limit() {
    for algorithm in [
        "gcra",
        "token-bucket",
        "leaky-bucket, on_exceed: reject",
        "fixed-window",
        "sliding-log",
        "sliding-compact, resolution: 1d",
        "sliding-counter",
        "tiered-window",
    ] {
        let config = |limit: u32| {
            format!("{LISTEN}rules: [{{ id: a, key: user, limit: {limit}/y, algorithm: {algorithm} }}]\n")
        };
        let folder = Folder::new();
        folder.write("tollgate.yaml", config(5));
        let server = Server::start_in(&folder);
        let hit = || server.check(&json!({ "user": "ann" })).json();
        for _ in 0..6 {
            hit();
        }
        assert_eq!(server.used("a", "user:ann"), [5], "{algorithm}");
        for (limit, left) in [(50, 45), (5, 0), (20, 15)] {
            folder.write("tollgate.yaml", config(limit));
            server.signal("HUP");
            eventually("the limit is in force", || in_force(&server) == format!("{limit}/y"));
            assert_eq!(server.used("a", "user:ann"), [5], "{algorithm}: 5 of {limit} used");
            let peek = server.check(&json!({ "user": "ann", "peek": true })).json();
            assert_eq!(
                (&peek["remaining"], &peek["allowed"]),
                (&json!(left), &json!(left > 0)),
                "{algorithm}"
            );
        }
        assert_eq!(hit()["remaining"], 14, "{algorithm}");
    }
}

#[test]
fn bans_tracks_and_tallies_outlive_a_reload() {
    let folder = Folder::new();
    let rules = |limit: u32| {
        format!(
            "{LISTEN}rules: [{{ id: a, key: user, limit: {limit}/y, track: true }}]\nbans: [{{ key: 'user:file{limit}' }}]\n"
        )
    };
    folder.write("tollgate.yaml", rules(1));
    let server = Server::start_in(&folder);
    server.check(&json!({ "user": "ann" }));
    server.admin("POST", "/v1/bans", json!({ "key": "user:evil", "for": "1h" }).to_string());
    folder.write("tollgate.yaml", rules(2));
    taken_up(&server, "2/y", "1 → 2");
    assert_eq!(server.check(&json!({ "user": "evil" })).status, 403);
    assert_eq!(server.check(&json!({ "user": "file1" })).status, 200, "taken out of the file");
    assert_eq!(server.check(&json!({ "user": "file2" })).status, 403, "new in the file");
    let shown = server.admin("GET", "/v1/keys?rule=a&key=user:ann", "").json();
    assert_eq!(shown["tries"], 1);
}

#[test]
fn settings_beside_the_rules_change_as_well_where_they_can() {
    let folder = Folder::new();
    let server = start(&folder);
    folder.write("tollgate.yaml", format!("{}headers: none\nmemory: 64MiB\n", limit("5/y")));
    server.wait_for_log("rules generation 1 → 2");
    server.wait_for_log("memory has changed in the file: it changes only with a restart");
    assert_eq!(server.log().matches("only with a restart").count(), 1, "nothing else has changed");
    assert_eq!(server.check(&json!({ "user": "ann" })).header("ratelimit"), None);
}

#[test]
fn a_setting_that_needs_a_restart_is_named_exactly() {
    let folder = Folder::new();
    let server = start(&folder);
    let moved = limit("6/y").replace("http: 127.0.0.1:0", "http: 127.0.0.1:1, per_address: 7");
    let more = "fleet: { token_file: token }\nlog_keys: plain\nreceipt_key_file: key\n";
    folder.write("tollgate.yaml", format!("{moved}{more}"));
    server.wait_for_log("rules generation 1 → 2");
    let log = server.log();
    let settings = ["listen.http", "listen.per_address", "fleet.token_file", "log_keys", "receipt_key_file"];
    for setting in settings {
        assert!(log.contains(&format!("{setting} has changed in the file")), "{setting}: {log}");
    }
    assert_eq!(log.matches("only with a restart").count(), 5, "nothing else has changed: {log}");
}

#[test]
fn changed_secrets_that_need_a_restart_are_named() {
    let folder = Folder::new();
    let secret = |n: u32| format!("secret number {n} of at least thirty-two bytes\n");
    folder.write("receipts", secret(1));
    folder.write("names", secret(2));
    folder.configure(
        "counters: redis://127.0.0.1:1\nreceipt_key_file: receipts\nstore_secret_file: names\nrules: []\n",
    );
    let server = Server::start_in(&folder);
    let warning =
        |setting: &str| format!("the contents of {setting} have changed: they change only with a restart");
    folder.write("names", format!("  {}\n", secret(2))); // the same secret
    folder.write("receipts", secret(3));
    server.wait_for_log(&warning("receipt_key_file"));
    assert!(!server.log().contains(&warning("store_secret_file")), "{}", server.log());
    folder.write("names", secret(4));
    server.wait_for_log(&warning("store_secret_file"));
    assert_eq!(server.log().matches("only with a restart").count(), 2, "each once: {}", server.log());
}

#[test]
fn a_clash_with_a_rule_of_the_database_has_its_line() {
    let folder = Folder::new();
    let server = start(&folder);
    let rule = json!({ "key": "user", "limit": "5/m" }).to_string();
    assert_eq!(server.admin("PUT", "/v1/rules/dbr", rule).status, 201);
    let rules = "rules:\n  - { id: a, limit: 6/y }\n  - { id: dbr, limit: 7/m }\n";
    folder.write("tollgate.yaml", format!("{LISTEN}{rules}"));
    server.wait_for_log("the configuration was rejected");
    let log = server.log();
    assert!(log.contains("tollgate.yaml:4:5: rules: rule id 'dbr' is also used"), "{log}");
}

#[test]
fn changed_tokens_are_in_force_without_a_restart() {
    const OLD: &str = "old-token-0123456789abcdef";
    const NEW: &str = "new-token-0123456789abcdef";
    let folder = Folder::new();
    folder.write("tokens", format!("read {OLD} ann\n"));
    folder.configure("tokens_file: tokens\nrules: []\n");
    let server = Server::start_in(&folder);
    let status = |token: &str| {
        let authorization = format!("Bearer {token}");
        let headers = [("authorization", authorization.as_str())];
        Client::to(server.admin).request("GET", "/v1/rules", &headers, b"").status
    };
    assert_eq!((status(OLD), status(NEW)), (200, 401));
    folder.write("tokens", format!("read {NEW} bob\n"));
    server.wait_for_log("the tokens have changed");
    assert_eq!((status(OLD), status(NEW)), (401, 200));
    folder.write("tokens", "nonsense\n");
    server.wait_for_log("the configuration was rejected");
    assert_eq!((status(OLD), status(NEW)), (401, 200));
}

#[test]
fn no_request_fails_and_no_rule_is_missing_during_fifty_reloads() {
    let folder = Folder::new();
    let server = start(&folder);
    let stop = AtomicBool::new(false);
    let address = server.http;
    let send = || {
        let mut client = Client::to(address);
        let mut sent = 0;
        while !stop.load(Ordering::Relaxed) {
            let answer = client.request("POST", "/v1/check", &[], br#"{"user":"ann","peek":true}"#);
            assert_eq!((answer.status, &answer.json()["rule"]), (200, &json!("a")), "{answer}");
            sent += 1;
        }
        sent
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(send)).collect();
        for n in 1..=50 {
            let contents = limit(&format!("{}/y", 5 + n));
            if n % 2 == 0 {
                // As careless editors do: emptied, half written, then written.
                folder.write("tollgate.yaml", "");
                folder.write("tollgate.yaml", &contents[..contents.len() / 2]);
                folder.write("tollgate.yaml", &contents);
            } else {
                rename_over(&folder, &contents);
            }
            server.signal("HUP");
            server.wait_for_log(&format!("rules generation {n} → {}", n + 1));
        }
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            assert!(client.join().expect("every answer was right") > 0);
        }
    });
    assert_eq!(in_force(&server), "55/y");
}
