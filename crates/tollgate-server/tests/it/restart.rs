//! A stop, and the start after it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;
use tollgate_testkit::{Folder, Server, eventually, tollgate};

const SNAPSHOT: &str = "tollgate.snapshot";
const RULES: &str = "rules: [{ id: a, key: user, limit: 5/y, algorithm: sliding-log }]";

fn stop(server: Server) -> String {
    let (ended, log) = server.stop();
    assert_eq!(ended.code(), Some(0), "{log}");
    log
}

fn hit(server: &Server, user: &str) -> u16 {
    server.check(&json!({ "user": user })).status
}

#[test]
fn counters_of_every_algorithm_come_back() {
    let algorithms = [
        "gcra",
        "token-bucket",
        "token-bucket, refill: calendar",
        "leaky-bucket, on_exceed: reject",
        "fixed-window",
        "fixed-window, window: first-hit",
        "sliding-log",
        "sliding-compact, resolution: 1d",
        "sliding-counter",
        "tiered-window",
    ];
    let rules: Vec<_> = algorithms
        .iter()
        .enumerate()
        .map(|(n, algorithm)| format!("{{ id: r{n}, key: user, limit: 5/y, algorithm: {algorithm} }}"))
        .collect();
    let folder = Folder::new();
    folder.configure(&format!("rules: [{}]", rules.join(", ")));
    let server = Server::start_in(&folder);
    for _ in 0..3 {
        assert_eq!(hit(&server, "ann"), 200);
    }
    assert!(stop(server).contains("state saved"));
    let server = Server::start_in(&folder);
    server.wait_for_log("saved state restored");
    for (n, algorithm) in algorithms.iter().enumerate() {
        assert_eq!(server.used(&format!("r{n}"), "user:ann"), [3], "{algorithm}");
        assert_eq!(server.used(&format!("r{n}"), "user:bob"), [0], "{algorithm}");
    }
    let statuses = [(); 3].map(|()| hit(&server, "ann"));
    assert_eq!(statuses, [200, 200, 429]);
}

#[test]
fn tracked_keys_come_back() {
    let folder = Folder::new();
    folder.configure("rules: [{ id: a, key: user, limit: 2/y, track: true }]");
    let server = Server::start_in(&folder);
    let tracked = |server: &Server| {
        let reply = server.admin("GET", "/v1/keys?rule=a&key=user:ann", "").json();
        ["tries", "denials", "last_seen", "latest", "scope"].map(|name| reply[name].clone())
    };
    (0..3).for_each(|_| _ = hit(&server, "ann"));
    let before = tracked(&server);
    assert_eq!((&before[0], &before[1], &before[4]), (&json!(3), &json!(1), &json!("node")));
    stop(server);
    let server = Server::start_in(&folder);
    assert_eq!(tracked(&server), before);
    assert_eq!(hit(&server, "ann"), 429);
    assert_eq!(tracked(&server)[..2], [json!(4), json!(2)]);
}

#[test]
fn a_second_restart_is_as_good_as_the_first() {
    let folder = Folder::new();
    folder.configure(RULES);
    for used in 1..=3 {
        let server = Server::start_in(&folder);
        assert_eq!(hit(&server, "ann"), 200);
        assert_eq!(server.used("a", "user:ann"), [used]);
        stop(server);
    }
}

#[test]
fn only_the_owner_may_read_the_snapshot() {
    let folder = Folder::new();
    folder.configure(RULES);
    stop(Server::start_in(&folder));
    let mode = fs::metadata(folder.path(SNAPSHOT)).expect("it was saved").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!folder.path("tollgate.snapshot.tmp").exists());
}

#[test]
fn state_files_that_others_may_read_are_rejected_with_the_command_that_fixes_them() {
    let folder = Folder::new();
    let upstream = "upstreams: ['http://127.0.0.1:1']\nqueue: {}\n";
    let config = folder.configure(&format!("{upstream}{RULES}"));
    stop(Server::start_in(&folder));
    folder.write("tollgate-pending-edits.ndjson", "");
    let names =
        [SNAPSHOT, "tollgate.db", "tollgate-queue.db", "tollgate.insight", "tollgate-pending-edits.ndjson"];
    let files = names.map(|name| folder.path(name));
    let set_mode = |mode: u32| {
        for file in &files {
            fs::set_permissions(file, fs::Permissions::from_mode(mode)).expect("it is ours");
        }
    };
    for mode in [0o644, 0o602, 0o666] {
        set_mode(mode);
        let ran = tollgate(&["serve", "-c", config.to_str().expect("a plain path")]);
        assert_eq!(ran.code, Some(3), "{ran:?}");
        for file in &files {
            assert!(ran.stderr.contains(&format!("chmod 600 '{}'", file.display())), "{ran:?}");
        }
    }
    set_mode(0o640);
    let server = Server::start_in(&folder);
    server.wait_for_log("is open to its group");
    stop(server);
    set_mode(0o600);
    stop(Server::start_in(&folder));
}

