//! Builds a running gate from a configuration. Few other modules name concrete backends; `tests/tidy.rs` lists them.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tollgate::Clock;
use tollgate::internal::changes::Changes;
use tollgate::internal::document::{Problem, Problems};
use tollgate::internal::engine::EngineSetup;
use tollgate::internal::{EngineCore, shared_secret};
use tollgate_stores::counters::central::CentralStore;
use tollgate_stores::counters::name::{NameHash, Naming, read_secret};

use crate::client::{self, ClientError};
use crate::config::{Config, StoreConfig, StoreKeys};
use crate::config_history::ConfigHistory;
use crate::decision_log::{DecisionLog, DecisionLogCounts, FleetMarks, Sample};
use crate::envoy::EnvoyLimits;
use crate::fleet::Fleet;
use crate::gate::{CentralBackend, Gate, LiveSettings};
use crate::jwt::KeySet;
use crate::receipt::Receipts;
use crate::state::{self, FolderLock, StateFile};
use crate::tokens::{self, Tokens};
use crate::transport::proxy::Proxy;
use tollgate::internal::ticket::{KeyScope, Tickets};

/// A gate with the saved state of the last run.
pub fn gate(config: &mut Config, text: String, state: Option<&StateFile>) -> Result<Gate, Problems> {
    let policy = config.take_policy()?;
    let setup = EngineSetup {
        memory_bytes: config.memory_bytes,
        memory_full: config.memory_full,
        log_keys: config.log_keys,
        changes: if config.state_every.is_some() { Changes::Recorded } else { Changes::Ignored },
        ..EngineSetup::default()
    };
    check_memory(config)?;
    let counts = Arc::default();
    let envoy = EnvoyLimits::load(config.envoy.clone(), &config.settings)?;
    let log = decision_log(config, None, &counts)?;
    let live = live_settings(config, ConfigHistory::new(text), log, envoy)?;
    let fleet_secret = receipt_secret(config)?;
    let mut gate = match state.and_then(|state| restore(state, &live.history, setup.clone())) {
        Some((engine, history)) => Gate::new(engine, LiveSettings { history, ..live }),
        None => Gate::new(EngineCore::with_setup(policy, setup), live),
    };
    if let Some(secret) = fleet_secret {
        gate.receipts = Receipts::with_key(&secret);
        gate.tickets = Tickets::new(&secret, KeyScope::Fleet);
    }
    gate.decision_log_counts = counts;
    Ok(gate)
}

/// Whether the memory of the counters can be reserved.
pub fn check_memory(config: &Config) -> Result<(), Problems> {
    let bytes = config.memory_bytes;
    let setup = EngineSetup { memory_bytes: bytes, ..EngineSetup::default() };
    let problem = |error| Problem::new(None, "memory", format!("{bytes} bytes cannot be reserved: {error}"));
    setup.check_memory().map_err(|error| problem(error).into())
}

/// The secret by which all nodes accept each other's receipts and tickets, if they share one.
pub fn receipt_secret(config: &Config) -> Result<Option<Vec<u8>>, Problem> {
    let Some(path) = &config.receipt_key_file else { return Ok(None) };
    let problem = |why: String| Problem::new(None, "receipt_key_file", format!("{}: {why}", path.display()));
    let secret = fs::read(path).map_err(|error| problem(format!("cannot be read: {error}")))?;
    Ok(Some(shared_secret(&secret).map_err(problem)?.to_vec()))
}

/// How this node calls others. A token that cannot be read now is an error at the start, not at the first call.
pub fn fleet(config: &Config) -> Result<Fleet, Problems> {
    let problem = |setting: &str, why: String| Problems::from(Problem::new(None, setting, why));
    if let Some(file) = &config.fleet.token_file {
        client::file_authorization("fleet.token_file", file).map_err(|error| match error {
            ClientError::Token { place: _, why } => {
                problem("fleet.token_file", format!("{}: {why}", file.display()))
            }
            error => problem("fleet.token_file", error.to_string()),
        })?;
    }
    Fleet::new(config.fleet.clone()).map_err(|error| problem("fleet.ca_file", format!("{error:#}")))
}

/// The central store, which connects in the background. It must be called inside a runtime.
pub fn central(config: &StoreConfig) -> Result<CentralBackend, Problem> {
    let naming = naming(&config.keys)?;
    let store = CentralStore::open(config.address.clone(), naming.clone(), config.deadline);
    let store = store.map_err(|message| Problem::new(None, "counters", message))?;
    Ok(CentralBackend::new(store, naming, config.name.clone(), config.address.clone()))
}

/// Connects to the central store, and waits until it is usable.
pub async fn probe_central(config: &StoreConfig, within: Duration) -> Result<(), String> {
    let naming = naming(&config.keys).map_err(|problem| problem.to_string())?;
    let store = CentralStore::open(config.address.clone(), naming, config.deadline)?;
    store.ready(within).await.map_err(|error| error.to_string())
}

/// How counters are named in the store.
pub fn naming(keys: &StoreKeys) -> Result<Naming, Problem> {
    let hash = match &keys.secret_file {
        Some(path) => NameHash::keyed(&name_secret(path)?),
        None => NameHash::Unkeyed,
    };
    Ok(Naming::new(keys.visibility, hash))
}

fn name_secret(path: &Path) -> Result<Vec<u8>, Problem> {
    read_secret(path).map_err(|why| Problem::new(None, "store_secret_file", why))
}

