//! The real binary on free ports, and its commands.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::wait::POLL;
use crate::{Answer, Client, Folder, SOON, eventually};

const LISTEN: &str =
    "listen: { http: 127.0.0.1:0, admin: 127.0.0.1:0, resp: 127.0.0.1:0, grpc: 127.0.0.1:0 }\n";
const LISTEN_PROXY: &str = "listen: { http: 127.0.0.1:0, admin: 127.0.0.1:0, resp: 127.0.0.1:0, grpc: 127.0.0.1:0, proxy: 127.0.0.1:0 }\n";
const CONFIG: &str = "tollgate.yaml";

impl Folder {
    /// A configuration on free ports, in the place where [`Server::start_in`] looks for it.
    pub fn configure(&self, rest: &str) -> PathBuf {
        let listen = if rest.contains("upstreams:") { LISTEN_PROXY } else { LISTEN };
        self.write(CONFIG, format!("{listen}{rest}"))
    }
}

/// A running `tollgate serve`.
pub struct Server {
    child: Child,
    log: Arc<Log>,
    pub folder: Arc<Folder>,
    pub http: SocketAddr,
    pub admin: SocketAddr,
    pub proxy: SocketAddr,
    pub resp: SocketAddr,
    pub grpc: SocketAddr,
}

impl Server {
    /// Starts with a configuration that has all but the addresses.
    pub fn start(config: &str) -> Server {
        let folder = Folder::new();
        folder.configure(config);
        Server::start_in(&folder)
    }

    /// Starts with the configuration in `folder`.
    pub fn start_in(folder: &Arc<Folder>) -> Server {
        Server::start_at(folder, &folder.path(CONFIG))
    }

    pub fn start_at(folder: &Arc<Folder>, config: &Path) -> Server {
        let mut command = binary();
        command.arg("serve").arg("-c").arg(config);
        Server::run(folder, &mut command)
    }

    /// Starts a second node with the same configuration, the same SQLite file of rules and a state of its own.
    pub fn start_beside(&self) -> Server {
        let config = fs::read_to_string(self.folder.path(CONFIG));
        let folder = &self.folder;
        fs::create_dir(folder.path("beside")).expect("a folder for its state");
        let rest = "\nstate_dir: beside\nrules_db: sqlite:tollgate.db\n";
        let config = folder.write("beside.yaml", config.expect("a configuration") + rest);
        Server::start_at(folder, &config)
    }

    /// Starts with the configuration in `folder`, and waits for the admin address only.
    pub fn start_admin_in(folder: &Arc<Folder>) -> Server {
        let mut command = binary();
        command.arg("serve").arg("-c").arg(folder.path(CONFIG));
        Server::run_until("admin listens on ", folder, &mut command)
    }

    /// Starts a command that serves.
    pub fn run(folder: &Arc<Folder>, command: &mut Command) -> Server {
        Server::run_until(" in force, generation", folder, command)
    }

    /// Starts a command and returns once its log has these words.
    pub fn run_until(words: &str, folder: &Arc<Folder>, command: &mut Command) -> Server {
        command.stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let log = Log::follow(child.stderr.take().expect("stderr is piped"));
        let nowhere = SocketAddr::from(([0; 4], 0));
        let folder = Arc::clone(folder);
        let mut server = Server {
            child,
            log,
            folder,
            http: nowhere,
            admin: nowhere,
            proxy: nowhere,
            resp: nowhere,
            grpc: nowhere,
        };
        server.wait_for_log(words);
        server.http = server.logged_address("http listens on ").unwrap_or(nowhere);
        server.proxy = server.logged_address("proxy listens on ").unwrap_or(nowhere);
        server.resp = server.logged_address("resp listens on ").unwrap_or(nowhere);
        server.grpc = server.logged_address("grpc listens on ").unwrap_or(nowhere);
        server.admin = server.logged_address("admin listens on ").unwrap_or(nowhere);
        server
    }

    fn logged_address(&self, before: &str) -> Option<SocketAddr> {
        let log = self.log();
        let (_, rest) = log.split_once(before)?;
        rest.split_whitespace().next()?.parse().ok()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        self.log.text()
    }

    /// Returns once the log contains `words`.
    pub fn wait_for_log(&self, words: &str) {
        self.wait_for_log_times(words, 1);
    }

    pub fn wait_for_log_times(&self, words: &str, times: usize) {
        self.log.wait_until(words, |text| text.matches(words).count() >= times);
    }

    /// Calls the decision API on a connection of its own.
    pub fn request(&self, method: &str, path: &str, body: impl AsRef<[u8]>) -> Answer {
        Client::to(self.http).request(method, path, &[], body.as_ref())
    }

    pub fn check(&self, body: &Value) -> Answer {
        self.request("POST", "/v1/check", body.to_string())
    }

    /// Calls the admin API on a connection of its own.
    pub fn admin(&self, method: &str, path: &str, body: impl AsRef<[u8]>) -> Answer {
        Client::to(self.admin).request(method, path, &[], body.as_ref())
    }

