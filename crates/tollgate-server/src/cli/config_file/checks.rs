//! The checks of a configuration: what is on disk, and the servers that it names. Nothing is created.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use rustix::fs::{Access, access};
use tollgate::internal::document::{Problem, Problems};

use crate::assemble;
use crate::cli::finding::Findings;
use crate::cli::{input_file, out};
use crate::config::{Config, LISTENERS, QueueLocation, RulesDbConfig};
use crate::rules_follower::{NodeCapabilities, RulesFollower};
use crate::state::{self, FolderLock, StateFile};
use crate::tls::ListenerTls;
use crate::transport::proxy::upstream_tls_client;

/// How long a store or a database may take to answer.
const SERVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Everything that needs no server. Returns the configuration if it could be read.
pub fn on_disk(path: &Path, findings: &mut Findings) -> Option<Config> {
    let loaded = input_file::read(path).and_then(|input| Ok((input.config(path)?, input)));
    let (mut config, input) = match loaded {
        Ok(loaded) => loaded,
        Err(problems) => {
            findings.problems(&problems);
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
    );
    for setting in &config.without_effect {
        findings.warning(setting, "has no effect in this version", "remove it");
    }
    secrets(&config, findings);
    folder(&config, findings);
    certificates(&config, findings);
    Some(config)
}

/// Tokens, keys of tokens and receipts, and the secret of the store.
fn secrets(config: &Config, findings: &mut Findings) {
    let tokens = assemble::tokens(config.tokens_file.as_deref());
    findings.check(
        "tokens",
        tokens.map(|tokens| match tokens {
            Some(_) => "can be read".to_owned(),
            None => "none: local callers only".to_owned(),
        }),
    );
    if let Some(file) = &config.jwt_keys_file {
        let keys = assemble::key_set(file);
        let keys = keys.map_err(|error| Problem::new(None, "jwt.keys_file", format!("{error:#}")).into());
        findings.check("jwt.keys_file", keys.map(|_| "can be read".to_owned()));
    }
    if config.receipt_key_file.is_some() {
        findings
            .check("receipt_key_file", assemble::receipt_secret(config).map(|_| "can be read".to_owned()));
    }
    if let Some(store) = &config.store
        && store.keys.secret_file.is_some()
    {
        let naming = assemble::naming(&store.keys).map_err(Problems::from);
        findings.check("store_secret_file", naming.map(|_| "can be read".to_owned()));
    }
}

/// The folder of the state, and the files in it.
fn folder(config: &Config, findings: &mut Findings) {
    let folder = if config.state_dir.as_os_str().is_empty() { Path::new(".") } else { &config.state_dir };
    let shown = folder.display();
    if !folder.is_dir() {
        findings.error_with_fix(
            "state_dir",
            format!("there is no folder {shown}"),
            &format!("mkdir -p '{shown}'"),
        );
        return;
    }
    if let Err(error) = access(folder, Access::WRITE_OK | Access::EXEC_OK) {
        let fix = format!("run the server as the owner of {shown}, or set state_dir to a folder of its own");
        findings.warning(
            "state_dir",
            format!("{shown} cannot be written to: {error}; nothing is saved"),
            &fix,
        );
    } else {
        match FolderLock::holder_of(folder) {
            Some(holder) => findings.ok("state_dir", format!("{shown} is in use by {holder}")),
            None => findings.ok("state_dir", format!("{shown} can be written to")),
        }
    }
    let state = StateFile::in_folder(folder);
    let rules_db = config.rules_db.as_ref().and_then(RulesDbConfig::file);
    let queue = config.queue.as_ref().and_then(|queue| match &queue.location {
        QueueLocation::File(file) => Some(file.clone()),
        QueueLocation::Redis { .. } => None,
    });
    let files =
        [("state_dir", Some(state.path())), ("rules_db", rules_db.as_deref()), ("queue", queue.as_deref())];
    let files = files.into_iter().filter_map(|(setting, path)| Some((setting, path?)));
    if let Err(problems) = state::reject_open_to_others(files) {
        findings.problems(&problems);
    }
    for (setting, file) in [("rules_db", rules_db), ("queue", queue)] {
        if let Some(file) = file.filter(|file| file.exists()) {
            findings.check(setting, sqlite(setting, &file));
        }
    }
}

/// Opened without creating a file next to it, whatever the user of this command is.
fn sqlite(setting: &str, file: &Path) -> Result<String, Problems> {
    let name = file.display();
    let problem =
        |error: rusqlite::Error| Problems::from(Problem::new(None, setting, format!("{name}: {error}")));
    let uri =
        format!("file:{}?immutable=1", crate::client::percent_encode(&name.to_string()).replace("%2F", "/"));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let db = Connection::open_with_flags(uri, flags).map_err(problem)?;
    // What a running node has written lately is in another file, so the number says nothing.
    db.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(())).map_err(problem)?;
    Ok(format!("{name} can be read"))
}

fn certificates(config: &Config, findings: &mut Findings) {
    let problem = |setting: &str, error: anyhow::Error| {
        Problems::from(Problem::new(None, setting, format!("{error:#}")))
    };
    for listener in LISTENERS {
        let Some(files) = config.starts.tls(listener) else { continue };
        let setting = format!("tls.{listener}");
        let cert = files.cert.display();
        let loaded = ListenerTls::load(listener, files.clone(), &[]);
        let loaded = loaded.map(|_| format!("{cert} and its key match"));
        findings.check(&setting, loaded.map_err(|error| problem(&setting, error)));
        let is_open = |mode: u32| mode & 0o004 != 0;
        if fs::metadata(&files.key).is_ok_and(|found| is_open(found.permissions().mode())) {
            let key = files.key.display();
            let message = format!("every user of this machine can read {key}");
            findings.warning(&setting, message, &format!("chmod 600 '{key}'"));
        }
    }
    let Some(proxy) = &config.proxy else { return };
    let client = upstream_tls_client(&proxy.upstream_tls);
    if let Some(ca) = &proxy.upstream_tls.ca {
        let client = client.map(|_| format!("{} can be read", ca.display()));
        findings.check("proxy.upstream_tls", client.map_err(|error| problem("proxy.upstream_tls", error)));
    }
}

/// The central store and the rules database, if they are on servers.
pub async fn servers(config: &Config, findings: &mut Findings) {
    if let Some(store) = &config.store {
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
    let Some(database) = config.rules_db.as_ref().filter(|database| database.file().is_none()) else {
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
