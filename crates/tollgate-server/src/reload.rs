//! Reloads the configuration file within a second of a change.
//!
//! The file is polled: that works for files edited in place, renamed over and swapped by symlink alike. A change counts
//! once two polls in a row agree, so that a half-written file is not loaded, and an empty file never counts. Problems
//! are logged, and the rules in force stay.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::signal::unix::Signal;
use tokio::time::{MissedTickBehavior, interval};
use tollgate::internal::document::{Problem, Problems, TextPosition};
use tollgate::internal::engine::LogKeys;
use tollgate::internal::rule::{RuleId, RuleSetError};
use tollgate::internal::store::memory::MemoryFull;

use crate::assemble;
use crate::config::{
    Config, ConnectionStarts, FleetConfig, Listen, OtlpConfig, QueueConfig, RulesDbConfig, StoreConfig,
    is_stdin,
};
use crate::connection::{Shutdown, shutdown_requested};
use crate::envoy::EnvoyLimits;
use crate::gate::Gate;
use crate::tokens::Tokens;
use crate::transport::proxy::Proxy;
use crate::{log, notice};

mod secret_files;

pub use secret_files::SecretFiles;

const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// A file modified more recently may change again within the resolution of its timestamp.
const RECENT: Duration = Duration::from_secs(2);

pub struct WatchedConfig {
    pub path: PathBuf,
    /// The file's stamp before it was read at the start: later differences are changes.
    pub initial_stamp: Option<FileStamp>,
    /// The same for the file of tokens.
    pub initial_tokens: Option<FileStamp>,
    pub secrets: SecretFiles,
    /// The present values of settings that only a restart can change.
    pub startup: StartupSettings,
    pub proxy: Option<Arc<Proxy>>,
    /// The tokens in force; those of the environment never change.
    pub tokens: Option<Arc<Tokens>>,
}

/// Settings that a reload does not change.
#[derive(Clone, PartialEq, Eq)]
pub struct StartupSettings {
    pub listen: Listen,
    pub memory_bytes: usize,
    pub memory_full: MemoryFull,
    pub state_dir: PathBuf,
    pub state_every: Option<Duration>,
    pub tokens_file: Option<PathBuf>,
    pub receipt_key_file: Option<PathBuf>,
    pub log_keys: LogKeys,
    pub has_proxy: bool,
    pub starts: ConnectionStarts,
    pub queue: Option<QueueConfig>,
    pub store: Option<StoreConfig>,
    pub rules_db: Option<RulesDbConfig>,
    pub fleet: FleetConfig,
    pub otlp: Option<OtlpConfig>,
}

impl StartupSettings {
    pub fn of(config: &Config) -> StartupSettings {
        StartupSettings {
            listen: config.listen.clone(),
            memory_bytes: config.memory_bytes,
            memory_full: config.memory_full,
            state_dir: config.state_dir.clone(),
            state_every: config.state_every,
            tokens_file: config.tokens_file.clone(),
            receipt_key_file: config.receipt_key_file.clone(),
            log_keys: config.log_keys,
            has_proxy: config.proxy.is_some(),
            starts: config.starts.clone(),
            queue: config.queue.clone(),
            store: config.store.clone(),
            rules_db: config.rules_db.clone(),
            fleet: config.fleet.clone(),
            otlp: config.otlp.clone(),
        }
    }

    /// The names of the settings that differ, as in the file.
    fn changed_in(&self, new: &StartupSettings) -> Vec<&'static str> {
        let mut differs = vec![
            ("upstreams", self.has_proxy != new.has_proxy),
            ("proxy_protocol", self.starts.has_other_proxy_protocol(&new.starts)),
            ("queue", self.queue != new.queue),
            ("memory", self.memory_bytes != new.memory_bytes),
            ("memory_full", self.memory_full != new.memory_full),
            ("state_dir", self.state_dir != new.state_dir),
            ("state", self.state_every != new.state_every),
            ("tokens_file", self.tokens_file != new.tokens_file),
            ("receipt_key_file", self.receipt_key_file != new.receipt_key_file),
            ("log_keys", self.log_keys != new.log_keys),
            ("counters", self.store.is_some() != new.store.is_some()),
            ("rules_db", self.rules_db.is_some() != new.rules_db.is_some()),
            ("advertise", self.fleet.advertise != new.fleet.advertise),
            ("fleet.token_file", self.fleet.token_file != new.fleet.token_file),
            ("fleet.ca_file", self.fleet.ca_file != new.fleet.ca_file),
            ("otlp", self.otlp != new.otlp),
        ];
        differs.extend(self.listen.differences(&new.listen));
        differs.extend(self.starts.tls_differences(&new.starts));
        if let (Some(old), Some(new)) = (&self.store, &new.store) {
            differs.extend(old.differences(new));
        }
        if let (Some(old), Some(new)) = (&self.rules_db, &new.rules_db) {
            differs.extend(old.differences(new));
        }
        differs.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }
}

