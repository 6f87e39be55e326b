//! A memcached server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use percent_encoding::percent_decode_str;

use crate::{Folder, Process, SOON, eventually, find, free_port, not_run};

#[derive(Debug)]
pub struct Memcached {
    pub process: Process,
    pub folder: Arc<Folder>,
    pub port: u16,
    arguments: Vec<String>,
}

impl Memcached {
    /// A server; `None`, with a message, if it is not installed.
    pub fn start(what: &str) -> Option<Memcached> {
        Memcached::start_with(what, &[])
    }

    pub fn start_with(what: &str, arguments: &[&str]) -> Option<Memcached> {
        let Some(program) = find("memcached") else {
            not_run(what, "no memcached; it comes with the Debian package memcached");
            return None;
        };
        let folder = Folder::new();
        let port = free_port();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let process = run(&program, port, &arguments, &folder);
        Some(Memcached { process, folder, port, arguments })
    }

    /// Stops it, and starts it again at the same address.
    pub fn restart(&mut self) {
        self.process.kill();
        let program = find("memcached").expect("it was there");
        self.process = run(&program, self.port, &self.arguments, &self.folder);
    }

    pub fn url(&self) -> String {
        format!("memcached://127.0.0.1:{}", self.port)
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("memcached is there");
        stream.set_read_timeout(Some(SOON)).expect("a timeout can be set");
        stream
    }

    /// The bytes under a key.
    pub fn value(&self, key: &str) -> Vec<u8> {
        let mut stream = self.connect();
        stream.write_all(format!("mg {key} v\r\n").as_bytes()).expect("memcached listens");
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).expect("memcached answers");
        let len = line.trim_end().strip_prefix("VA ").and_then(|len| len.parse().ok());
        let mut value = vec![0; len.unwrap_or_else(|| panic!("{key} has no value: {line}"))];
        reader.read_exact(&mut value).expect("memcached answers");
        value
    }

    /// How long a key will live, in seconds.
    pub fn lifetime(&self, key: &str) -> i64 {
        let line = self.command(&format!("mg {key} t\r\nmn"), "MN").join(" ");
        let lifetime = line.strip_prefix("HD t").and_then(|lifetime| lifetime.parse().ok());
        lifetime.unwrap_or_else(|| panic!("{key} has no lifetime: {line}"))
    }

    /// What the server answers to a command, up to a line that is `last`.
    pub fn command(&self, command: &str, last: &str) -> Vec<String> {
        self.lines(command).take_while(|line| line != last).collect()
    }

    fn lines(&self, command: &str) -> impl Iterator<Item = String> + use<> {
        let mut stream = self.connect();
        stream.write_all(format!("{command}\r\n").as_bytes()).expect("memcached listens");
        BufReader::new(stream).lines().map(|line| line.expect("memcached answers"))
    }

    /// The keys that it holds. While the server's own crawler runs, it answers BUSY instead of a list.
    pub fn keys(&self) -> Vec<String> {
        let mut dump = Vec::new();
        eventually("memcached lists its keys", || {
            let mut is_busy = false;
            let listed = |line: &String| {
                is_busy = line.starts_with("BUSY");
                line != "END" && !is_busy
            };
            dump = self.lines("lru_crawler metadump hash").take_while(listed).collect();
            !is_busy
        });
        let keys = dump.iter().filter_map(|line| line.strip_prefix("key=")?.split(' ').next());
        keys.map(|key| percent_decode_str(key).decode_utf8_lossy().into_owned()).collect()
    }
}

fn run(program: &Path, port: u16, arguments: &Vec<String>, folder: &Folder) -> Process {
    let mut command = Command::new(program);
    command.args(["-l", "127.0.0.1", "-p", &port.to_string(), "-U", "0", "-u", "root", "-t", "2"]);
    let process = Process::start(command.args(arguments), &folder.path("log"));
    eventually("memcached listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    process
}