    /// What a key has used of a rule's limits, in their order.
    pub fn used(&self, rule: &str, key: &str) -> Vec<u64> {
        let answer = self.admin("GET", &format!("/v1/keys?rule={rule}&key={key}"), "");
        assert_eq!(answer.status, 200, "{answer}");
        let limits = answer.json()["limits"].as_array().cloned().unwrap_or_default();
        limits.iter().filter_map(|limit| limit["used"].as_u64()).collect()
    }

    pub fn signal(&self, name: &str) {
        let id = self.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status().expect("kill runs");
        assert!(sent.success(), "kill -s {name}");
    }

    /// Stops every thread, as SIGSTOP does a moment after it is sent: connections are accepted, and nothing is answered.
    pub fn freeze(&self) {
        self.signal("STOP");
        eventually("every thread has stopped", || {
            let threads = fs::read_dir(format!("/proc/{}/task", self.id())).expect("its threads");
            let stat = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("stat")).ok();
            threads.flatten().filter_map(stat).all(|stat| stat.contains(") T "))
        });
    }

    pub fn thaw(&self) {
        self.signal("CONT");
    }

    /// Sends SIGTERM, and returns how the process ended.
    pub fn stop(self) -> (ExitStatus, String) {
        self.signal("TERM");
        self.ended()
    }

    /// Returns how the process ended, which was told to.
    pub fn ended(mut self) -> (ExitStatus, String) {
        let ended = wait(&mut self.child, SOON).expect("the server stops after SIGTERM");
        (ended, self.log.whole())
    }

    /// A stop without a chance to save anything.
    pub fn kill(mut self) {
        self.child.kill().expect("the server can be killed");
        self.child.wait().expect("it has ended");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
    }
}

/// The stderr of a process so far.
#[derive(Default)]
struct Log {
    /// The text, and whether it has ended.
    text: Mutex<(String, bool)>,
    changed: Condvar,
}

impl Log {
    fn follow(stderr: impl Read + Send + 'static) -> Arc<Log> {
        let log = Arc::new(Log::default());
        let written = Arc::clone(&log);
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                written.add(&line);
            }
            written.end();
        });
        log
    }

    fn add(&self, line: &str) {
        let mut text = self.text.lock().expect("no panic while the log is held");
        text.0.push_str(line);
        text.0.push('\n');
        self.changed.notify_all();
    }

    fn end(&self) {
        self.text.lock().expect("no panic while the log is held").1 = true;
        self.changed.notify_all();
    }

    fn text(&self) -> String {
        self.text.lock().expect("no panic while the log is held").0.clone()
    }

    fn whole(&self) -> String {
        let text = self.text.lock().expect("no panic while the log is held");
        let (text, _) =
            self.changed.wait_timeout_while(text, SOON, |text| !text.1).expect("no panic in the log");
        text.0.clone()
    }

    fn wait_until(&self, what: &str, holds: impl Fn(&str) -> bool) {
        let text = self.text.lock().expect("no panic while the log is held");
        let waits = |text: &mut (String, bool)| !text.1 && !holds(&text.0);
        let (text, _) = self.changed.wait_timeout_while(text, SOON, waits).expect("no panic in the log");
        let held = holds(&text.0);
        let so_far = text.0.clone();
        drop(text);
        assert!(held, "the log never said '{what}':\n{so_far}");
    }
}

/// The exit code and the output of a command.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs `tollgate` to its end.
pub fn tollgate(args: &[&str]) -> CommandOutput {
    run(binary().args(args))
}

pub fn run(command: &mut Command) -> CommandOutput {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().expect("the binary starts");
    let read = |mut from: Box<dyn Read + Send>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).ok();
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let stdout = read(Box::new(child.stdout.take().expect("stdout is piped")));
    let stderr = read(Box::new(child.stderr.take().expect("stderr is piped")));
    let ended = wait(&mut child, SOON);
    if ended.is_none() {
        // With all that it has started: what is left would keep the output open.
        let group = format!("-{}", child.id());
        Command::new("kill").args(["-KILL", "--", &group]).status().ok();
        child.wait().ok();
    }
    let [stdout, stderr] = [stdout, stderr].map(|text| text.join().expect("the output can be read"));
    let ended = ended.unwrap_or_else(|| panic!("{command:?} did not end:\n{stdout}{stderr}"));
    CommandOutput { code: ended.code(), stdout, stderr }
}

/// The binary under test, without anything from the environment of whoever runs the tests. Cargo builds it before the
/// tests of its package, in the folder above theirs.
pub fn binary() -> Command {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.parent().and_then(Path::parent).expect("a test is two folders below the target folder");
    let mut command = Command::new(folder.join("tollgate"));
    for name in ["TOLLGATE_TOKEN", "TOLLGATE_TOKEN_FILE", "TOLLGATE_TOKENS", "RUST_LOG"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

fn wait(child: &mut Child, within: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + within;
    while Instant::now() < deadline {
        if let Some(ended) = child.try_wait().expect("the child can be waited for") {
            return Some(ended);
        }
        thread::sleep(POLL);
    }
    None
}

/// A connection that the peer has closed or reset, as far as reading shows.
pub fn is_closed(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    stream.set_read_timeout(Some(SOON)).expect("a timeout can be set");
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
    }
}

/// Writes what the peer will take; one that has hung up takes nothing more.
pub fn pour(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).ok();
}