/// The state of the file at one poll.
#[derive(Clone, PartialEq, Eq)]
pub struct FileStamp {
    device: u64,
    inode: u64,
    length: u64,
    /// The `ctime` of the file; unlike `mtime` it cannot be set.
    changed: Option<SystemTime>,
    /// The contents, where the timestamps alone are not sufficient.
    contents: Option<Vec<u8>>,
}

impl FileStamp {
    pub fn of(path: &Path) -> Option<FileStamp> {
        let seen = fs::metadata(path).ok()?;
        let changed = u64::try_from(seen.ctime()).ok().map(|at| UNIX_EPOCH + Duration::from_secs(at));
        let changed = changed.map(|at| at + Duration::from_nanos(seen.ctime_nsec().unsigned_abs()));
        let young = changed.is_none_or(|at| at.elapsed().map_or(true, |age| age < RECENT));
        let contents = if young { fs::read(path).ok() } else { None };
        Some(FileStamp { device: seen.dev(), inode: seen.ino(), length: seen.len(), changed, contents })
    }

    /// Whether nothing has changed since `earlier`, whose file may have been modified just before.
    pub fn is_unchanged_since(&self, earlier: &FileStamp) -> bool {
        let stamps = (self.device, self.inode, self.length, self.changed);
        let same_stamps = stamps == (earlier.device, earlier.inode, earlier.length, earlier.changed);
        same_stamps
            && (self.contents.is_none() || earlier.contents.is_none() || self.contents == earlier.contents)
    }
}

/// The configuration file, the file of tokens and the files of Envoy's folder at one poll.
#[derive(Clone, PartialEq, Eq)]
struct PolledFiles {
    file: FileStamp,
    tokens: Option<FileStamp>,
    folder: Vec<(PathBuf, Option<FileStamp>)>,
}

impl PolledFiles {
    /// `None` while the configuration file is missing.
    fn of(path: &Path, tokens: Option<&Path>, folder: Option<&Path>) -> Option<PolledFiles> {
        let file = FileStamp::of(path)?;
        let list = folder.and_then(|folder| fs::read_dir(folder).ok());
        let paths = list.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        let mut folder: Vec<_> = paths.map(|path| (path.clone(), FileStamp::of(&path))).collect();
        folder.sort_by(|one, other| one.0.cmp(&other.0));
        Some(PolledFiles { file, tokens: tokens.and_then(FileStamp::of), folder })
    }

    fn is_unchanged_since(&self, earlier: &PolledFiles) -> bool {
        let same_file = |now: &Option<FileStamp>, then: &Option<FileStamp>| match (now, then) {
            (Some(now), Some(then)) => now.is_unchanged_since(then),
            (now, then) => now.is_none() && then.is_none(),
        };
        let same = |((path, now), (known, then)): (&(PathBuf, _), &(PathBuf, _))| {
            path == known && same_file(now, then)
        };
        same_file(&self.tokens, &earlier.tokens)
            && self.file.is_unchanged_since(&earlier.file)
            && self.folder.len() == earlier.folder.len()
            && self.folder.iter().zip(&earlier.folder).all(same)
    }
}

/// Runs until the shutdown; SIGHUP reloads the file at once.
pub async fn watch(gate: Arc<Gate>, mut watched: WatchedConfig, mut hangup: Signal, mut shutdown: Shutdown) {
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut secrets = std::mem::take(&mut watched.secrets);
    let tokens_file = watched.startup.tokens_file.as_deref();
    let see = || PolledFiles::of(&watched.path, tokens_file, gate.live.load().envoy.folder());
    // The folder may have changed since it was read: the first poll compares it with what is in force.
    let initial = |file| PolledFiles { file, tokens: watched.initial_tokens.clone(), folder: Vec::new() };
    let mut in_force = watched.initial_stamp.clone().map(initial);
    let mut changing: Option<PolledFiles> = None;
    loop {
        tokio::select! {
            () = shutdown_requested(&mut shutdown) => return,
            _ = hangup.recv() => {
                in_force = see();
                apply(&gate, &watched);
            }
            _ = ticks.tick() => {
                for setting in secrets.changed() {
                    tracing::warn!("the contents of {setting} have changed: they change only with a restart");
                }
                let Some(seen) = see() else { continue }; // temporarily missing
                if in_force.as_ref().is_some_and(|known| seen.is_unchanged_since(known)) {
                    in_force = Some(seen);
                    changing = None;
                } else if changing.as_ref().is_some_and(|before| seen.is_unchanged_since(before)) {
                    in_force = Some(seen);
                    changing = None;
                    apply(&gate, &watched);
                } else {
                    changing = Some(seen);
                }
            }
        }
    }
}

