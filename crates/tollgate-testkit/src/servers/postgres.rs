//! A PostgreSQL server, and standbys that follow it. It refuses to run as root: there it runs as another user.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use crate::{Folder, Process, eventually, find, free_port, not_run};

#[derive(Debug)]
pub struct Postgres {
    process: Process,
    folder: Arc<Folder>,
    pub port: u16,
    settings: Vec<String>,
}

impl Postgres {
    /// A new server; `None`, with a message, if it is not installed.
    pub fn start(what: &str) -> Option<Postgres> {
        if find("pg_ctlcluster").is_none() && find("initdb").is_none() {
            not_run(what, "no PostgreSQL; it comes with the Debian package postgresql");
            return None;
        }
        let folder = data_folder();
        let data = folder.path("data");
        run(command("initdb", &folder).arg("-D").arg(&data).args(["-A", "trust", "-U", "postgres", "-N"]));
        Some(Postgres::serve(folder))
    }

    /// A standby that streams from this server.
    pub fn standby(&self) -> Postgres {
        let folder = data_folder();
        let mut copy = command("pg_basebackup", &folder);
        copy.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "postgres", "-R", "-X", "stream"]);
        run(copy.args(["-c", "fast", "-N", "-D"]).arg(folder.path("data")));
        Postgres::serve(folder)
    }

    fn serve(folder: Arc<Folder>) -> Postgres {
        let port = free_port();
        let process = spawn(&folder, port, &[]);
        let mut server = Postgres { process, folder, port, settings: Vec::new() };
        server.wait();
        server
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.host())
    }

    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Writes a file to its data folder that only its owner may read, such as a key or `pg_hba.conf`.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path("data").join(name);
        fs::write(&path, text).expect("a file of the test");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
        if let Some((user, group)) = unprivileged_user() {
            chown(&path, Some(user), Some(group)).expect("root may give files away");
        }
        path
    }

    /// Restarts it with settings such as `synchronous_standby_names=*`.
    pub fn restart_with(&mut self, settings: &[&str]) {
        self.settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        self.stop();
        self.restart();
    }

    /// Clients are cut off, and what is committed is written down.
    pub fn stop(&mut self) {
        self.process.end("INT");
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Sends a signal such as `STOP` to the process that accepts connections.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    pub fn restart(&mut self) {
        self.process = spawn(&self.folder, self.port, &self.settings);
        self.wait();
    }

    /// Makes a standby the primary.
    pub fn promote(&self) {
        run(command("pg_ctl", &self.folder).args(["promote", "-w", "-D"]).arg(self.folder.path("data")));
    }

    /// Accepts connections. Children of a killed server may still be going: then it is tried again.
    fn wait(&mut self) {
        let port = self.port.to_string();
        let folder = &self.folder;
        let process = &mut self.process;
        let settings = &self.settings;
        eventually("PostgreSQL is ready", || {
            if process.has_ended() {
                *process = spawn(folder, self.port, settings);
            }
            let mut ready = command("pg_isready", folder);
            ready.args(["-q", "-h", "127.0.0.1", "-p", &port]);
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
                && ready.status().is_ok_and(|status| status.success())
        });
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if !self.process.has_ended() {
            self.process.signal("CONT"); // a stopped process cannot end
        }
        // Not SIGKILL, which leaves shared memory behind.
        self.process.end("QUIT");
    }
}

fn spawn(folder: &Folder, port: u16, settings: &[String]) -> Process {
    let mut server = command("postgres", folder);
    server.arg("-D").arg(folder.path("data")).args(["-p", &port.to_string(), "-h", "127.0.0.1", "-k", ""]);
    for setting in settings {
        server.args(["-c", setting]);
    }
    server.args(["-c", "shared_buffers=16MB", "-c", "max_connections=40"]);
    Process::start(&mut server, &folder.path("log"))
}

fn data_folder() -> Arc<Folder> {
    let folder = Folder::new();
    if let Some((user, group)) = unprivileged_user() {
        chown(folder.root(), Some(user), Some(group)).expect("root may give folders away");
    }
    fs::set_permissions(folder.root(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    folder
}

/// Debian keeps the server's programs off the PATH.
fn program(name: &str) -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut paths: Vec<_> = versions.map(|version| version.path().join("bin").join(name)).collect();
    paths.sort();
    paths.into_iter().rev().find(|path| path.is_file()).or_else(|| find(name))
}

fn command(name: &str, folder: &Folder) -> Command {
    let mut command = Command::new(program(name).unwrap_or_else(|| name.into()));
    command.current_dir(folder.root()).env("LC_ALL", "C.UTF-8");
    if let Some((user, group)) = unprivileged_user() {
        command.uid(user).gid(group);
    }
    command
}

/// The user that root runs it as: `postgres` if it exists, else `nobody`.
fn unprivileged_user() -> Option<(u32, u32)> {
    if fs::metadata("/proc/self").expect("a process has a folder").uid() != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let ids = users.lines().find(|line| line.starts_with("postgres:")).and_then(|line| {
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    });
    Some(ids.unwrap_or((65_534, 65_534)))
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
