//! A killed process: the state that the next one restores.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_testkit::{Folder, Server, eventually};

const SNAPSHOT: &str = "tollgate.snapshot";
const RULES: &str = "rules:
  - { id: many, key: user, limit: 1000000/y }
  - { id: window, key: user, limit: 100000000/y, algorithm: fixed-window }
  - { id: log, match: /log, key: user, limit: 20/y, algorithm: sliding-log }
";

fn hit(server: &Server, user: &str) -> u16 {
    server.check(&json!({ "user": user })).status
}

/// The `state` of `/healthz`.
fn state(server: &Server) -> Value {
    server.admin("GET", "/healthz", "").json()["state"].clone()
}

/// Returns once all that was answered before this call is saved.
fn wait_until_saved(server: &Server) {
    let begun = Instant::now();
    eventually("everything is saved", || {
        let begun_at = begun.elapsed();
        state(server)["age_ms"].as_u64().is_some_and(|age| Duration::from_millis(age) < begun_at)
    });
}

/// Charges a user over one connection until it breaks; when each answer came.
fn charge_until_the_end(address: SocketAddr, user: &str) -> Vec<Instant> {
    let body = json!({ "user": user }).to_string();
    let request =
        format!("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let stream = TcpStream::connect(address).expect("it listens");
    let mut answers = BufReader::new(stream.try_clone().expect("a second handle"));
    let mut answer = || -> Option<()> {
        (&stream).write_all(request.as_bytes()).ok()?;
        let mut length = 0;
        let mut line = String::new();
        while answers.read_line(&mut line).ok()? > 2 {
            let value = line.to_ascii_lowercase().strip_prefix("content-length:").map(|it| it.trim().parse());
            length = value.transpose().expect("a number").unwrap_or(length);
            line.clear();
        }
        let mut body = vec![0; length];
        answers.read_exact(&mut body).ok().filter(|()| length > 0)
    };
    std::iter::from_fn(|| answer().map(|()| Instant::now())).collect()
}

#[test]
fn a_kill_under_load_costs_no_more_than_what_was_charged_since_the_last_write() {
    let folder = Folder::new();
    folder.configure(RULES);
    let server = Server::start_in(&folder);
    let address = server.http;
    let users = ["u0", "u1", "u2", "u3"];
    let (charged, saved) = thread::scope(|threads| {
        let clients = users.map(|user| threads.spawn(move || charge_until_the_end(address, user)));
        eventually("some writes under load", || metric(&server, "tollgate_state_writes_total") >= 4);
        let begun_at = Instant::now();
        let age = state(&server)["age_ms"].as_u64().expect("it was saved");
        server.kill();
        let charged = clients.map(|client| client.join().expect("a client"));
        (charged, begun_at - Duration::from_millis(age + 1))
    });

    let server = Server::start_in(&folder);
    server.wait_for_log("saved state restored");
    for (user, charged) in users.iter().zip(&charged) {
        let must = charged.iter().filter(|at| **at < saved).count() as u64;
        assert!(must > 0);
        // One more than was answered: the process may have been killed before it could.
        let all = charged.len() as u64 + 1;
        for rule in ["many", "window"] {
            let used = server.used(rule, &format!("user:{user}"))[0];
            assert!((must..=all).contains(&used), "{rule} {user}: {used} of {must} saved, {all} charged");
        }
    }
}

#[test]
fn bans_tracks_and_every_kind_of_state_survive_a_kill() {
    let folder = Folder::new();
    folder.configure(
        "rules:
  - { id: log, match: /log, key: user, limit: 3/y, algorithm: sliding-log }
  - { id: strict, match: /strict, key: user, limit: 1/y, track: true, ban: { key: [user], after: 2, for: 1h } }
",
    );
    let on = |server: &Server, path: &str, user: &str| {
        server.check(&json!({ "method": "GET", "path": path, "user": user })).status
    };
    let ban = |server: &Server, key: &str| {
        let ban = json!({ "key": key, "for": "1h" });
        assert_eq!(server.admin("POST", "/v1/bans", ban.to_string()).status / 100, 2);
    };
    let server = Server::start_in(&folder);
    ban(&server, "user:lifted");
    wait_until_saved(&server);
    ban(&server, "user:by-hand");
    let lifted = server.admin("DELETE", "/v1/bans/user:lifted", "");
    assert_eq!(lifted.status / 100, 2, "{lifted}");
    assert_eq!([(); 4].map(|()| on(&server, "/log", "ann")), [200, 200, 200, 429]);
    assert_eq!([(); 4].map(|()| on(&server, "/strict", "bob")), [200, 429, 429, 403]);
    assert_eq!([(); 2].map(|()| on(&server, "/strict", "cid")), [200, 429]);
    wait_until_saved(&server);
    server.kill();

    let server = Server::start_in(&folder);
    assert_eq!(on(&server, "/log", "ann"), 429);
    assert_eq!((on(&server, "/log", "bob"), on(&server, "/log", "by-hand")), (403, 403));
    assert_eq!(on(&server, "/log", "lifted"), 200);
    let track = server.admin("GET", "/v1/keys?rule=strict&key=user:cid", "").json();
    assert_eq!((&track["tries"], &track["denials"]), (&json!(2), &json!(1)));
    assert_eq!([(); 2].map(|()| on(&server, "/strict", "cid")), [429, 403], "one denial before, one after");
    // And once more: the file goes on where it was.
    wait_until_saved(&server);
    server.kill();
    let server = Server::start_in(&folder);
    assert_eq!((on(&server, "/log", "cid"), on(&server, "/log", "ann")), (403, 429));
}

#[test]
fn a_file_that_was_torn_by_the_crash_is_used_up_to_there() {
    let folder = Folder::new();
    folder.configure(RULES);
    let server = Server::start_in(&folder);
    hit(&server, "ann");
    wait_until_saved(&server);
    let complete = fs::metadata(folder.path(SNAPSHOT)).expect("it was saved").len();
    hit(&server, "ann");
    wait_until_saved(&server);
    server.kill();
    let whole = fs::read(folder.path(SNAPSHOT)).expect("it was saved");
    for cut in [whole.len() - 1, complete as usize + 1, complete as usize] {
        folder.write_private(SNAPSHOT, &whole[..cut]);
        let server = Server::start_in(&folder);
        assert_eq!(server.used("many", "user:ann"), [1], "cut at {cut} of {}", whole.len());
        hit(&server, "ann");
        wait_until_saved(&server);
        server.kill();
        assert_eq!(Server::start_in(&folder).used("many", "user:ann"), [2], "appended to after {cut}");
    }
}

#[test]
fn rules_that_were_changed_before_the_crash_keep_what_was_used() {
    let folder = Folder::new();
    folder.configure("rules: [{ id: a, key: user, limit: 5/y }]");
    let server = Server::start_in(&folder);
    (0..5).for_each(|_| _ = hit(&server, "ann"));
    wait_until_saved(&server);
    folder.configure("rules: [{ id: a, key: user, limit: 50/y }]");
    server.wait_for_log("rules generation 1 → 2");
    wait_until_saved(&server);
    server.kill();
    assert_eq!(Server::start_in(&folder).used("a", "user:ann"), [5]);
}

fn metric(server: &Server, name: &str) -> u64 {
    let page = server.admin("GET", "/metrics", "").text();
    let line = page.lines().find(|line| line.starts_with(name) && !line.starts_with('#'));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("{name} in {page}"))
}

