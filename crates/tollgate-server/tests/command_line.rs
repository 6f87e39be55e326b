//! The command line: what it prints where, and how it ends.

mod harness;

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use harness::{Client, Folder, Ran, Server, binary, eventually, tollgate};
use serde_json::{Value, json};

const RULES: &str = "rules:
  - { id: login, match: POST /login, key: email, limit: 2/y, track: true }
  - { id: plan, match: /plan, key: 'attr:plan', limit: 9/y }
  - { id: api, match: /api, key: [api_key, 'header:x-a'], limit: 9/y }
  - { id: counter, match: /counter, limit: 9/y, algorithm: sliding-counter }
";

fn json_of(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

/// Ended with `code`, with nothing but `words` on stderr; the data goes to stdout.
fn fails(ran: &Ran, code: i32, words: &[&str]) {
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{ran:?}");
    for word in words {
        assert!(ran.stderr.contains(word), "'{word}': {ran:?}");
    }
}

/// The commands, against one server.
struct Shell(Server);

impl Shell {
    fn start() -> Shell {
        Shell(Server::start(RULES))
    }

    fn check(&self, args: &[&str]) -> Ran {
        let url = format!("http://{}", self.0.http);
        tollgate(&[&["check", "--http", &url], args].concat())
    }

    fn admin(&self, args: &[&str]) -> Ran {
        let url = format!("http://{}", self.0.admin);
        tollgate(&[args, &["--admin", &url]].concat())
    }
}

#[test]
fn help_and_version_go_to_stdout_and_are_a_success() {
    for args in [
        &["--help"][..],
        &["help"],
        &["help", "ban", "add"],
        &["serve", "--help"],
        &["demo", "--help"],
        &["check", "--help"],
        &["rules", "check", "--help"],
        &["ban", "rm", "--help"],
        &["key", "show", "--help"],
    ] {
        let ran = tollgate(args);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        assert!(ran.stdout.contains("Usage: tollgate"), "{ran:?}");
        let undescribed =
            ran.stdout.lines().find(|line| line.trim_start().starts_with('-') && line.ends_with("  "));
        assert_eq!(undescribed, None, "every option is described");
    }
    let version = tollgate(&["--version"]);
    assert_eq!(version.stdout.trim(), concat!("tollgate ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_wrong_usage_is_2_and_said_on_stderr() {
    fails(&tollgate(&[]), 2, &["Usage: tollgate <COMMAND>"]);
    fails(&tollgate(&["serv"]), 2, &["unrecognized subcommand 'serv'", "serve"]);
    fails(&tollgate(&["serve", "--colour"]), 2, &["--colour"]);
    fails(&tollgate(&["check", "--cost", "many"]), 2, &["--cost", "many"]);
    fails(&tollgate(&["check", "--header", "no-value"]), 2, &["NAME=VALUE"]);
    fails(&tollgate(&["check", "--http", "127.0.0.1:8080"]), 2, &["127.0.0.1:8080", "http://HOST:PORT"]);
    fails(
        &tollgate(&["ban", "add", "user:a", "--for", "1h", "--until", "2126-01-01T00:00:00Z"]),
        2,
        &["--until"],
    );
    fails(&tollgate(&["ban", "add"]), 2, &["<KEY>"]);
}

#[test]
fn nobody_at_the_address_is_4() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let url = format!("http://{free}");
    fails(&tollgate(&["check", "--http", &url, "/x"]), 4, &[&url, "is the server running?"]);
    fails(&tollgate(&["ban", "ls", "--admin", &url]), 4, &[&url]);
    fails(&tollgate(&["key", "show", "a", "--admin", &url]), 4, &[&url]);
}

#[test]
fn a_check_is_0_when_allowed_and_1_when_denied() {
    let shell = Shell::start();
    let login = ["POST", "/login", "--email", "ann@example.com"];
    let ran = shell.check(&login);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "allowed: 1 left of 2/y (rule login)\n"),
        "{ran:?}"
    );
    let quoted = shell.check(&["POST /login", "--email", "ann@example.com"]);
    assert_eq!((quoted.code, quoted.stdout.as_str()), (Some(0), "allowed: 0 left of 2/y (rule login)\n"));
    let denied = shell.check(&login);
    assert_eq!(denied.code, Some(1));
    assert!(denied.stdout.starts_with("denied: Too many requests: rule login allows 2/y, try again in "));
    let json = shell.check(&[&login[..], &["--json"]].concat());
    assert_eq!((json.code, &json_of(&json)["allowed"]), (Some(1), &json!(false)));
    assert_eq!(shell.check(&["/nothing"]).stdout, "allowed: no rule applies\n");
    let bad = shell.check(&["/x", "--ip", "300.1.1.1"]);
    fails(&bad, 1, &["'ip' is not an IP address: 300.1.1.1"]);
}

