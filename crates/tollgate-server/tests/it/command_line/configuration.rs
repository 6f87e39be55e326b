//! `tollgate config`, `doctor` and `status`; variables, and messages about a configuration.

use std::io::Write;
use std::net::TcpListener;
use std::process::Stdio;

use serde_json::Value;
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::{CommandOutput, Folder, binary, free_port, run, tollgate};

use crate::command_line::{Shell, fails, json_of};

/// Runs a command on a configuration in a folder of its own; ports of other tests stay free.
fn on_config(command: &[&str], text: &str) -> CommandOutput {
    let folder = Folder::new();
    let listen = format!(
        "listen: {{ http: 127.0.0.1:{}, grpc: off, resp: off, admin: 127.0.0.1:{} }}\n",
        free_port(),
        free_port()
    );
    folder.write("tollgate.yaml", format!("{listen}{text}"));
    run(binary().current_dir(folder.root()).args(command))
}

fn finding<'r>(report: &'r Value, what: &str) -> &'r Value {
    let findings = report["findings"].as_array().expect("a list");
    findings.iter().find(|finding| finding["what"] == what).unwrap_or_else(|| panic!("{what}: {report}"))
}

#[test]
fn config_check_names_each_thing_that_it_opened() {
    let ran = on_config(&["config", "check"], "rules: [{ id: a, limit: 5/m }]\n");
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    for word in ["tollgate.yaml is valid", "1 rule", "state_dir", "local callers only"] {
        assert!(ran.stdout.contains(word), "{word}: {ran:?}");
    }
    let broken =
        "tokens_file: none\nreceipt_key_file: missing\nstate_dir: nowhere\njwt: { keys_file: gone.json }
upstreams: [http://127.0.0.1:1]\nproxy: { tls: { cert: a.pem, key: b.pem } }\n";
    let ran = on_config(&["config", "check", "--json"], broken);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let report = json_of(&ran);
    for (what, word) in [
        ("tokens_file", "none cannot be read"),
        ("receipt_key_file", "missing"),
        ("state_dir", "there is no folder nowhere"),
        ("jwt.keys_file", "gone.json"),
        ("tls.proxy", "a.pem"),
    ] {
        let found = finding(&report, what);
        assert_eq!(found["severity"], "error", "{report}");
        assert!(found["detail"].as_str().is_some_and(|detail| detail.contains(word)), "{what}: {report}");
    }
    let ran = on_config(&["config", "check"], "rules: [{ id: a, limt: 5/m }]\nlog_keys: some\n");
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stdout.contains("tollgate.yaml line 2") && ran.stdout.contains("log_keys"), "{ran:?}");
}

