//! `tollgate doctor`: checks the environment of a node; each finding has a fix.

use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Args;
use rustix::process::{Resource, getrlimit};
use tollgate::Clock;
use tollgate::internal::time::format_duration;

use crate::assemble;
use crate::cli::Exit;
use crate::cli::config_file::{self, checks};
use crate::cli::finding::Findings;
use crate::config::{Config, ListenAddress};
use crate::state::{FolderLock, StateFile};

mod clocks;
mod redis_server;

/// Each connection is a file descriptor.
const MIN_OPEN_FILES: u64 = 65_536;
/// A running node with a state that is older has trouble, unless it has no traffic.
const MAX_STATE_AGE: Duration = Duration::from_secs(3_600);

#[derive(Args)]
pub struct DoctorArgs {
    /// The configuration file
    #[arg(short, long, value_name = "FILE", default_value = "tollgate.yaml")]
    config: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &DoctorArgs) -> Exit {
    let mut findings = Findings::default();
    if let Some(config) = checks::on_disk(&args.config, &mut findings) {
        let folder = if config.state_dir.as_os_str().is_empty() { Path::new(".") } else { &config.state_dir };
        let holder = FolderLock::holder_of(folder);
        ports(&config, holder.as_deref(), &mut findings);
        exposed_listeners(&config, &mut findings);
        state_age(folder, holder.is_some(), SystemTime::now(), &mut findings);
        crate::client::block_on(async {
            checks::servers(&config, &mut findings).await;
            redis_server::check(&config, &mut findings).await;
            clocks::check(&config, &Clock::new(), &mut findings).await;
        });
    }
    open_files(&mut findings);
    config_file::conclude(&findings, args.json)
}

/// Whether each address is free, or in use by the node that holds the state's folder.
fn ports(config: &Config, holder: Option<&str>, findings: &mut Findings) {
    for (name, address) in config.listen.addresses() {
        let what = format!("listen.{name}");
        if findings.has_error(&what) {
            continue;
        }
        // A stale Unix socket is replaced at the start.
        let ListenAddress::Tcp(address) = address else { continue };
        match TcpListener::bind(address) {
            Ok(_) => findings.ok(&what, format!("{address} is free")),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if holder.is_some_and(|holder| holder.contains(&format!("{address} ({name})"))) {
                    findings.ok(&what, format!("{address} is in use by the running node"));
                    continue;
                }
                let port = address.port();
                let fix = format!(
                    "`ss -ltnp 'sport = :{port}'` shows the process; stop it, or set {what} to another address"
                );
                findings.error(&what, format!("{address} is in use by another process"), &fix);
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let fix = "use a port from 1024 on, or give the service CAP_NET_BIND_SERVICE";
                findings.error(&what, format!("{address} may not be used: {error}"), fix);
            }
            Err(error) => {
                let fix = format!(
                    "set {what} to an address of this machine (`ip addr`), or to 0.0.0.0 for all of them"
                );
                findings.error(&what, format!("{address} cannot be used: {error}"), &fix);
            }
        }
    }
}

fn exposed_listeners(config: &Config, findings: &mut Findings) {
    let has_check = assemble::tokens(config.tokens_file.as_deref())
        .is_ok_and(|tokens| tokens.is_some_and(|tokens| tokens.has_check()));
    for (name, address) in config.listen.addresses().filter(|(_, address)| !address.is_local()) {
        if name == "admin" && config.starts.tls("admin").is_none() {
            findings.warning(
                "listen.admin",
                format!("{address} can be reached from outside without TLS: tokens and keys can be read on the way"),
                "set tls.admin to a certificate and its key, or listen on 127.0.0.1 behind a proxy with TLS",
            );
        }
        if matches!(name, "http" | "grpc" | "resp") && !has_check {
            findings.warning(
                &format!("listen.{name}"),
                format!("{address} can be reached from outside and requires no token: any client can use up the limits of others"),
                "put a line 'check TOKEN' into tokens_file or TOLLGATE_TOKENS, or listen on 127.0.0.1",
            );
        }
    }
}

fn state_age(folder: &Path, is_running: bool, now: SystemTime, findings: &mut Findings) {
    let file = StateFile::in_folder(folder);
    let Ok(modified) = std::fs::metadata(file.path()).and_then(|found| found.modified()) else {
        return findings.ok("state", "nothing was saved yet");
    };
    let age = now.duration_since(modified).unwrap_or_default();
    let shown = format_duration(Duration::from_secs(age.as_secs()));
    if is_running && age > MAX_STATE_AGE {
        let fix = "see `state` in `tollgate status --json`: the disk may be full, or there was no traffic";
        return findings.warning("state", format!("last saved {shown} ago, although a node runs"), fix);
    }
    findings.ok("state", format!("last saved {shown} ago"));
}

fn open_files(findings: &mut Findings) {
    match getrlimit(Resource::Nofile).maximum {
        Some(most) if most < MIN_OPEN_FILES => {
            let fix = format!("LimitNOFILE={MIN_OPEN_FILES} in the unit, or `ulimit -n` before the start");
            findings.warning("open files", format!("at most {most}: each connection takes one"), &fix);
        }
        Some(most) => findings.ok("open files", format!("at most {most}")),
        None => findings.ok("open files", "unlimited"),
    }
}

#[cfg(test)]
mod tests {
    use tollgate_testkit::Folder;

    use super::*;
    use crate::cli::finding::Severity;

    /// What is found of a state that was saved this long ago.
    fn check_age(age: Duration, is_running: bool) -> (Severity, String) {
        let folder = Folder::new();
        let root = folder.root();
        let file = StateFile::in_folder(root);
        std::fs::write(file.path(), "state").expect("it is written");
        let saved = std::fs::metadata(file.path()).and_then(|found| found.modified()).expect("it has a time");
        let mut findings = Findings::default();
        state_age(root, is_running, saved + age, &mut findings);
        (findings.worst(), findings.json()["findings"][0]["detail"].as_str().unwrap_or_default().to_owned())
    }

    #[test]
    fn a_state_that_a_running_node_has_not_saved_for_an_hour_is_a_warning() {
        let hour = MAX_STATE_AGE;
        let second = Duration::from_secs(1);
        assert_eq!(
            check_age(hour + second, true),
            (Severity::Warning, "last saved 3601s ago, although a node runs".to_owned())
        );
        assert_eq!(check_age(hour, true), (Severity::Ok, "last saved 1h ago".to_owned()));
        assert_eq!(check_age(hour + second, false).0, Severity::Ok, "no node runs");
    }
}
