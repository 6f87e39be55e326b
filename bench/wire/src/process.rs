//! Servers as processes on the servers' processor, and the time they use.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

/// How long a server may take until it accepts connections.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long one may take to end before it is killed.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// A process that is ended when this is dropped.
pub struct Server {
    child: Child,
}

impl Server {
    /// Starts a program on a processor, and waits until it accepts connections on all ports. `None`, with a message, if
    /// it is not installed or does not start.
    pub fn start(cpu: usize, program: &Path, args: &[&str], ports: &[u16]) -> Option<Server> {
        let mut command = Command::new("taskset");
        command.arg("-c").arg(cpu.to_string()).arg(program).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let log = tempfile("log");
        command.stderr(fs::File::create(&log).expect("a file for the log"));
        let child = command.spawn().expect("taskset runs");
        let mut server = Server { child };
        let begun = Instant::now();
        while !ports.iter().all(|port| TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_ok()) {
            let ended = server.child.try_wait().ok().flatten();
            if ended.is_some() || begun.elapsed() > PATIENCE {
                let log = fs::read_to_string(&log).unwrap_or_default();
                eprintln!("left out: {} does not start\n{log}", program.display());
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(server)
    }

    /// Processor time of the process and its children so far.
    pub fn cpu(&self) -> Duration {
        let process = self.child.id();
        children(process).iter().chain([&process]).map(|process| cpu_of(*process)).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let children = children(self.child.id());
        // Asked first: a server that is killed may leave its workers behind.
        Command::new("kill").arg(self.child.id().to_string()).status().ok();
        let begun = Instant::now();
        while begun.elapsed() < ENDS_WITHIN {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        for process in children {
            Command::new("kill").args(["-KILL", &process.to_string()]).status().ok();
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn children(process: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// The time of all threads, in nanoseconds; `stat` counts in hundredths of a second.
fn cpu_of(process: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let nanos = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

pub fn pin(cpu: usize) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// The path of a program or file on the search path.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    if found.is_none() {
        eprintln!("left out: {name} is not installed");
    }
    found
}

/// A path for a file of this run; the folder is removed by the system.
pub fn tempfile(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("wire-bench-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for this run");
    folder.join(format!("{name}-{}", fastrand::u32(..)))
}