#[test]
fn a_second_node_with_the_same_folder_is_rejected_and_names_the_first() {
    let folder = Folder::new();
    let config = folder.configure(RULES);
    let first = Server::start_in(&folder);
    assert_eq!(hit(&first, "ann"), 200);
    let ran = tollgate(&["serve", "-c", config.to_str().expect("a plain path")]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    for words in [format!("process {} ", first.id()), first.http.to_string(), first.admin.to_string()] {
        assert!(ran.stderr.contains(&words), "{words}: {ran:?}");
    }
    assert!(ran.stderr.contains("state_dir"), "{ran:?}");
    assert_eq!(first.used("a", "user:ann"), [1], "the first goes on");
    // The lock file of a killed process does not prevent a start.
    first.kill();
    assert!(folder.path("tollgate.lock").exists());
    stop(Server::start_in(&folder));
    stop(Server::start_in(&folder));
}

#[test]
fn the_snapshot_is_kept_where_the_configuration_says() {
    let folder = Folder::new();
    fs::create_dir(folder.path("state")).expect("a folder");
    folder.configure(&format!("state_dir: state\n{RULES}"));
    let server = Server::start_in(&folder);
    hit(&server, "ann");
    stop(server);
    assert!(folder.path("state/tollgate.snapshot").exists() && !folder.path(SNAPSHOT).exists());
    assert_eq!(Server::start_in(&folder).used("a", "user:ann"), [1]);
}

#[test]
fn bans_and_strikes_come_back() {
    let folder = Folder::new();
    folder.configure(
        "rules: [{ id: a, key: user, limit: 1/y, ban: { key: [user], after: 2, within: 1h, for: 1h, max: 24h } }]
bans: [{ key: 'user:file' }]",
    );
    let server = Server::start_in(&folder);
    let ban = json!({ "key": "ip:203.0.113.0/24", "for": "1h", "reason": "by hand" });
    server.admin("POST", "/v1/bans", ban.to_string());
    assert_eq!([(); 4].map(|()| hit(&server, "ann")), [200, 429, 429, 403]);
    assert_eq!([(); 2].map(|()| hit(&server, "bob")), [200, 429]);
    let bans = |server: &Server| -> Vec<_> {
        let list = server.admin("GET", "/v1/bans", "").json();
        let bans = list["bans"].as_array().expect("a list").iter();
        bans.map(|ban| ["key", "until", "reason", "source", "strikes"].map(|name| ban[name].clone()))
            .collect()
    };
    let before = bans(&server);
    assert_eq!(before.len(), 3);
    stop(server);

    let server = Server::start_in(&folder);
    assert_eq!(bans(&server), before);
    assert_eq!(server.check(&json!({ "ip": "203.0.113.9" })).status, 403);
    assert_eq!((hit(&server, "ann"), hit(&server, "file")), (403, 403));
    assert_eq!([(); 2].map(|()| hit(&server, "bob")), [429, 403], "one denial before the stop, one after");
}

#[test]
fn strikes_count_after_a_restart() {
    let folder = Folder::new();
    folder.configure(
        "rules: [{ id: a, key: user, limit: 0/y, ban: { key: [user], after: 2, within: 1h, for: 2s, max: 1h } }]",
    );
    let strikes = |server: &Server| {
        eventually("a ban", || hit(server, "ann") == 403);
        server.admin("GET", "/v1/bans", "").json()["bans"][0]["strikes"].clone()
    };
    let server = Server::start_in(&folder);
    assert_eq!(strikes(&server), 1);
    eventually("its end", || hit(&server, "ann") == 429);
    stop(server);
    assert_eq!(strikes(&Server::start_in(&folder)), 2);
}

#[test]
fn a_damaged_snapshot_is_logged_renamed_and_does_not_stop_the_start() {
    let folder = Folder::new();
    folder.configure(RULES);
    let server = Server::start_in(&folder);
    hit(&server, "ann");
    stop(server);
    let good = fs::read(folder.path(SNAPSHOT)).expect("it was saved");
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    for (what, bytes) in [
        ("flipped in the version", flipped(8)),
        ("flipped in the secret", flipped(30)),
        ("cut in the header", good[..60].to_vec()),
        ("nearly empty", good[..3].to_vec()),
        ("empty", Vec::new()),
        ("not a saved state", b"hello".to_vec()),
    ] {
        folder.write_private(SNAPSHOT, &bytes);
        let server = Server::start_in(&folder);
        let log = server.log();
        assert!(log.contains("the saved state is not used") && log.contains("renamed"), "{what}: {log}");
        assert_eq!(fs::read(folder.path("tollgate.snapshot.damaged")).expect(what), bytes);
        assert_eq!(server.used("a", "user:ann"), [0], "{what}");
        assert_eq!(hit(&server, "ann"), 200, "{what}");
        server.kill();
    }
    for (what, bytes) in [
        ("flipped at the end", flipped(good.len() - 1)),
        ("flipped in the middle", flipped(good.len() / 2)),
        ("cut", good[..good.len() - 9].to_vec()),
        ("torn", [&good[..], b"a frame that was begun"].concat()),
    ] {
        folder.write_private(SNAPSHOT, &bytes);
        let server = Server::start_in(&folder);
        server.wait_for_log("incomplete or damaged");
        let used = u64::from(what == "torn");
        assert_eq!(server.used("a", "user:ann"), [used], "{what}: what stands before the damage is used");
        assert_eq!(hit(&server, "ann"), 200, "{what}");
        stop(server);
        assert_eq!(Server::start_in(&folder).used("a", "user:ann"), [used + 1], "{what}");
    }
    folder.write_private(SNAPSHOT, &good);
    assert_eq!(Server::start_in(&folder).used("a", "user:ann"), [1]);
}

#[test]
fn limits_changed_while_it_was_down_keep_what_was_used() {
    let folder = Folder::new();
    folder.configure(RULES);
    let server = Server::start_in(&folder);
    for _ in 0..5 {
        hit(&server, "ann");
    }
    stop(server);
    folder.configure(&RULES.replace("5/y", "50/y"));
    let server = Server::start_in(&folder);
    assert_eq!(server.used("a", "user:ann"), [5]);
    assert_eq!(server.check(&json!({ "user": "ann" })).json()["remaining"], 44);
    stop(server);
    folder.configure("rules: [{ id: other, limit: 1/y }]");
    let server = Server::start_in(&folder);
    assert_eq!(server.used("other", ""), [0]);
}

#[test]
fn a_state_that_is_saved_at_a_clean_stop_only_is_as_it_was_then() {
    let folder = Folder::new();
    folder.configure(&format!("state: {{ every: off }}\n{RULES}"));
    let server = Server::start_in(&folder);
    hit(&server, "ann");
    assert!(!folder.path(SNAPSHOT).exists());
    assert_eq!(server.admin("GET", "/healthz", "").json().get("state"), None);
    stop(server);
    let server = Server::start_in(&folder);
    hit(&server, "ann");
    server.kill();
    folder.write("tollgate.snapshot.tmp", "left over by a crash");
    let server = Server::start_in(&folder);
    assert_eq!(server.used("a", "user:ann"), [1]);
    stop(server);
    assert!(!folder.path("tollgate.snapshot.tmp").exists());
}

#[test]
fn a_state_that_cannot_be_saved_is_logged() {
    let folder = Folder::new();
    fs::create_dir(folder.path("state")).expect("a folder");
    folder.configure(&format!("state_dir: state\n{RULES}"));
    let server = Server::start_in(&folder);
    // The server may write into the folder while it is removed.
    eventually("the folder is gone", || fs::remove_dir_all(folder.path("state")).is_ok());
    let (ended, log) = server.stop();
    assert!(log.contains("state could not be saved"), "{log}");
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn an_interrupt_is_a_clean_stop_too() {
    let folder = Folder::new();
    folder.configure(RULES);
    let server = Server::start_in(&folder);
    server.signal("INT");
    server.wait_for_log("state saved");
    assert!(folder.path(SNAPSHOT).exists());
}

#[test]
fn limits_changed_before_the_stop_keep_what_was_used() {
    for algorithm in
        ["gcra", "token-bucket", "fixed-window", "sliding-log", "sliding-counter", "tiered-window"]
    {
        let config =
            |limit: u32| format!("rules: [{{ id: a, key: user, limit: {limit}/y, algorithm: {algorithm} }}]");
        let folder = Folder::new();
        folder.configure(&config(5));
        let server = Server::start_in(&folder);
        for _ in 0..5 {
            hit(&server, "ann");
        }
        folder.configure(&config(50));
        server.wait_for_log("rules generation 1 → 2");
        stop(server);
        let server = Server::start_in(&folder);
        assert_eq!(server.used("a", "user:ann"), [5], "{algorithm}");
        stop(server);
        folder.configure(&config(20));
        stop(Server::start_in(&folder));
        let server = Server::start_in(&folder);
        assert_eq!(server.used("a", "user:ann"), [5], "{algorithm}: changed again while it was down");
        assert_eq!(server.check(&json!({ "user": "ann" })).json()["remaining"], 14, "{algorithm}");
    }
}
