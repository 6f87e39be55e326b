//! The callers of examples/grpc-callers: driven as those of the decision API are, while nodes are killed and frozen.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering;

use tollgate_testkit::{Folder, Server, eventually, find, free_port, not_run};

use crate::callers::{
    PATIENT_MS, Program, RULES, SHORT_MS, build_go_module, relay,
    the_answer_of_another_server_is_not_a_verdict,
};

const TOKEN: &str = "a-secret-of-the-callers";

/// `None`, with a message, if something is not installed.
fn build(language: &str) -> Option<Program> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let examples = root.join("examples/grpc-callers");
    let folder = Folder::new();
    if language == "go" {
        let path = build_go_module(&examples.join("go"), &folder)?;
        return Some(Program::of_grpc(path, Vec::new(), folder));
    }
    let packages = root.join("target/servers/grpc-clients");
    let python = find("python3").filter(|_| packages.is_dir());
    let Some(path) = python else {
        not_run("examples/grpc-callers/caller.py", "scripts/servers installs grpcio");
        return None;
    };
    let mut program = Program::of_grpc(path, vec![examples.join("caller.py")], folder);
    program.variables.push(("PYTHONPATH", packages.into()));
    Some(program)
}

fn node(port: u16) -> Server {
    let folder = Folder::new();
    let listen = format!("listen: {{ grpc: '127.0.0.1:{port}', http: 127.0.0.1:0, admin: 127.0.0.1:0 }}\n");
    let config = folder.write("node.yaml", listen + RULES);
    Server::start_at(&folder, &config)
}

fn verdicts_have_headers_for_the_client(program: &Program) {
    let server = Server::start(RULES);
    let (relayed, connections) = relay(server.grpc);
    let mut caller = program.start("open", PATIENT_MS, &[relayed]);
    for _ in 0..3 {
        let passed = caller.expect("ann", true, true, 200);
        assert!(passed["headers"]["ratelimit"].is_string(), "{passed}");
    }
    let denied = caller.expect("ann", false, true, 429);
    let retry_after = denied["headers"]["retry-after"].as_str().and_then(|seconds| seconds.parse().ok());
    assert!(retry_after.is_some_and(|seconds: u64| seconds > 0), "{denied}");
    assert!(denied["headers"]["tollgate-ticket"].is_string(), "{denied}");
    caller.expect("evil", false, true, 429);
    (0..20).for_each(|n| drop(caller.expect(&format!("user-{n}"), true, true, 200)));
    assert_eq!(connections.load(Ordering::SeqCst), 1, "one connection for all");

    // No value that a client chose is an error of the call, which would pass because callers fail open.
    assert_eq!(caller.check_user(&"x".repeat(5_000))["decided"], true);
    caller.expect(&"x".repeat(300_000), false, true, 429);
}

fn a_token_is_sent(mut program: Program) {
    let folder = Folder::new();
    let tokens = folder.write_private("tokens", format!("check {TOKEN} app\n"));
    folder.configure(&format!("tokens_file: {}\n{RULES}", tokens.display()));
    let server = Server::start_in(&folder);
    program.start("closed", PATIENT_MS, &[server.grpc]).expect("ann", false, false, 503);
    program.variables.push(("TOLLGATE_TOKEN", TOKEN.into()));
    program.start("closed", PATIENT_MS, &[server.grpc]).expect("ann", true, true, 200);
}

fn without_nodes_it_fails_as_configured(program: &Program) {
    let ports = [free_port(), free_port()];
    let addresses = ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let [first, second] = ports.map(node);
    let mut open = program.start("open", PATIENT_MS, &addresses);
    let mut closed = program.start("closed", PATIENT_MS, &addresses);
    open.expect("ann", true, true, 200);
    closed.expect("ann", true, true, 200);

    first.kill();
    for caller in [&mut open, &mut closed] {
        eventually("the other node is asked", || caller.check_user("bob")["decided"] == true);
    }

    second.kill();
    for _ in 0..5 {
        open.expect_failing(true);
        closed.expect_failing(false);
    }

    let _nodes = ports.map(node);
    for caller in [&mut open, &mut closed] {
        eventually("limited again", || caller.check_user("cid")["status"] == 429);
    }
}

fn the_deadline_holds(program: &Program) {
    let server = Server::start(RULES);
    let mut open = program.start("open", SHORT_MS, &[server.grpc]);
    let mut closed = program.start("closed", SHORT_MS, &[server.grpc]);
    for caller in [&mut open, &mut closed] {
        eventually("an answer", || caller.check_user("ann")["decided"] == true);
    }
    server.freeze();
    for _ in 0..3 {
        open.expect_failing(true);
        closed.expect_failing(false);
    }
    server.thaw();
    for caller in [&mut open, &mut closed] {
        eventually("an answer again", || caller.check_user("ann")["decided"] == true);
    }
}

fn check(language: &str) {
    let Some(program) = build(language) else { return };
    verdicts_have_headers_for_the_client(&program);
    without_nodes_it_fails_as_configured(&program);
    the_deadline_holds(&program);
    the_answer_of_another_server_is_not_a_verdict(&program);
    a_token_is_sent(program);
}

#[test]
fn python() {
    check("python");
}

#[test]
fn go() {
    check("go");
}
