//! The callers of examples/callers, in four languages: each is one program that is driven here while nodes are killed,
//! frozen and started again, and while something else than Tollgate answers.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_testkit::{Folder, SOON, Server, eventually, find, free_port, not_run};

/// No answer of a live node takes so long, on a busy machine either.
pub const PATIENT_MS: u64 = 10_000;
pub const SHORT_MS: u64 = 200;
/// Far below what a connection without a deadline waits, far above what a busy machine adds to a short one.
const HELD: Duration = Duration::from_secs(8);
pub const RULES: &str = "rules_db: none
rules: [{ id: each, key: user, limit: 3/h }]
bans: [{ key: 'user:evil', until: 2100-01-01T00:00:00Z }]
";

/// A client program, built once for each test.
pub struct Program {
    path: PathBuf,
    args: Vec<PathBuf>,
    pub variables: Vec<(&'static str, OsString)>,
    /// What precedes the address of a node in its argument.
    scheme: &'static str,
    _folder: Arc<Folder>,
}

impl Program {
    /// `None`, with a message, if the language is not installed.
    fn build(language: &str) -> Option<Program> {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/callers");
        let folder = Folder::new();
        let (tool, source) = match language {
            "python" => ("python3", "python/caller.py"),
            "node" => ("node", "node/caller.mjs"),
            "go" => ("go", "go/caller.go"),
            _ => {
                let path = build_rust("caller", &examples.join("rust/caller.rs"));
                return Some(Program::of_http(path, Vec::new(), folder));
            }
        };
        let source = examples.join(source);
        let Some(tool_path) = find(tool) else {
            not_run(&format!("examples/callers/{language}"), &format!("no {tool}"));
            return None;
        };
        if language != "go" {
            return Some(Program::of_http(tool_path, vec![source], folder));
        }
        let path = folder.path("caller");
        succeed(
            Command::new(tool_path).env("GOTOOLCHAIN", "local").args(["build", "-o"]).arg(&path).arg(source),
        );
        Some(Program::of_http(path, Vec::new(), folder))
    }

    fn of_http(path: PathBuf, args: Vec<PathBuf>, folder: Arc<Folder>) -> Program {
        Program { path, args, variables: Vec::new(), scheme: "http://", _folder: folder }
    }

    pub fn of_grpc(path: PathBuf, args: Vec<PathBuf>, folder: Arc<Folder>) -> Program {
        Program { scheme: "", ..Program::of_http(path, args, folder) }
    }

