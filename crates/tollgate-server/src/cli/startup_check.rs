//! Everything that a start opens, checked without creating a file, taking a configured port or contacting a server.
//!
//! `tollgate serve` stops at these problems before it opens anything; `config check` and `doctor` print them, and what
//! is in order. What depends on other processes is not here: a busy port, a lock, a server that does not answer.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use rustix::fs::{Access, access};
use tollgate::internal::document::{Problem, Problems};
use tollgate_stores::rules::RulesDb;

use crate::cli::bound_socket;
use crate::config::{Config, QueueConfig, QueueLocation, RulesDbConfig};
use crate::decision_log::LogTarget;
use crate::envoy::EnvoyLimits;
use crate::queue::QueueBackend;
use crate::tls::ListenerTls;
use crate::transport::proxy::upstream_tls_client;
use crate::{assemble, client, state};

/// One setting, and what was found.
pub struct StartupCheck {
    pub setting: String,
    pub result: Result<String, Problems>,
}

/// All problems that a start would stop at.
pub fn problems(config: &Config) -> Result<(), Problems> {
    let mut problems = Problems::new();
    for check in all(config) {
        if let Err(found) = check.result {
            problems.merge(found);
        }
    }
    problems.or(())
}

/// What each setting names, in the order of a start. The policy is checked where it is put in force.
pub fn all(config: &Config) -> Vec<StartupCheck> {
    let mut checks = Checks(Vec::new());
    memory(config, &mut checks);
    secrets(config, &mut checks);
    state_folder(config, &mut checks);
    files(config, &mut checks);
    // Stores connect in the background, on a runtime that never runs.
    let idle = client::runtime();
    let _inside = idle.enter();
    stores(config, &mut checks);
    certificates(config, &mut checks);
    listeners(config, &mut checks);
    checks.0
}

struct Checks(Vec<StartupCheck>);

impl Checks {
    fn add(&mut self, setting: &str, result: Result<String, Problems>) {
        self.0.push(StartupCheck { setting: setting.to_owned(), result });
    }

    /// A check whose error is about `setting` itself.
    fn of<E: std::fmt::Display>(&mut self, setting: &str, result: Result<String, E>) {
        self.add(setting, result.map_err(|error| Problem::new(None, setting, format!("{error:#}")).into()));
    }
}

fn memory(config: &Config, checks: &mut Checks) {
    if let Err(problems) = assemble::check_memory(config) {
        checks.add("memory", Err(problems));
    }
}

/// Tokens, and the keys of tokens, receipts and other nodes.
fn secrets(config: &Config, checks: &mut Checks) {
    let tokens = assemble::tokens(config.tokens_file.as_deref());
    let found = |has_any: bool| if has_any { "can be read" } else { "none: local callers only" }.to_owned();
    checks.add("tokens", tokens.map(|tokens| found(tokens.is_some())));
    if let Some(file) = &config.jwt_keys_file {
        checks.of("jwt.keys_file", assemble::key_set(file).map(can_be_read));
    }
    if config.receipt_key_file.is_some() {
        checks.add(
            "receipt_key_file",
            assemble::receipt_secret(config).map(can_be_read).map_err(Problems::from),
        );
    }
    if config.fleet.token_file.is_some() || config.fleet.ca_file.is_some() {
        checks.add("fleet", assemble::fleet(config).map(can_be_read));
    }
}

fn can_be_read<T>(_: T) -> String {
    "can be read".to_owned()
}

/// The folder of the state. One that is read-only is no problem: nothing is saved then.
fn state_folder(config: &Config, checks: &mut Checks) {
    if let Err(problems) = state::check_folder(config).and_then(|()| state::reject_open_to_others(config)) {
        checks.add("state_dir", Err(problems));
    }
}