#[test]
fn an_idle_server_writes_nothing_and_a_busy_one_little() {
    let folder = Folder::new();
    folder.configure(&format!("state: {{ every: 100ms }}\n{RULES}"));
    let server = Server::start_in(&folder);
    let users: Vec<_> = (0..1000).map(|n| json!({ "user": n.to_string() })).collect();
    for _ in 0..3 {
        let answer = server.request("POST", "/v1/check/batch", Value::from(users.clone()).to_string());
        assert_eq!(answer.status, 200, "{answer}");
    }
    wait_until_saved(&server);
    let bytes = metric(&server, "tollgate_state_written_bytes_total");
    let writes = metric(&server, "tollgate_state_writes_total");
    assert!(bytes > 2 * 1000 * 19, "{bytes}");
    eventually("more writes", || metric(&server, "tollgate_state_writes_total") > writes + 5);
    assert_eq!(metric(&server, "tollgate_state_written_bytes_total"), bytes, "nothing has changed");
    hit(&server, "1");
    wait_until_saved(&server);
    let more = metric(&server, "tollgate_state_written_bytes_total") - bytes;
    assert!((1..=400).contains(&more), "{more} bytes for two counters of one key");
    assert_eq!(
        metric(&server, "tollgate_state_file_bytes"),
        fs::metadata(folder.path(SNAPSHOT)).expect("it").len()
    );
}

/// The file may not grow beyond 32 KiB; later it may.
#[test]
fn a_full_disk_is_reported_and_nothing_is_lost_once_there_is_room() {
    const USERS: usize = 1500;
    let folder = Folder::new();
    let config = folder.configure(&format!("state: {{ every: 100ms }}\nrules_db: none\n{RULES}"));
    let mut command = Command::new("sh");
    // Blocks of 512 bytes. The signal would end the process; ignored, the write fails.
    let script = "trap '' XFSZ; ulimit -S -f 64; exec \"$0\" serve -c \"$1\"";
    command.arg("-c").arg(script).arg(env!("CARGO_BIN_EXE_tollgate")).arg(&config);
    let server = Server::run(&folder, &mut command);
    let users: Vec<_> = (0..USERS).map(|n| json!({ "user": n.to_string() })).collect();
    for part in users.chunks(500) {
        let answer = server.request("POST", "/v1/check/batch", Value::from(part).to_string());
        assert_eq!(answer.status, 200, "{answer}");
    }
    let health = |server: &Server| server.admin("GET", "/healthz", "").json();
    eventually("trouble", || health(&server)["state"]["trouble"].is_string());
    assert_eq!(health(&server)["status"], "impaired");
    server.wait_for_log("the state cannot be saved");
    eventually("a longer interval", || health(&server)["state"]["interval_ms"].as_u64() > Some(100));
    assert_eq!(hit(&server, "1"), 200, "requests are answered all the same");
    assert!(fs::metadata(folder.path(SNAPSHOT)).expect("it was begun").len() <= 32 << 10);

    let id = server.id().to_string();
    let lifted = Command::new("prlimit").args(["--pid", &id, "--fsize=unlimited"]).status();
    assert!(lifted.expect("prlimit runs").success());
    eventually("no more trouble", || health(&server)["state"]["trouble"].is_null());
    assert_eq!(health(&server)["status"], "ok");
    server.wait_for_log("the state is saved again");
    wait_until_saved(&server);
    server.kill();
    let server = Server::start_in(&folder);
    let used = |n: usize| server.used("many", &format!("user:{n}"))[0];
    assert_eq!((used(0), used(1), used(USERS / 2), used(USERS - 1)), (1, 2, 1, 1));
    server.wait_for_log(&format!("counters={}", 2 * USERS));
}