/// `config check` and `doctor` said that a server would start which did not: for each setting that a start opens, all
/// three have the same verdict, and no listener is bound before it.
#[test]
fn a_check_finds_everything_that_a_start_stops_at() {
    let folder = Folder::new();
    folder.write("file", "");
    std::fs::create_dir(folder.path("folder")).expect("a folder");
    let port = free_port();
    let admin = format!("admin: 127.0.0.1:{port}");
    for (setting, message, settings) in [
        ("rules_db", "there is no folder", "rules_db: sqlite:nowhere/x.db"),
        ("rules_db", "file is not a folder", "rules_db: sqlite:file/x.db"),
        ("rules_db", "is a folder", "rules_db: sqlite:folder"),
        ("queue", "there is no folder", "upstreams: [http://127.0.0.1:1]\nqueue: { file: nowhere/q.db }"),
        ("queue", "is a folder", "upstreams: [http://127.0.0.1:1]\nqueue: { file: folder }"),
        ("decision_log.to", "there is no folder", "decision_log: { to: nowhere/x }"),
        ("decision_log.to", "is a folder", "decision_log: { to: folder }"),
        ("envoy_config", "nowhere", "envoy_config: nowhere/"),
        (
            "proxy.upstream_tls",
            "ca.pem",
            "upstreams: [https://127.0.0.1:1]\nproxy: { upstream_tls: { ca: ca.pem } }",
        ),
        ("fleet.token_file", "No such file", "fleet: { token_file: nowhere }"),
        ("counters", "nowhere", "counters: redis://127.0.0.1:1?password_file=nowhere"),
        ("counters", "ca.pem", "counters: rediss://127.0.0.1:1?ca=ca.pem"),
        ("rules_db", "nowhere", "rules_db: postgres://a@127.0.0.1:1/b?password_file=nowhere"),
        ("rules_db", "ca.pem", "rules_db: postgres://a@127.0.0.1:1/b?sslmode=verify-full&sslrootcert=ca.pem"),
        ("store_secret_file", "cannot be read", "counters: redis://127.0.0.1:1\nstore_secret_file: nowhere"),
        ("listen.http", "there is no folder", "listen: { http: unix:nowhere/s, ADMIN }"),
        ("listen.http", "is not a socket", "listen: { http: unix:file, ADMIN }"),
        ("listen.grpc", "not an address of this machine", "listen: { grpc: '192.0.2.1:8081', ADMIN }"),
    ] {
        let listen = "listen: { http: 127.0.0.1:0, grpc: off, resp: off, proxy: 127.0.0.1:0, ADMIN }";
        let listen = if settings.starts_with("listen") { "" } else { listen };
        let text = format!("{settings}\n{listen}\n").replace("ADMIN", &admin);
        folder.write("tollgate.yaml", &text);
        let of = |command: &[&str]| run(binary().current_dir(folder.root()).args(command));
        for command in [&["config", "check", "--offline"][..], &["doctor"]] {
            let ran = of(command);
            assert_eq!(ran.code, Some(3), "{settings}: {ran:?}");
            let error = ran.stdout.lines().filter(|line| line.starts_with("error "));
            let error: Vec<_> =
                error.filter(|line| line.contains(setting) && line.contains(message)).collect();
            assert_eq!(error.len(), 1, "{settings}: {ran:?}");
        }
        let served = of(&["serve"]);
        fails(&served, 3, &["tollgate.yaml", setting, message]);
        assert!(!served.stderr.contains("listens on"), "{served:?}");
        let json = json_of(&of(&["doctor", "--json"]));
        let findings = json["findings"].as_array().expect("a list");
        let without_fix: Vec<_> =
            findings.iter().filter(|one| one["severity"] != "ok" && one["fix"].as_str().is_none()).collect();
        assert!(without_fix.is_empty(), "{settings}: {without_fix:?}");
        assert!(!served.stderr.contains("chmod"), "other permissions would break a folder: {served:?}");
    }
}

#[test]
fn a_setting_without_effect_says_what_it_needs() {
    let ran = on_config(&["config", "check"], "advertise: https://a.example\nrules_db: none\nnodes: 3\n");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("advertise      has no effect without rules_db"), "{ran:?}");
    assert!(ran.stdout.contains("nodes          has no effect without counters on a server"), "{ran:?}");
}

#[test]
fn a_store_that_does_not_answer_is_unreachable_unless_offline() {
    let config = format!("counters: redis://127.0.0.1:{}\n", free_port());
    let ran = on_config(&["config", "check", "--json"], &config);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert_eq!(finding(&json_of(&ran), "counters")["severity"], "unreachable", "{ran:?}");
    assert_eq!(on_config(&["config", "check", "--offline"], &config).code, Some(0));
}

#[test]
fn config_check_creates_nothing() {
    let folder = Folder::new();
    folder.write("tollgate.yaml", "rules: []\n");
    assert_eq!(run(binary().current_dir(folder.root()).args(["config", "check"])).code, Some(0));
    let left = std::fs::read_dir(folder.root()).expect("the folder").count();
    assert_eq!(left, 1, "only the configuration");
}