#[test]
fn a_check_says_all_that_a_request_can() {
    let shell = Shell::start();
    let plan = shell.check(&["/plan", "--attribute", "plan=pro", "--cost", "4", "--json"]);
    assert_eq!(json_of(&plan)["remaining"], 5);
    let peek = shell.check(&["/plan", "--attribute", "plan=pro", "--peek", "--json"]);
    assert_eq!(json_of(&peek)["remaining"], 5);
    let api = shell.check(&[
        "GET",
        "/api",
        "--api-key",
        "k",
        "--header",
        "X-A=b=c",
        "--host",
        "example.com",
        "--json",
    ]);
    assert_eq!(json_of(&api)["rule"], "api", "{api:?}");
    assert_eq!(shell.0.used("api", "api_key:k+header:x-a:b=c"), [1]);
}

#[test]
fn bans_are_added_listed_and_lifted() {
    let shell = Shell::start();
    assert_eq!(shell.admin(&["ban", "ls"]).stdout, "");
    let added = shell.admin(&["ban", "add", "ip:203.0.113.0/24", "--for", "2h", "--reason", "no good"]);
    assert_eq!(added.code, Some(0));
    assert!(added.stdout.starts_with("banned ip:203.0.113.0/24  until "), "{added:?}");
    assert_eq!(shell.check(&["/x", "--ip", "203.0.113.9"]).code, Some(1));
    let until =
        shell.admin(&["ban", "add", "user:a%2Bb+ip:1.2.3.4", "--until", "2126-01-01T00:00:00Z", "--json"]);
    assert_eq!(json_of(&until)["key"], "ip:1.2.3.4+user:a%2Bb");
    let listed = shell.admin(&["ban", "ls"]);
    assert_eq!(listed.stdout.lines().count(), 2, "{listed:?}");
    assert!(listed.stdout.contains("ip:203.0.113.0/24  until ") && listed.stdout.contains("no good"));
    assert_eq!(json_of(&shell.admin(&["ban", "ls", "--json"]))["bans"].as_array().map(Vec::len), Some(2));
    let lifted = shell.admin(&["ban", "rm", "ip:1.2.3.4+user:a%2Bb"]);
    assert!(
        lifted.code == Some(0) && lifted.stdout.starts_with("lifted ip:1.2.3.4+user:a%2Bb"),
        "{lifted:?}"
    );
    assert_eq!(shell.admin(&["ban", "rm", "ip:203.0.113.0/24", "--json"]).code, Some(0));
    fails(&shell.admin(&["ban", "rm", "ip:203.0.113.0/24"]), 1, &["ip:203.0.113.0/24 is not banned"]);
    fails(&shell.admin(&["ban", "add", "colour:red"]), 1, &["unknown attribute 'colour'"]);
    fails(&shell.admin(&["ban", "add", "user:a", "--for", "soon"]), 1, &["'soon'", "1h"]);
}

#[test]
fn keys_are_shown_and_reset() {
    let shell = Shell::start();
    for _ in 0..3 {
        shell.check(&["POST", "/login", "--email", "a+b@example.com"]);
    }
    let shown = shell.admin(&["key", "show", "login", "email:a%2Bb@example.com"]);
    assert_eq!(shown.code, Some(0));
    assert!(
        shown.stdout.starts_with("gcra 2/y: used 2, 0 left\ntries 3, denials 1, last seen "),
        "{shown:?}"
    );
    let json = json_of(&shell.admin(&["key", "show", "login", "email:a%2Bb@example.com", "--json"]));
    assert_eq!((&json["limits"][0]["used"], &json["tries"]), (&json!(2), &json!(3)));
    let reset = shell.admin(&["key", "reset", "login", "email:a%2Bb@example.com"]);
    assert!(reset.code == Some(0) && reset.stdout.starts_with("gcra 2/y: forgot 2"), "{reset:?}");
    let shown = shell.admin(&["key", "show", "login", "email:a%2Bb@example.com"]);
    assert!(shown.stdout.starts_with("gcra 2/y: used 0, 2 left\n"), "{shown:?}");
    shell.check(&["/counter"]);
    let counter = shell.admin(&["key", "show", "counter"]);
    assert_eq!(counter.stdout, "sliding-counter 9/y: used 1, 8 left, previous 0, current 1\n");
    fails(&shell.admin(&["key", "show", "nobody"]), 1, &["no rule 'nobody'"]);
    fails(&shell.admin(&["key", "show", "login"]), 1, &["it wants email:…"]);
}

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
    let (_folder, empty) = configured("");
    assert_eq!(tollgate(&["rules", "check", &empty]).code, Some(0));
}

