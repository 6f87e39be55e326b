//! An example with a load balancer or gateway, nodes and an API, run by its own script.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_testkit::{Answer, Client, Folder, Process, eventually, find, free_port, not_run};

/// Before the example's script ends by itself after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// What happens to requests when every node is down.
#[derive(Clone, Copy, PartialEq)]
pub enum Failing {
    Open,
    Closed,
}

/// A running example.
pub struct Example {
    script: Process,
    pub folder: Arc<Folder>,
    pub front: SocketAddr,
    /// The admin interface of Envoy.
    pub envoy: SocketAddr,
    /// The port that the load balancer reaches every node on.
    pub port: u16,
    pub nodes: Vec<Node>,
}

pub struct Node {
    process: u32,
    pub config: PathBuf,
}

impl Example {
    /// Starts `examples/NAME/run BALANCER`; `None`, reported, if something is not installed.
    pub fn start(name: &str, balancer: &str, failing: Failing, nodes: usize) -> Option<Example> {
        Example::start_with(balancer, name, balancer, failing, nodes)
    }

    /// Starts `examples/NAME/run VARIANT`, which needs `program`.
    pub fn start_with(
        program: &str,
        name: &str,
        variant: &str,
        failing: Failing,
        nodes: usize,
    ) -> Option<Example> {
        for command in [program, "redis-server", "python3", "curl"] {
            if find(command).is_none() {
                not_run(&format!("examples/{name} with {variant}"), &format!("no {command}"));
                return None;
            }
        }
        let folder = Folder::new();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name).join("run");
        let [front, port, envoy] = [free_port(), free_port(), free_port()];
        let mut command = Command::new(script);
        command.arg(variant).arg(if failing == Failing::Open { "open" } else { "closed" });
        command.env("TOLLGATE", env!("CARGO_BIN_EXE_tollgate")).env("TMPDIR", folder.path(""));
        command.env("FRONT", front.to_string()).env("NODES", port.to_string());
        command.env("ENVOY", envoy.to_string());
        for variable in ["ADMIN", "API", "REDIS", "ASK", "PASS"] {
            command.env(variable, free_port().to_string());
        }
        let log = folder.path("run.log");
        let script = Process::start(command.process_group(0), &log);
        let [front, envoy] = [front, envoy].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let mut example = Example { script, folder, front, envoy, port, nodes: Vec::new() };
        let mut said = String::new();
        eventually("the example runs", || {
            said = std::fs::read_to_string(&log).unwrap_or_default();
            assert!(!example.script.has_ended(), "{said}");
            said.contains("Ctrl-C ends it")
        });
        example.nodes = said.lines().filter_map(Node::read).collect();
        assert_eq!(example.nodes.len(), nodes, "{said}");
        Some(example)
    }

    /// Asks on a connection of its own, from 127.0.0.`client`.
    pub fn request(&self, client: u8, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        let source = IpAddr::from(Ipv4Addr::new(127, 0, 0, client));
        let body: &[u8] = if method == "POST" { b"hello" } else { b"" };
        Client::connect_from(source, self.front).request(method, path, headers, body)
    }
}

impl Drop for Example {
    /// The script stops what it has started; what it cannot stop goes with its process group.
    fn drop(&mut self) {
        let start = Instant::now();
        if !self.script.has_ended() {
            self.script.signal("TERM");
        }
        while !self.script.has_ended() && start.elapsed() < GRACE {
            thread::sleep(Duration::from_millis(10));
        }
        let group = format!("-{}", self.script.id());
        Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status().ok();
    }
}

impl Node {
    /// Reads `node 1: process 123, tollgate serve -c FILE`.
    fn read(line: &str) -> Option<Node> {
        let (process, rest) = line.strip_prefix("node ")?.split_once("process ")?.1.split_once(',')?;
        let (_, config) = rest.split_once(" -c ")?;
        Some(Node { process: process.parse().ok()?, config: PathBuf::from(config) })
    }

    /// Returns once the node is gone: until then it locks its `state_dir`.
    pub fn kill(&self) {
        let sent = Command::new("kill").args(["-KILL", &self.process.to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "a node can be killed");
        let process = Path::new("/proc").join(self.process.to_string());
        // The first thread may be a zombie while others still hold the files of the process.
        let threads = || std::fs::read_dir(process.join("task")).map_or(0, Iterator::count);
        let is_zombie = |status: String| status.contains(") Z ") && threads() <= 1;
        let is_gone = || std::fs::read_to_string(process.join("stat")).map_or(true, is_zombie);
        eventually("the node is gone", is_gone);
    }
}

/// Whether an answer has the headers of a verdict.
pub fn went_through_tollgate(answer: &Answer) -> bool {
    answer.header("ratelimit").is_some()
}

/// The answers that were not as usual, of two clients that send requests all the time while something happens. One keeps its
/// connection, the other makes a new one for each request.
pub fn under_traffic(example: &Example, meanwhile: impl FnOnce(&dyn Fn(usize))) -> Vec<Answer> {
    under_traffic_of(2, example, meanwhile)
}

/// As [`under_traffic`], of several clients at the same time: every second one keeps its connection.
pub fn under_traffic_of(
    clients: usize,
    example: &Example,
    meanwhile: impl FnOnce(&dyn Fn(usize)),
) -> Vec<Answer> {
    let answers = Mutex::new(Vec::new());
    let count = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let note = |answer: Answer| {
        if answer.status != 200 || !went_through_tollgate(&answer) {
            answers.lock().expect("no panic while the list is held").push(answer);
        }
        count.fetch_add(1, Ordering::Relaxed);
    };
    let more = |wanted: usize| {
        let start = count.load(Ordering::Relaxed);
        eventually("requests are answered", || count.load(Ordering::Relaxed) >= start + wanted);
    };
    let keep_connection = || {
        let mut kept = Client::to(example.front);
        while !stop.load(Ordering::Relaxed) {
            note(kept.request("GET", "/", &[], b""));
        }
    };
    let connect_each_time = || {
        while !stop.load(Ordering::Relaxed) {
            note(example.request(9, "GET", "/", &[]));
        }
    };
    thread::scope(|scope| {
        for n in 0..clients {
            if n % 2 == 0 {
                scope.spawn(keep_connection)
            } else {
                scope.spawn(connect_each_time)
            };
        }
        let stopped = StopOnDrop(&stop);
        more(50);
        meanwhile(&more);
        drop(stopped);
    });
    answers.into_inner().expect("no panic while the list is held")
}

/// Tells the clients to stop, also after a panic: a scope waits for its threads.
struct StopOnDrop<'s>(&'s AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
