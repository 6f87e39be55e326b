//! The checks of a configuration: what a start opens, what is in its files, and the servers that it names. Nothing is
//! created.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use rustix::fs::{Access, access};
use tollgate::internal::document::{Problem, Problems};

use crate::assemble;
use crate::cli::finding::Findings;
use crate::cli::startup_check::{self, StartupCheck};
use crate::cli::{input_file, out};
use crate::config::{Config, IdleSetting, LISTENERS, QueueLocation, RulesDbConfig};
use crate::rules_follower::{NodeCapabilities, RulesFollower};
use crate::state::{self, FolderLock};

/// How long a store or a database may take to answer.
const SERVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Everything that needs no server. Returns the configuration if it could be read.
pub fn on_disk(path: &Path, findings: &mut Findings) -> Option<Config> {
    let loaded = input_file::read(path).and_then(|input| Ok((input.config(path)?, input)));
    let (mut config, input) = match loaded {
        Ok(loaded) => loaded,
        Err(problems) => {
            let is_missing = path != Path::new("-") && !path.exists();
            findings.problems(&problems, if is_missing { FIX_OF_MISSING_FILE } else { FIX_OF_FILE });
            return None;
        }
    };
    let name = &input.name;
    findings.ok("configuration", format!("{name} is valid"));
    let policy = config.take_policy();
    findings.check(
        "rules",
        policy.map_err(|problems| problems.in_file(name)).map(|policy| {
            for warning in policy.warnings().into_lines() {
                out::message(format!("warning: {warning}"));
            }
            out::pluralize(policy.rules().len() as u64, "rule")
        }),
        FIX_OF_FILE,
    );
    for setting in &config.without_effect {
        let IdleSetting { name, lacks } = setting;
        findings.warning(name, format!("has no effect without {lacks}"), "set both, or remove it");
    }
    for StartupCheck { setting, result } in startup_check::all(&config) {
        findings.check(&setting, result, fix_of(&setting));
    }
    state_folder(&config, findings);
    databases(&config, findings);
    open_keys(&config, findings);
    Some(config)
}

/// For what is wrong in the text of the configuration.
const FIX_OF_FILE: &str = "correct the file: docs/reference/configuration.md has every setting, `tollgate config schema` is for an editor";

const FIX_OF_MISSING_FILE: &str = "`tollgate init` writes a first one, -c names another";

/// What to do when a start stops at a setting.
fn fix_of(setting: &str) -> &'static str {
    let (group, _) = setting.split_once('.').unwrap_or((setting, ""));
    match group {
        "memory" => "set memory to less, or raise the limit of the process (`ulimit -v`, or the container's)",
        "tokens" => "let the server's user read the file, with a line 'ROLE TOKEN' for each token",
        "jwt" => "name a JSON Web Key Set that the server's user can read",
        "receipt_key_file" => {
            "write at least 32 random bytes: `head -c 32 /dev/urandom | base64 > FILE`, readable by the server's user only"
        }
        "fleet" => "name files that the server's user can read: a `read` token, and certificates in PEM",
        "state_dir" => {
            "set state_dir to a folder that belongs to the server's user, and to no other: `chmod 700 DIR`"
        }
        "envoy_config" => {
            "name a folder with files of envoyproxy/ratelimit, and correct what is wrong in them"
        }
        "decision_log" | "rules_db" | "queue" => {
            "name a file in a folder that the server's user can write, or correct the address and the files that it names"
        }
        "counters" => "correct the address, and let the server's user read the files that it names",
        "tls" => {
            "name a certificate chain and its private key in PEM: `openssl x509 -noout -text -in FILE` shows one"
        }
        "proxy" => "name certificates in PEM that the server's user can read",
        "listen" => {
            "set it to a port of this machine (`ip addr`), or to unix: and a path in an existing folder"
        }
        _ => "correct the setting: docs/reference/configuration.md describes it",
    }
}