    pub fn start(&self, failing: &str, deadline_ms: u64, nodes: &[SocketAddr]) -> Caller {
        let mut command = Command::new(&self.path);
        command.args(&self.args).arg(failing).arg(deadline_ms.to_string());
        command.args(nodes.iter().map(|node| format!("{}{node}", self.scheme)));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.expect("the caller starts");
        let stdin = child.stdin.take().expect("stdin is piped");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (said, verdicts) = channel();
        thread::spawn(move || stdout.lines().map_while(Result::ok).all(|line| said.send(line).is_ok()));
        Caller { child, stdin, verdicts }
    }
}

/// The Rust example. `cargo test` builds it with the tests, `cargo test --test it` does not.
pub fn build_rust(example: &str, source: &Path) -> PathBuf {
    let profile = Path::new(env!("CARGO_BIN_EXE_tollgate")).parent().expect("the folder of the profile");
    let program = profile.join("examples").join(example);
    let written = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    if written(&program) < written(source) {
        let mut cargo = Command::new(env!("CARGO"));
        // Cargo's variables for this test would make it build dependencies again.
        let variables = std::env::vars_os().map(|(name, _)| name);
        for name in variables.filter(is_of_this_test) {
            cargo.env_remove(name);
        }
        cargo.args(["build", "--quiet", "--locked", "--package", "tollgate-server", "--example", example]);
        cargo.arg("--target-dir").arg(profile.parent().expect("the target folder"));
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        succeed(cargo.current_dir(env!("CARGO_MANIFEST_DIR")));
    }
    program
}

/// The program of a Go module whose dependencies `scripts/servers` has fetched; `None`, with a message, if it cannot be
/// built.
pub fn build_go_module(source: &Path, folder: &Folder) -> Option<PathBuf> {
    let example = source.display();
    let Some(go) = find("go") else {
        not_run(&format!("{example}"), "no go");
        return None;
    };
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers/go-modules");
    if !modules.join("ready").is_file() {
        not_run(&format!("{example}"), "scripts/servers fetches its modules");
        return None;
    }
    let path = folder.path("program");
    let mut command = Command::new(go);
    command.current_dir(source).args(["build", "-mod=readonly", "-o"]).arg(&path).arg(".");
    command.env("GOMODCACHE", modules).env("GOPROXY", "off").env("GOTOOLCHAIN", "local");
    succeed(&mut command);
    Some(path)
}

fn is_of_this_test(variable: &OsString) -> bool {
    let name = variable.to_string_lossy();
    name.starts_with("CARGO_") && name != "CARGO_HOME"
}

fn succeed(command: &mut Command) {
    let status = command.status().expect("the command runs");
    assert!(status.success(), "{command:?}");
}

/// A running caller: a request for each line, and a verdict.
pub struct Caller {
    child: Child,
    stdin: ChildStdin,
    verdicts: Receiver<String>,
}

impl Caller {
    fn check(&mut self, request: &Value) -> Value {
        writeln!(self.stdin, "{request}").expect("the caller reads");
        let line = self.verdicts.recv_timeout(SOON).expect("a verdict");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    pub fn check_user(&mut self, user: &str) -> Value {
        self.check(&json!({ "user": user }))
    }

    #[track_caller]
    pub fn expect(&mut self, user: &str, allowed: bool, decided: bool, status: u16) -> Value {
        let verdict = self.check_user(user);
        let expected = (&json!(allowed), &json!(decided), &json!(status));
        assert_eq!((&verdict["allowed"], &verdict["decided"], &verdict["status"]), expected, "{verdict}");
        verdict
    }

    /// Expects a verdict that no node has made, in time.
    #[track_caller]
    pub fn expect_failing(&mut self, allowed: bool) {
        let start = Instant::now();
        self.expect("ann", allowed, false, if allowed { 200 } else { 503 });
        assert!(start.elapsed() < HELD, "{:?}", start.elapsed());
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A node on a port that it keeps over a restart.
fn node(port: u16, rest: &str) -> Server {
    let folder = Folder::new();
    let listen = format!("listen: {{ http: '127.0.0.1:{port}', admin: 127.0.0.1:0 }}\n");
    let config = folder.write("node.yaml", listen + rest);
    Server::start_at(&folder, &config)
}

/// A server that does something with each connection.
fn listener(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Passes everything on to `node`, and counts connections.
pub fn relay(node: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let address = listener(move |client| {
        counted.fetch_add(1, Ordering::SeqCst);
        let server = TcpStream::connect(node).expect("the node accepts");
        let copies = [(&client, &server), (&server, &client)]
            .map(|(from, to)| (from.try_clone().expect("a clone"), to.try_clone().expect("a clone")));
        let copy = |(mut from, mut to): (TcpStream, TcpStream)| std::io::copy(&mut from, &mut to);
        copies.into_iter().for_each(|pair| drop(thread::spawn(move || copy(pair))));
    });
    (address, connections)
}

fn verdicts_are_reported_unchanged(program: &Program) {
    let server = Server::start(RULES);
    let (relayed, connections) = relay(server.http);
    let mut caller = program.start("open", PATIENT_MS, &[relayed]);
    for _ in 0..3 {
        caller.expect("ann", true, true, 200);
    }
    let denied = caller.expect("ann", false, true, 429);
    assert_eq!(denied["reason"], "limit");
    assert!(denied["retry_after_ms"].as_u64().is_some_and(|wait| wait > 0), "{denied}");
    assert_eq!(caller.expect("evil", false, true, 403)["reason"], "ban");
    (0..20).for_each(|n| drop(caller.expect(&format!("user-{n}"), true, true, 200)));
    assert_eq!(connections.load(Ordering::SeqCst), 1, "one connection for all");

    // What Tollgate rejects must not pass because callers fail open: the client chose the value.
    caller.expect(&"x".repeat(5_000), false, true, 400);
    caller.expect(&"x".repeat(300_000), false, true, 413);
    caller.expect("bob", true, true, 200);

    // A rule that fails closed is an answer too.
    let dead = format!("counters: 'redis://127.0.0.1:{}'\non_store_error: closed\n{RULES}", free_port());
    let server = Server::start(&dead);
    let mut caller = program.start("open", PATIENT_MS, &[server.http]);
    assert_eq!(caller.expect("ann", false, true, 503)["reason"], "store_error");
}

fn without_nodes_it_fails_as_configured(program: &Program) {
    let ports = [free_port(), free_port()];
    let addresses = ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let [first, second] = ports.map(|port| node(port, RULES));
    let mut open = program.start("open", PATIENT_MS, &addresses);
    let mut closed = program.start("closed", PATIENT_MS, &addresses);
    open.expect("ann", true, true, 200);
    closed.expect("ann", true, true, 200);

    first.kill();
    open.expect("bob", true, true, 200);
    closed.expect("bob", true, true, 200);

    second.kill();
    for _ in 0..5 {
        open.expect_failing(true);
        closed.expect_failing(false);
    }

    let _nodes = ports.map(|port| node(port, RULES));
    for caller in [&mut open, &mut closed] {
        eventually("limited again", || caller.check_user("cid")["status"] == 429);
    }
}

fn the_deadline_holds(program: &Program) {
    let server = Server::start(RULES);
    let mut open = program.start("open", SHORT_MS, &[server.http]);
    let mut closed = program.start("closed", SHORT_MS, &[server.http]);
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

    // A byte now and then: a time-out for each read would never end.
    let trickling = listener(|mut stream| {
        let start = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n{".iter();
        for byte in start.chain(std::iter::repeat(&b' ')) {
            if stream.write_all(&[*byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    });
    program.start("open", SHORT_MS, &[trickling]).expect_failing(true);
    program.start("closed", SHORT_MS, &[trickling]).expect_failing(false);
}

/// A load balancer without nodes has a 503 of its own.
pub fn the_answer_of_another_server_is_not_a_verdict(program: &Program) {
    let stranger = listener(|mut stream| {
        let heard = |stream: &mut TcpStream| stream.read(&mut [0; 4096]).unwrap_or(0);
        heard(&mut stream);
        let page = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbusy";
        stream.write_all(page.as_bytes()).ok();
        while heard(&mut stream) > 0 {} // until the caller hangs up
    });
    program.start("open", PATIENT_MS, &[stranger]).expect("ann", true, false, 200);
    program.start("closed", PATIENT_MS, &[stranger]).expect("ann", false, false, 503);
}

fn check(language: &str) {
    let Some(program) = Program::build(language) else { return };
    verdicts_are_reported_unchanged(&program);
    without_nodes_it_fails_as_configured(&program);
    the_deadline_holds(&program);
    the_answer_of_another_server_is_not_a_verdict(&program);
}

#[test]
fn python() {
    check("python");
}

#[test]
fn node_js() {
    check("node");
}

#[test]
fn go() {
    check("go");
}

#[test]
fn rust() {
    check("rust");
}