#[test]
fn the_schema_is_json() {
    let ran = tollgate(&["config", "schema"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(json_of(&ran)["properties"]["rules"].is_object(), "{ran:?}");
}

#[test]
fn the_doctor_finds_a_busy_port_and_an_exposed_listener() {
    let busy = TcpListener::bind("127.0.0.1:0").expect("a port");
    let folder = Folder::new();
    let admin = busy.local_addr().expect("an address");
    let listen =
        format!("listen: {{ http: '0.0.0.0:{}', grpc: off, resp: off, admin: '{admin}' }}\n", free_port());
    folder.write("tollgate.yaml", listen);
    let ran = run(binary().current_dir(folder.root()).args(["doctor", "--json"]));
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let report = json_of(&ran);
    let port = finding(&report, "listen.admin");
    assert!(
        port["severity"] == "error" && port["fix"].as_str().is_some_and(|fix| fix.contains("ss -ltnp")),
        "{report}"
    );
    let open = report["findings"]
        .as_array()
        .expect("a list")
        .iter()
        .any(|finding| finding["what"] == "listen.http" && finding["severity"] == "warning");
    assert!(open, "{report}");
    finding(&report, "open files");
}

#[test]
fn the_doctor_warns_of_an_admin_address_without_tls_that_others_can_reach() {
    for (host, is_exposed) in [("0.0.0.0", true), ("127.0.0.1", false)] {
        let folder = Folder::new();
        let listen =
            format!("listen: {{ http: off, grpc: off, resp: off, admin: '{host}:{}' }}\n", free_port());
        folder.write("tollgate.yaml", listen);
        let token = "read 0123456789abcdef0123456789abcdef";
        let ran =
            run(binary().current_dir(folder.root()).args(["doctor", "--json"]).env("TOLLGATE_TOKENS", token));
        let report = json_of(&ran);
        let findings = report["findings"].as_array().expect("a list");
        let warned =
            findings.iter().find(|one| one["what"] == "listen.admin" && one["severity"] == "warning");
        assert_eq!(warned.is_some(), is_exposed, "{report}");
        let fix = warned.and_then(|one| one["fix"].as_str());
        assert!(fix.is_none_or(|fix| fix.contains("tls.admin")), "{report}");
    }
}

#[test]
fn the_doctor_recognises_the_ports_of_the_running_node() {
    let shell = Shell::start();
    let config = shell.0.folder.path("tollgate.yaml");
    let ran = tollgate(&["doctor", "-c", config.to_str().expect("a plain path"), "--json"]);
    let report = json_of(&ran);
    let state = finding(&report, "state_dir")["detail"].as_str().unwrap_or_default().to_owned();
    assert!(state.contains("is in use by process"), "{report}");
}

#[test]
fn status_says_what_a_node_says_about_itself() {
    let shell = Shell::start();
    let printed = shell.done(&["status"]);
    for line in ["ready       ready", "health      ok", "enforce     on"] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
    let json = json_of(&shell.admin(&["status", "--json"]));
    assert_eq!((&json["ready"]["status"], &json["health"]["status"]), (&"ready".into(), &"ok".into()));
    fails(&tollgate(&["status", "--admin", "http://127.0.0.1:1"]), 4, &["is the server running?"]);
}

#[test]
fn the_environment_names_the_server() {
    let shell = Shell::start();
    let admin = format!("http://{}", shell.0.admin);
    let ran = run(binary().env("TOLLGATE_ADMIN", &admin).arg("health"));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "ready\n"), "{ran:?}");
    let http = format!("http://{}", shell.0.http);
    let ran =
        run(binary().env("TOLLGATE_HTTP", http).args(["check", "GET", "/plan", "--attribute", "plan=a"]));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = run(binary().env("TOLLGATE_ADMIN", &admin).args(["health", "--admin", "http://127.0.0.1:1"]));
    assert_eq!(ran.code, Some(4), "the option wins: {ran:?}");
}

#[test]
fn variables_are_replaced_in_the_file_and_a_missing_one_is_named() {
    let folder = Folder::new();
    let file =
        folder.write("tollgate.yaml", "memory: ${TG_MEMORY}\nrules:\n  - { id: a, limit: '${TG_LIMIT}' }\n");
    let file = file.to_str().expect("a plain path");
    let mut command = binary();
    let ran = run(command.env("TG_MEMORY", "8MiB").env("TG_LIMIT", "5/m").args(["rules", "check", file]));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = run(binary().env("TG_MEMORY", "8MiB").args(["rules", "check", file]));
    fails(&ran, 3, &["tollgate.yaml:3:", "the variable TG_LIMIT is not set", "1 problem\n"]);
    let ran =
        on_config(&["rules", "check", "tollgate.yaml"], "counters: '${TG_STORE}'\nlog_keys: '${TG_LOG}'\n");
    fails(&ran, 3, &["TG_STORE is not set", "TG_LOG is not set", "2 problems\n"]);
    let list = folder.write("list.yaml", "- { id: a, limit: '${TG_LIMIT}' }\n");
    let ran =
        run(binary().env("TG_LIMIT", "5/m").args(["rules", "check", list.to_str().expect("a plain path")]));
    assert_eq!(
        ran.code,
        Some(3),
        "a list of rules, as for a database, does not read the environment: {ran:?}"
    );
}

