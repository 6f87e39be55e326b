//! Processes, ports and programs of one test.

use std::fs::OpenOptions;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::eventually;

/// A process that ends with its owner.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts a server; its output goes to `log`.
    pub fn start(command: &mut Command, log: &Path) -> Process {
        let out = OpenOptions::new().create(true).append(true).open(log).expect("a log can be written");
        let err = out.try_clone().expect("a file can be shared");
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn();
        Process(child.unwrap_or_else(|error| panic!("{command:?} does not start: {error}")))
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends a signal by name, such as `STOP` or `CONT`, to this process alone.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.id().to_string()).status();
        assert!(status.is_ok_and(|status| status.success()), "signal {name} can be sent");
    }

    /// Sends a signal that ends it, and returns when it is gone.
    pub fn end(&mut self, signal: &str) {
        if !self.has_ended() {
            self.signal(signal);
            eventually("a process ends", || self.has_ended());
        }
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    /// Ends it at once (SIGKILL), and returns when it is gone.
    pub fn kill(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

const FIRST_PORT: u32 = 10_000;
const PORTS: u32 = 20_000;

/// A port for one caller, which no other process of tests is given while this one runs. It is outside the ephemeral range: a
/// port from that range may be taken by another process before it is used.
pub fn free_port() -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Processes that run side by side begin at different ones.
    next_port(&GIVEN, std::process::id().wrapping_mul(611))
}

fn next_port(given: &AtomicU32, start: u32) -> u16 {
    loop {
        let given = given.fetch_add(1, Ordering::Relaxed);
        assert!(given < PORTS, "every port is taken");
        let port = (FIRST_PORT + start.wrapping_add(given) % PORTS) as u16;
        if reserve(port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Whether this process has the port now, until it ends. Between the search for a free port and the start of the server that
/// binds it, another process would find it free as well: both servers would be one. Its name is taken in the network
/// namespace, as the port is.
fn reserve(port: u16) -> bool {
    let name = SocketAddr::from_abstract_name(format!("tollgate-test-port-{port}"));
    let reserved = name.and_then(|name| UnixDatagram::bind_addr(&name));
    reserved.map(std::mem::forget).is_ok()
}

/// Where a command is: in the folder that `scripts/servers` fills, or on the PATH. `None` for all of them under
/// `scripts/test --quick`.
pub fn find(command: &str) -> Option<PathBuf> {
    if std::env::var_os("TOLLGATE_NO_SERVERS").is_some() {
        return None;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(root).chain(std::env::split_paths(&path).collect::<Vec<_>>());
    folders.map(|folder| folder.join(command)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A regression: two processes got the same port before either of them used it, and tests shared a Redis.
    #[test]
    fn two_processes_are_not_given_the_same_port() {
        let [one, other] = [AtomicU32::new(0), AtomicU32::new(0)];
        let start = std::process::id();
        let mut ports: Vec<u16> =
            (0..20).flat_map(|_| [&one, &other]).map(|given| next_port(given, start)).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 40);
    }
}