#[test]
fn all_problems_of_a_file_are_told_at_once_by_line_and_column() {
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
        ("7:11", "'b b' is no id"),
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
fn what_this_version_does_not_do_is_said() {
    for (config, words) in
        [("rules_db: sqlite:tollgate.db\n", "rules_db"), ("envoy_config: envoy/\n", "envoy_config")]
    {
        let (_folder, path) = configured(config);
        fails(&tollgate(&["rules", "check", &path]), 3, &[words, "this version"]);
    }
    let (_folder, path) = configured(
        "nodes: 3
listen: { resp: 127.0.0.1:6380 }
rules:
  - { id: a, limit: 5/m, on_exceed: queue, on_store_error: closed }
  - { id: b, limit: 5/m, count_when: failure, key: 'json:email' }
",
    );
    let ran = tollgate(&["rules", "check", &path]);
    assert_eq!(ran.code, Some(0));
    for name in [
        "nodes",
        "listen.resp",
        "on_exceed: queue (rule a)",
        "on_store_error (rule a)",
        "a key of json: or form: (rule b)",
    ] {
        assert!(ran.stderr.contains(&format!("note: {name} has no effect in this version")), "{ran:?}");
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

#[test]
fn the_demo_shows_five_of_seven_and_takes_free_ports_where_the_usual_ones_are_busy() {
    let hold = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).ok();
    let held: Vec<_> = [8000, 8080, 7070].iter().filter_map(hold).collect();
    let ran = tollgate(&["demo", "--once"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.stdout.matches("  201 Created").count(), 6, "{ran:?}");
    assert_eq!(ran.stdout.matches("  429 Too Many Requests").count(), 2, "{ran:?}");
    assert_eq!(ran.stdout.matches("retry-after: ").count(), 2, "{ran:?}");
    assert_eq!(ran.stdout.matches("http://127.0.0.1:").count(), 3, "{ran:?}");
    for listener in held {
        let port = listener.local_addr().expect("an address").port();
        assert!(ran.stderr.contains(&format!("port {port} is busy")), "{ran:?}");
    }
}

#[test]
fn the_demo_goes_on_serving_until_it_is_told_to_stop() {
    let mut command = binary();
    let mut demo = Running(command.arg("demo").stdout(Stdio::piped()).spawn().expect("the binary starts"));
    let said = BufReader::new(demo.0.stdout.take().expect("stdout is piped"));
    let said: Vec<_> =
        said.lines().map_while(Result::ok).take_while(|line| !line.contains("Ctrl-C")).collect();
    let api = said.iter().find_map(|line| line.strip_prefix("The API")?.trim().strip_prefix("http://"));
    let api = api.and_then(|api| api.parse().ok()).unwrap_or_else(|| panic!("no address in {said:#?}"));
    for status in [201, 201, 201, 429] {
        let answer = Client::to(api).ask("POST", "/cab-booking", &[("x-user", "you")], b"");
        assert_eq!(answer.status, status, "{answer}");
        let refused = answer.header("content-type") == Some("application/problem+json");
        assert_eq!(
            (refused, answer.header("retry-after").is_some()),
            (status == 429, status == 429),
            "{answer}"
        );
    }
    let id = demo.0.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &id]).status().expect("kill runs").success());
    eventually("the demo ends", || demo.0.try_wait().is_ok_and(|ended| ended.is_some()));
    assert_eq!(demo.0.wait().expect("it has ended").code(), Some(0));
}

/// Killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