/// Files that a start creates or appends to, and folders that it reads.
fn files(config: &Config, checks: &mut Checks) {
    if let Some(folder) = &config.envoy.folder {
        let loaded = EnvoyLimits::load(config.envoy.clone(), &config.settings);
        checks.add("envoy_config", loaded.map(|_| format!("{} can be read", folder.display())));
    }
    if let Some(log) = &config.decision_log
        && let LogTarget::File(path) = &log.to
    {
        checks.of("decision_log.to", appendable(path));
    }
    // A default database that cannot be created is left out.
    let has_database = |db: &&RulesDbConfig| db.is_explicit || db.file().is_some_and(|file| file.exists());
    if let Some(file) = config.rules_db.as_ref().filter(has_database).and_then(RulesDbConfig::file) {
        checks.of("rules_db", sqlite(&file));
    }
    if let Some(QueueConfig { location: QueueLocation::File(file), .. }) = &config.queue {
        checks.of("queue", sqlite(file));
    }
}

/// Names and secrets of stores on servers.
fn stores(config: &Config, checks: &mut Checks) {
    if let Some(store) = &config.store {
        if let Err(problem) = assemble::central(store) {
            checks.add("counters", Err(problem.into()));
        } else if let Err(why) = store.address.check_files() {
            checks.of("counters", Err(why));
        }
    }
    if let Some(queue) = &config.queue
        && let QueueLocation::Redis { address, .. } = &queue.location
    {
        let opened = QueueBackend::open(queue).map_err(|error| error.to_string());
        if let Err(why) = opened.and_then(|_| address.check_files()) {
            checks.of("queue", Err(why));
        }
    }
    if let Some(database) = config.rules_db.as_ref().filter(|database| database.file().is_none())
        && let Err(why) = RulesDb::check_files(&database.address, &database.folder)
    {
        checks.of("rules_db", Err(why));
    }
    #[cfg(feature = "otlp")]
    if let Some(otlp) = &config.otlp
        && let Err(error) = client::ServerClient::without_token(&otlp.endpoint)
    {
        checks.of("otlp.endpoint", Err(error));
    }
}

fn certificates(config: &Config, checks: &mut Checks) {
    for (listener, _) in config.listen.addresses() {
        let Some(files) = config.starts.tls(listener) else { continue };
        let loaded = ListenerTls::load(listener, files.clone(), &[]);
        let cert = files.cert.display();
        checks.of(&format!("tls.{listener}"), loaded.map(|_| format!("{cert} and its key match")));
    }
    let Some(tls) = config.proxy.as_ref().map(|proxy| &proxy.upstream_tls) else { return };
    match (upstream_tls_client(tls), &tls.ca) {
        (Ok(_), None) => {}
        (client, ca) => {
            let ca = ca.as_ref().map(|file| format!("{} ", file.display())).unwrap_or_default();
            checks.of("proxy.upstream_tls", client.map(|_| format!("{ca}can be read")));
        }
    }
}

fn listeners(config: &Config, checks: &mut Checks) {
    for (listener, address) in config.listen.addresses() {
        if let Err(why) = bound_socket::check(address) {
            checks.of(&format!("listen.{listener}"), Err(why));
        }
    }
}

/// Whether SQLite can use a file: it also creates files beside it.
fn sqlite(file: &Path) -> Result<String, String> {
    let found = appendable(file)?;
    creatable(file).map(|()| found)
}

/// Whether a file can be appended to, or created.
fn appendable(file: &Path) -> Result<String, String> {
    let shown = file.display();
    match fs::metadata(file) {
        Ok(found) if found.is_dir() => Err(format!("{shown} is a folder, and a file is needed in its place")),
        Ok(_) => match access(file, Access::WRITE_OK) {
            Ok(()) => Ok(format!("{shown} can be written")),
            Err(error) => Err(format!("{shown} cannot be written: {error}")),
        },
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            creatable(file).map(|()| format!("{shown} will be created"))
        }
        Err(error) => Err(format!("{shown} cannot be opened: {error}")),
    }
}

/// Whether a file can be created in its folder.
pub fn creatable(file: &Path) -> Result<(), String> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = file.display();
    let shown = folder.display();
    match fs::metadata(folder) {
        Ok(found) if !found.is_dir() => Err(format!("{file} cannot be created: {shown} is not a folder")),
        Ok(_) => access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| {
            format!("{file} cannot be created: the folder {shown} cannot be written: {error}")
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(format!("{file} cannot be created: there is no folder {shown}"))
        }
        Err(error) => Err(format!("{file} cannot be created: {error}")),
    }
}