/// Whether the folder of the state can be written to, and which node uses it.
fn state_folder(config: &Config, findings: &mut Findings) {
    let folder = state::folder(config);
    if !folder.is_dir() {
        return;
    }
    let shown = folder.display();
    if let Err(error) = access(folder, Access::WRITE_OK | Access::EXEC_OK) {
        let fix = format!("run the server as the owner of {shown}, or set state_dir to a folder of its own");
        findings.warning(
            "state_dir",
            format!("{shown} cannot be written to: {error}; nothing is saved"),
            &fix,
        );
        return;
    }
    match FolderLock::holder_of(folder) {
        Some(holder) => findings.ok("state_dir", format!("{shown} is in use by {holder}")),
        None => findings.ok("state_dir", format!("{shown} can be written to")),
    }
}

/// The contents of the SQLite files that exist.
fn databases(config: &Config, findings: &mut Findings) {
    let rules_db = config.rules_db.as_ref().and_then(RulesDbConfig::file);
    let queue = config.queue.as_ref().and_then(|queue| match &queue.location {
        QueueLocation::File(file) => Some(file.clone()),
        QueueLocation::Redis { .. } => None,
    });
    for (setting, file) in [("rules_db", rules_db), ("queue", queue)] {
        if let Some(file) = file.filter(|file| file.is_file())
            && let Err(problems) = sqlite(setting, &file)
        {
            let fix = "restore the file from a backup, or move it away: a start creates a new one";
            findings.problems(&problems, fix);
        }
    }
}

/// Opened without creating a file next to it, whatever the user of this command is.
fn sqlite(setting: &str, file: &Path) -> Result<(), Problems> {
    let name = file.display();
    let problem =
        |error: rusqlite::Error| Problems::from(Problem::new(None, setting, format!("{name}: {error}")));
    let uri =
        format!("file:{}?immutable=1", crate::client::percent_encode(&name.to_string()).replace("%2F", "/"));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let db = Connection::open_with_flags(uri, flags).map_err(problem)?;
    // What a running node has written lately is in another file, so the number says nothing.
    db.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(())).map_err(problem)
}

/// Private keys that every user can read.
fn open_keys(config: &Config, findings: &mut Findings) {
    for listener in LISTENERS {
        let Some(files) = config.starts.tls(listener) else { continue };
        let is_open = |mode: u32| mode & 0o004 != 0;
        if fs::metadata(&files.key).is_ok_and(|found| is_open(found.permissions().mode())) {
            let key = files.key.display();
            let message = format!("every user of this machine can read {key}");
            findings.warning(&format!("tls.{listener}"), message, &format!("chmod 600 '{key}'"));
        }
    }
}

/// The central store and the rules database, if they are on servers.
pub async fn servers(config: &Config, findings: &mut Findings) {
    let is_valid = !findings.has_error("counters") && !findings.has_error("store_secret_file");
    if let Some(store) = config.store.as_ref().filter(|_| is_valid) {
        match assemble::probe_central(store, SERVER_TIMEOUT).await {
            Ok(()) => findings.ok("counters", format!("{} answers", store.name)),
            Err(why) => {
                let fix = if why.contains("NOPERM") {
                    "give this user the permissions of docs/stores.md; until then on_store_error applies"
                } else {
                    "start it, or correct the address and the password; until then on_store_error applies"
                };
                findings.unreachable("counters", format!("{} cannot be used: {why}", store.name), fix);
            }
        }
    }
    let is_valid = !findings.has_error("rules_db");
    let server = config.rules_db.as_ref().filter(|database| database.file().is_none() && is_valid);
    let Some(database) = server else {
        return;
    };
    let follower = RulesFollower::new(database, NodeCapabilities::from_config(config));
    let opened = tokio::time::timeout(SERVER_TIMEOUT, follower.open()).await;
    let why = match opened {
        Ok(Ok(_)) => return findings.ok("rules_db", format!("{} answers", database.name)),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", SERVER_TIMEOUT.as_secs()),
    };
    let fix = "start it, or correct the address and the password; until then on_rules_error applies";
    findings.unreachable("rules_db", format!("{} cannot be used: {why}", database.name), fix);
}