/// The proxy, if the configuration names upstreams.
pub fn proxy(gate: &Arc<Gate>, config: &Config) -> Result<Option<Arc<Proxy>>, Problems> {
    let proxy = config.proxy.clone().map(|proxy| Proxy::new(Arc::clone(gate), proxy, config.queue.clone()));
    let proxy = proxy.transpose()?;
    Ok(proxy.map(Arc::new))
}

/// The settings of a configuration that change together with its policy.
pub fn live_settings(
    config: &Config,
    history: ConfigHistory,
    decision_log: Option<Arc<DecisionLog>>,
    envoy: EnvoyLimits,
) -> Result<LiveSettings, Problems> {
    let jwt = config.jwt_keys_file.as_deref().map(key_set).transpose();
    let jwt = jwt.map_err(|error| Problem::new(None, "jwt.keys_file", format!("{error:#}")))?;
    let allow = config.allow.clone();
    let trusted = config.trusted.clone();
    let trusted_header = config.trusted_header;
    Ok(LiveSettings {
        headers: config.headers,
        jwt,
        history,
        allow,
        trusted,
        trusted_header,
        envoy,
        decision_log,
        compat_names: config.compat_names.clone(),
        log: config.log,
    })
}

/// The decision log of a configuration: the one in use, if its settings are the same.
pub fn decision_log(
    config: &Config,
    in_use: Option<&Arc<DecisionLog>>,
    counts: &Arc<DecisionLogCounts>,
) -> Result<Option<Arc<DecisionLog>>, Problem> {
    let Some(wanted) = &config.decision_log else { return Ok(None) };
    if let Some(log) = in_use.filter(|log| log.config() == wanted) {
        return Ok(Some(Arc::clone(log)));
    }
    let marks = if wanted.sample == Sample::Denied { None } else { fleet_marks(config)? };
    let opened = DecisionLog::open(wanted.clone(), marks, counts);
    let log = opened.map_err(|error| {
        Problem::new(None, "decision_log.to", format!("{} cannot be written: {error}", wanted.to))
    })?;
    Ok(Some(Arc::new(log)))
}

/// How charges to counters that nodes share are marked, if the nodes share a secret, too.
fn fleet_marks(config: &Config) -> Result<Option<FleetMarks>, Problem> {
    let Some(store) = &config.store else { return Ok(None) };
    let secret = match &store.keys.secret_file {
        Some(path) => Some(name_secret(path)?),
        None => receipt_secret(config)?,
    };
    Ok(secret.map(|secret| FleetMarks::new(&secret)))
}

/// The state file, locked for this process.
pub fn state_file(config: &Config) -> Result<(StateFile, FolderLock), Problems> {
    let folder = state::folder(config);
    state::check_folder(config)?;
    let lock = FolderLock::take(folder).map_err(|error| Problem::new(None, "state_dir", error))?;
    Ok((StateFile::in_folder(folder), lock))
}

/// The tokens of the file and of the environment; `None` if there are none.
pub fn tokens(file: Option<&Path>) -> Result<Option<Tokens>, Problems> {
    let read = |path: &Path| {
        let text = fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
        Tokens::parse(&text).map_err(|message| anyhow::anyhow!("{}: {message}", path.display()))
    };
    let tokens = file.map(read).transpose();
    let tokens = tokens.map_err(|error| Problem::new(None, "tokens_file", format!("{error:#}")))?;
    let Some(text) = std::env::var_os(tokens::TOKENS_ENV) else { return Ok(tokens) };
    let text = text.to_str().ok_or("it is not UTF-8".to_owned());
    let more = text.and_then(Tokens::parse).map_err(|why| Problem::new(None, tokens::TOKENS_ENV, why))?;
    Ok(Some(tokens.unwrap_or_default().and(more)))
}

pub fn key_set(path: &Path) -> anyhow::Result<KeySet> {
    let text = fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    KeySet::from_json(&text).with_context(|| path.display().to_string())
}

/// The engine of the last stop or crash, with its history. An unusable file is logged and quarantined; it does not
/// prevent the start.
fn restore(
    state: &StateFile,
    now_in_force: &ConfigHistory,
    setup: EngineSetup,
) -> Option<(EngineCore, ConfigHistory)> {
    let snapshot = state.read()?;
    let policy = now_in_force.policy()?;
    let mut saved = None;
    let former = |text: &str| {
        saved = ConfigHistory::read(text);
        saved.as_ref()?.policy()
    };
    match EngineCore::restore(policy, setup, &snapshot, former, Clock::new().now()) {
        Ok((engine, restored)) => {
            let counters = restored.counters;
            let bans = restored.bans;
            let tracked_keys = restored.tracked_keys;
            tracing::info!(counters, bans, tracked_keys, "saved state restored");
            if restored.unused_bytes > 0 {
                let file = state.path().display();
                let bytes = restored.unused_bytes;
                tracing::warn!(%file, bytes, "the end of the saved state is incomplete or damaged and is not used");
            }
            state.ends_at(restored.end);
            let text = now_in_force.text().to_owned();
            let history = match saved {
                Some(saved) if saved.text() == text => saved,
                Some(saved) => saved.succeeded_by(text, restored.saved_at),
                None => now_in_force.clone(),
            };
            Some((engine, history))
        }
        Err(error) => {
            tracing::error!(file = %state.path().display(), %error, "the saved state is not used");
            state.quarantine();
            None
        }
    }
}