fn apply(gate: &Gate, watched: &WatchedConfig) {
    let tokens = assemble::tokens(watched.startup.tokens_file.as_deref());
    let applied = tokens.and_then(|tokens| {
        let applied = try_apply(gate, watched)?;
        replace_tokens(watched, tokens.as_ref());
        Ok(applied)
    });
    match applied {
        Ok(Some((old, new))) => {
            gate.reloads.record_applied(gate.now());
            tracing::info!("rules generation {old} → {new}");
        }
        Ok(None) => {
            gate.reloads.record_unchanged(gate.now());
            tracing::info!("the configuration has not changed");
        }
        Err(problems) => {
            gate.reloads.record_rejected(problems.to_string());
            for problem in &problems {
                tracing::error!("{problem}");
            }
            tracing::error!("the configuration was rejected: the rules in force stay");
        }
    }
}

fn replace_tokens(watched: &WatchedConfig, new: Option<&Tokens>) {
    let (Some(in_force), Some(new)) = (&watched.tokens, new) else { return };
    let had_check = in_force.has_check();
    if in_force.replace(new) {
        tracing::info!("the tokens have changed");
        if had_check != new.has_check() {
            tracing::warn!(
                "whether the decision API requires a token of role check changes only with a restart"
            );
        }
    }
}

fn try_apply(gate: &Gate, watched: &WatchedConfig) -> Result<Option<(u64, u64)>, Problems> {
    if is_stdin(&watched.path) {
        tracing::warn!("the configuration came from stdin and cannot be read again: restart the server");
        return Ok(None);
    }
    let (mut config, text) = Config::load(&watched.path)?;
    if text.trim().is_empty() {
        let problem = Problem::new(
            None,
            "",
            "is empty, perhaps because it is being written: for no rules, write rules: []",
        );
        return Err(Problems::from(problem).in_file(&watched.path.display().to_string()));
    }
    let in_this_file = |problems: Problems| problems.in_file(&watched.path.display().to_string());
    let envoy = EnvoyLimits::load(config.envoy.clone(), &config.settings).map_err(in_this_file)?;
    let known = gate.live.load();
    if known.history.text() == text && config.jwt_keys_file.is_none() && known.envoy.is_same_as(&envoy) {
        return Ok(None);
    }
    let envoy = envoy.inherit(&known.envoy, gate.now());
    for setting in watched.startup.changed_in(&StartupSettings::of(&config)) {
        tracing::warn!("{setting} has changed in the file: it changes only with a restart");
    }
    config.memory_bytes = watched.startup.memory_bytes; // unchanged until the next start
    let policy =
        config.take_policy().map_err(|problems| problems.in_file(&watched.path.display().to_string()))?;
    let warnings = policy.warnings();
    let history = &gate.live.load().history;
    let history = if policy.has_same_list(&gate.engine.policy()) {
        history.with_text(text)
    } else {
        history.succeeded_by(text, gate.now())
    };
    let in_use = gate.live.load().decision_log.clone();
    let live = assemble::decision_log(&config, in_use.as_ref(), &gate.decision_log_counts)
        .map_err(Problems::from)
        .and_then(|log| assemble::live_settings(&config, history, log, envoy))
        .map_err(|problems| problems.in_file(&watched.path.display().to_string()))?;
    let in_file = |position: Option<TextPosition>, message: String| {
        Problems::from(Problem::new(position, "rules", message)).in_file(&watched.path.display().to_string())
    };
    let clash = |position: Option<TextPosition>, id: &RuleId| {
        in_file(position, format!("rule id '{id}' is also used by a rule in the rules database"))
    };
    let in_force = gate.engine.policy();
    let is_added = |id: &RuleId| in_force.rule(id.as_str()).is_some_and(|rule| rule.is_added());
    if let Some(rule) = policy.rules().iter().find(|rule| is_added(&rule.id)) {
        return Err(clash(live.history.position_of_rule(rule.id.as_str()), &rule.id));
    }
    if let (Some(proxy), Some(config)) = (&watched.proxy, config.proxy) {
        proxy.apply(config).map_err(|problems| problems.in_file(&watched.path.display().to_string()))?;
    }
    let is_log_changed = live.log != gate.live.load().log;
    let log_settings = live.log;
    let applied = gate.apply(policy, live).map_err(|error| match &error {
        RuleSetError::Duplicate(id) => clash(None, id),
        error => in_file(None, error.to_string()),
    });
    applied.map(|generations| {
        if is_log_changed {
            log::set(log_settings);
        }
        notice::log_warnings(warnings);
        Some(generations)
    })
}