#[test]
fn likely_mistakes_are_named() {
    for (text, word) in [
        (
            "rules: [{ id: a, limit: 5/m, host: 'https://api.example.com/x' }]",
            "write only its host, api.example.com",
        ),
        ("rules: [{ id: a, limit: 5/m, match: GTE /x }]", "did you mean GET?"),
        ("rules: [{ id: a, limit: 5/m, key: 'jwt:sub' }]", "jwt:sub of rule a is never present without keys"),
        ("identity: { user: 'jwt:sub' }", "set jwt: { keys_file: keys.json }"),
    ] {
        let ran = on_config(&["rules", "check", "tollgate.yaml"], text);
        fails(&ran, 3, &[word]);
    }
}

#[test]
fn a_configuration_is_read_from_stdin() {
    let mut command = binary();
    command.args(["rules", "check", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    child.stdin.take().expect("a pipe").write_all(b"rules: [{ id: a, limit: 5/m }]").expect("it reads");
    let done = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "stdin: valid, 1 rule\n");
}

#[test]
fn doctor_examines_a_redis_server() {
    let Some(redis) = Redis::start(Make::Redis, "tollgate doctor with a Redis") else { return };
    let doctor = |user: &str| {
        let url = redis.url().replace("redis://", &format!("redis://{user}:password@"));
        let ran = on_config(&["doctor", "--json"], &format!("counters: {url}\n"));
        (ran.code, json_of(&ran))
    };
    // The permissions that docs/stores.md lists are enough.
    let listed = "+ping +select +role +time +script|load +evalsha +asking +cluster|slots \
                  +get +set +del +strlen +getrange +setrange +append +pexpire";
    for (user, rights) in [("listed", listed), ("poor", "+ping +get")] {
        let words = ["ACL", "SETUSER", user, "on", ">password", "~tg1:*"].into_iter();
        let words: Vec<&str> = words.chain(rights.split_whitespace()).collect();
        assert_eq!(redis.command(&words), "+OK\r\n");
    }
    let (code, report) = doctor("listed");
    assert_eq!((code, &finding(&report, "counters")["severity"]), (Some(0), &Value::from("ok")), "{report}");
    assert_eq!(finding(&report, "clock")["severity"], "ok", "{report}");
    let (code, report) = doctor("poor");
    let refused = finding(&report, "counters");
    assert_eq!((code, &refused["severity"]), (Some(4), &Value::from("unreachable")), "{report}");
    assert!(refused["fix"].as_str().is_some_and(|fix| fix.contains("docs/stores.md")), "{report}");
    let detail = refused["detail"].as_str().unwrap_or_default();
    assert!(
        detail.contains("refused: NOPERM") && detail.contains("'script|load'"),
        "it names what is missing: {detail}"
    );
    assert!(!detail.contains("reached"), "it was reached: {detail}");
    redis.command(&["ACL", "SETUSER", "listed", "+config|get"]);
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let (_, report) = doctor("listed");
    assert_eq!(finding(&report, "redis eviction")["severity"], "warning", "{report}");
}

/// Runs the server in a folder of its own, with a configuration on stdin.
fn serve_from_stdin(text: &str, folder: &Folder) -> std::process::Child {
    let mut command = binary();
    command.args(["serve", "-c", "-"]).current_dir(folder.path(""));
    let spawned = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut server = spawned.expect("it starts");
    let mut stdin = server.stdin.take().expect("a pipe");
    stdin.write_all(text.as_bytes()).expect("it reads");
    server
}

#[test]
fn the_server_reads_its_configuration_from_stdin() {
    use std::io::{BufRead, BufReader};
    let folder = Folder::new();
    let invalid =
        serve_from_stdin("rules: [{ id: a, limit: x }]", &folder).wait_with_output().expect("it ends");
    let error = String::from_utf8_lossy(&invalid.stderr);
    assert_eq!(invalid.status.code(), Some(3), "{error}");
    assert!(error.starts_with("stdin:1:"), "{error}");

    let text = "listen: { http: 127.0.0.1:0, grpc: off, resp: off, admin: 127.0.0.1:0 }\nrules: [{ id: a, limit: 5/m }]\n";
    let mut server = serve_from_stdin(text, &folder);
    let mut log = BufReader::new(server.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
    assert!(log.any(|line| line.contains("1 rule in force")), "it starts");
    let signal = |name: &str| {
        let id = server.id().to_string();
        assert!(std::process::Command::new("kill").args([name, &id]).status().expect("kill").success());
    };
    signal("-HUP");
    assert!(log.any(|line| line.contains("came from stdin and cannot be read again")), "its rules stay");
    signal("-TERM");
    drop(log);
    assert_eq!(server.wait().expect("it ends").code(), Some(0));
}
