//! A memcached server.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use tollgate::request::percent::{self, Plus};

use super::{Folder, Process, find, free_port, not_run, wait_until};

#[derive(Debug)]
pub struct Memcached {
    pub process: Process,
    pub folder: Folder,
    pub port: u16,
}

impl Memcached {
    /// A server; `None`, said loudly, if there is none on this machine.
    pub fn start(what: &str) -> Option<Memcached> {
        Memcached::start_with(what, &[])
    }

    pub fn start_with(what: &str, arguments: &[&str]) -> Option<Memcached> {
        let Some(program) = find("memcached") else {
            not_run(what, "no memcached; it comes with the Debian package memcached");
            return None;
        };
        let (folder, port) = (Folder::new(), free_port());
        let mut command = Command::new(program);
        command.args([
            "-l",
            "127.0.0.1",
            "-p",
            &port.to_string(),
            "-U",
            "0",
            "-u",
            "root",
            "-m",
            "64",
            "-t",
            "2",
        ]);
        command.args(arguments);
        let process = Process::start(&mut command, &folder.path("log"));
        wait_until("memcached listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(Memcached { process, folder, port })
    }

    pub fn url(&self) -> String {
        format!("memcached://127.0.0.1:{}", self.port)
    }

    /// What the server answers to a command, up to a line that is `last`.
    pub fn ask(&self, command: &str, last: &str) -> Vec<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("memcached is there");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
        stream.write_all(format!("{command}\r\n").as_bytes()).expect("memcached listens");
        let lines = BufReader::new(stream).lines().map(|line| line.expect("memcached answers"));
        lines.take_while(|line| line != last).collect()
    }

    /// The keys that it holds.
    pub fn keys(&self) -> Vec<String> {
        let dump = self.ask("lru_crawler metadump all", "END");
        let keys = dump.iter().filter_map(|line| line.strip_prefix("key=")?.split(' ').next());
        keys.map(|key| percent::text(percent::decode(key, Plus::Literal).collect())).collect()
    }
}
