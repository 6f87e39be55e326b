//! The configuration file: one YAML document, every key optional, unknown keys are errors.
//!
//! Reading collects all problems at once. Settings that this version does not support are rejected by name, never
//! ignored.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tollgate::internal::document::{self, MapReader, Problem, Problems};
use tollgate::internal::engine::{EngineSetup, LogKeys, MemorySettings};
use tollgate::internal::headers::HeaderStyle;
use tollgate::internal::identity::address::TrustedProxies;
use tollgate::internal::identity::forwarded::ForwardingHeader;
use tollgate::internal::identity::{Attribute, FieldSource, Key};
use tollgate::internal::policy::{LayerSettings, PolicyParts, PolicySnapshot, Settings};
use tollgate::internal::rule::{OnExceed, Rule};
use tollgate::internal::store::memory::MemoryFull;

use crate::decision_log::DecisionLogConfig;
use crate::envoy::{Compat, EnvoySettings};
use crate::log::LogSettings;
use crate::metrics::CompatNames;
use crate::tokens;

mod decision_log;
mod fleet;
mod listen;
mod log;
pub mod memory;
mod metrics;
mod otlp;
mod proxy;
mod queue;
mod rules_db;
mod state;
mod store;
mod tls;

pub use fleet::FleetConfig;
pub use listen::{Listen, ListenAddress};
pub use otlp::OtlpConfig;
pub use proxy::{
    Balance, HealthCheck, HostHeader, ProxyConfig, Timeouts, UpstreamAddress, UpstreamProtocol, UpstreamTls,
};
pub use queue::{QueueConfig, QueueLocation};
pub use rules_db::{AuditConfig, OnRulesError, RulesDbConfig};
pub use store::{StoreConfig, StoreKeys};
pub use tls::{ConnectionStarts, LISTENERS, ListenerTlsFiles};

/// A larger file is rejected without being read.
const MAX_FILE_BYTES: u64 = 256 << 20;

pub struct Config {
    pub listen: Listen,
    /// TLS and PROXY headers of the listeners.
    pub starts: ConnectionStarts,
    pub memory_bytes: usize,
    /// What happens to new keys when the memory is full.
    pub memory_full: MemoryFull,
    /// The folder of the saved state.
    pub state_dir: PathBuf,
    /// How often the state is saved; `None` if at a clean stop only.
    pub state_every: Option<Duration>,
    pub headers: HeaderStyle,
    pub log_keys: LogKeys,
    pub log: LogSettings,
    /// `None` if it is off.
    pub decision_log: Option<DecisionLogConfig>,
    /// Other rate limiters whose names the metrics have, too.
    pub compat_names: Vec<CompatNames>,
    /// Where traces and metrics are sent, if anywhere.
    pub otlp: Option<OtlpConfig>,
    pub jwt_keys_file: Option<PathBuf>,
    pub tokens_file: Option<PathBuf>,
    /// The file of the secret that signs receipts, if nodes share one.
    pub receipt_key_file: Option<PathBuf>,
    /// Load balancers and proxies in front: one address, many clients.
    pub trusted: TrustedProxies,
    /// The header in which they name the client's address.
    pub trusted_header: ForwardingHeader,
    /// Set if upstreams are configured.
    pub proxy: Option<ProxyConfig>,
    /// The request queue, if configured or needed by a rule.
    pub queue: Option<QueueConfig>,
    /// The central store, if counters are not in memory.
    pub store: Option<StoreConfig>,
    pub rules_db: Option<RulesDbConfig>,
    pub fleet: FleetConfig,
    /// The allow list, which the policy has, too.
    pub allow: Vec<Key>,
    pub policy: PolicyParts,
    pub envoy: EnvoySettings,
    /// The settings of the policy, which the policy has, too.
    pub settings: Settings,
    /// Settings that are valid but have no effect, because another one is missing.
    pub without_effect: Vec<IdleSetting>,
}

/// A setting that has no effect without another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IdleSetting {
    pub name: String,
    pub lacks: String,
}

impl IdleSetting {
    fn new(name: impl Into<String>, lacks: impl Into<String>) -> IdleSetting {
        IdleSetting { name: name.into(), lacks: lacks.into() }
    }
}

impl fmt::Display for IdleSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has no effect without {}", self.name, self.lacks)
    }
}

impl Config {
    /// Reads a file, or stdin for `-`. Relative paths in it are relative to its folder.
    pub fn load(path: &Path) -> Result<(Config, String), Problems> {
        let text = if is_stdin(path) { read_stdin()? } else { read_file(path)? };
        let folder = path.parent().unwrap_or(Path::new(""));
        let config = Config::parse(&text, folder).map_err(|problems| problems.in_file(&shown_file(path)))?;
        Ok((config, text))
    }

    pub fn parse(text: &str, folder: &Path) -> Result<Config, Problems> {
        let mut root = document::read(text)?;
        // Only here: rules of the admin API and of a database must not read the environment.
        let unset = document::expand_variables(&mut root, environment);
        let mut problems = unset.clone();
        let empty = document::read("{}").unwrap_or_else(|_| unreachable!("an empty map is YAML"));
        let root = if root.is_null() { &empty } else { &root };
        let config = MapReader::new(root, "", &mut problems).map(|mut map| {
            let config = read(&mut map, folder);
            map.finish();
            config
        });
        problems.remove_consequences_of(&unset);
        match config {
            Some(config) => problems.or(config),
            None => Err(problems),
        }
    }

    /// The policy of the file.
    pub fn take_policy(&mut self) -> Result<PolicySnapshot, Problems> {
        let mut refusals =
            self.policy.rules.iter().filter_map(|rule| memory::unsupported_reason(self.memory_bytes, rule));
        if let Some(why) = refusals.next().filter(|_| self.store.is_none()) {
            return Err(Problem::new(None, "memory", why).into());
        }
        PolicySnapshot::new(std::mem::take(&mut self.policy))
            .map_err(|error| Problem::new(None, "rules", error).into())
    }
}

/// A variable of the environment, for `${NAME}` in the file.
pub fn environment(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|_| format!("the variable {name} is not set"))
}

/// Whether `-` is given in place of a file.
pub fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// The name of a file in messages.
pub fn shown_file(path: &Path) -> String {
    if is_stdin(path) { "stdin".to_owned() } else { path.display().to_string() }
}

fn read_stdin() -> Result<String, Problems> {
    let problem = |message: String| Problems::from(Problem::new(None, "", message)).in_file("stdin");
    let mut bytes = Vec::new();
    let read = io::stdin().lock().take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| problem(format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(problem(format!("is larger than {MAX_FILE_BYTES} bytes")));
    }
    utf8(bytes, "stdin")
}

fn read_file(path: &Path) -> Result<String, Problems> {
    let problem = |message: String| {
        Problems::from(Problem::new(None, "", message)).in_file(&path.display().to_string())
    };
    let length = fs::metadata(path).map_err(|error| problem(unreadable(&error)))?.len();
    if length > MAX_FILE_BYTES {
        return Err(problem(format!("is larger than {MAX_FILE_BYTES} bytes")));
    }
    let bytes = fs::read(path).map_err(|error| problem(unreadable(&error)))?;
    utf8(bytes, &path.display().to_string())
}

fn unreadable(error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => "; `tollgate init` writes a first one, -c names another",
        _ => "",
    };
    format!("cannot be read: {error}{hint}")
}

/// Decodes the bytes of a file; an error names the line.
pub fn utf8(bytes: Vec<u8>, file: &str) -> Result<String, Problems> {
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        Problems::from(Problem::new(None, "", format!("is not UTF-8 text: see line {line}"))).in_file(file)
    })
}

const LOG_KEYS: [(&str, LogKeys); 2] = [("redacted", LogKeys::Redacted), ("plain", LogKeys::Plain)];
const COMPAT: [(&str, Compat); 2] = [("tollgate", Compat::Tollgate), ("envoy", Compat::Envoy)];
fn read(map: &mut MapReader<'_, '_>, folder: &Path) -> Config {
    let mut policy = PolicyParts::default();
    policy.read(map);
    policy.settings = Settings::read(map);
    let layer = LayerSettings::read(map);
    let proxy = ProxyConfig::read(map, folder);
    let starts = ConnectionStarts::read(map, folder, proxy.tls.clone());
    let proxy = Some(proxy).filter(|proxy| !proxy.upstreams.is_empty());
    let mut idle = Vec::new();
    let store = StoreConfig::read(map, &layer, folder, &policy.rules, &mut idle);
    idle.extend(ineffective_in_rules(&policy.rules, proxy.as_ref(), store.as_ref()));
    let state_dir = folder.join(map.optional_text("state_dir").unwrap_or(""));
    let queue = QueueConfig::read(map, &state_dir, store.as_ref());
    let rules_db = RulesDbConfig::read(map, folder, &state_dir);
    // A configured queue exists even if no rule of the file uses it: rules of the database may.
    let wants_queue = policy.rules.iter().any(|rule| rule.on_exceed == OnExceed::Queue);
    let queues = proxy.is_some() && (wants_queue || map.optional("queue").is_some());
    let memory = MemorySettings::read(map);
    let config = Config {
        listen: Listen::read(map, folder, proxy.as_ref(), &mut idle),
        starts,
        memory_bytes: memory.bytes.unwrap_or(EngineSetup::DEFAULT_MEMORY_BYTES),
        memory_full: memory.full.unwrap_or_default(),
        state_dir,
        state_every: state::read_every(map),
        headers: layer.headers.unwrap_or_default(),
        log_keys: map.optional_choice("log_keys", &LOG_KEYS).unwrap_or_default(),
        log: log::read(map),
        decision_log: decision_log::read(map, folder),
        compat_names: metrics::read_compat(map),
        otlp: OtlpConfig::read(map),
        jwt_keys_file: jwt(map).map(|file| folder.join(file)),
        tokens_file: map.optional_text("tokens_file").map(|file| folder.join(file)),
        receipt_key_file: map.optional_text("receipt_key_file").map(|file| folder.join(file)),
        trusted: layer.trusted.unwrap_or_default(),
        trusted_header: layer.trusted_header.unwrap_or_default(),
        proxy,
        queue: Some(queue).filter(|_| queues),
        store,
        rules_db,
        fleet: FleetConfig::read(map, folder),
        allow: policy.allow.clone(),
        envoy: envoy(map, folder),
        settings: policy.settings.clone(),
        policy,
        without_effect: Vec::new(),
    };
    reject_claims_without_keys(map, &config);
    for name in tls::LISTENERS.iter().filter(|name| config.listen.address(name).is_none()) {
        if config.starts.tls(name).is_some() {
            idle.push(IdleSetting::new(format!("tls.{name}"), format!("listen.{name}")));
        }
    }
    if config.fleet.advertise.is_some() {
        let lacking =
            [("listen.admin", config.listen.admin.is_none()), ("rules_db", config.rules_db.is_none())];
        let lacking = lacking.iter().find(|(_, is_lacking)| *is_lacking);
        idle.extend(lacking.map(|(name, _)| IdleSetting::new("advertise", *name)));
    }
    if let Some(admin) = config.listen.admin.as_ref().filter(|admin| !admin.is_local())
        && config.tokens_file.is_none()
        && std::env::var_os(tokens::TOKENS_ENV).is_none()
        && let Some(node) = map.optional("listen")
    {
        let message = format!(
            "{admin} can be reached from outside: set tokens_file or TOLLGATE_TOKENS, or listen on 127.0.0.1"
        );
        map.reject("listen.admin", node, message);
    }
    Config { without_effect: idle, ..config }
}

fn jwt(map: &mut MapReader<'_, '_>) -> Option<String> {
    let mut map = map.optional_map("jwt")?;
    let file = map.required_text("keys_file").map(str::to_owned);
    map.finish();
    file
}

/// Without keys no token is verified, so that a claim is never present.
fn reject_claims_without_keys(map: &mut MapReader<'_, '_>, config: &Config) {
    let is_claim = |attribute: &Attribute| matches!(attribute, Attribute::Field(FieldSource::Jwt, _));
    if config.jwt_keys_file.is_some() {
        return;
    }
    let keys = "is never present without keys that verify tokens: set jwt: { keys_file: keys.json }";
    let identity = config.policy.settings.identity.iter().find(|(_, source)| is_claim(source));
    if let (Some((name, source)), Some(node)) = (identity, map.optional("identity")) {
        map.reject("identity", node, format!("{source} (for {name}) {keys}"));
    }
    let in_rule =
        |rule: &Rule| rule.attributes().find(|own| is_claim(own)).map(|own| (rule.id.clone(), own.clone()));
    let first = config.policy.rules.iter().find_map(in_rule);
    if let (Some((rule, claim)), Some(node)) = (first, map.optional("rules")) {
        map.reject("rules", node, format!("{claim} of rule {rule} {keys}"));
    }
}

/// Settings of rules that only the proxy or a central store applies: each named once, with its first rule.
fn ineffective_in_rules(
    rules: &[Rule],
    proxy: Option<&ProxyConfig>,
    store: Option<&StoreConfig>,
) -> Vec<IdleSetting> {
    type Has = fn(&Rule) -> bool;
    fn from_body(attribute: &Attribute) -> bool {
        matches!(attribute, Attribute::Field(FieldSource::Json | FieldSource::Form, _))
    }
    let kinds: [(&str, Has); 3] = [
        ("on_store_error", |rule| rule.on_store_error.is_some()),
        ("on_exceed: queue", |rule| rule.on_exceed == OnExceed::Queue),
        ("a key of json: or form:", |rule| rule.key.iter().any(from_body)),
    ];
    let idle =
        kinds.iter().enumerate().filter(|(n, _)| if *n == 0 { store.is_none() } else { proxy.is_none() });
    let first = |has: &Has| rules.iter().find(|rule| has(rule));
    idle.filter_map(|(n, (name, has))| {
        let lacks = if n == 0 { "counters on a server" } else { "upstreams" };
        Some(IdleSetting::new(format!("{name} (rule {})", first(has)?.id), lacks))
    })
    .collect()
}

fn envoy(map: &mut MapReader<'_, '_>, folder: &Path) -> EnvoySettings {
    EnvoySettings {
        folder: map.optional_text("envoy_config").map(|name| folder.join(name)),
        compat: map.optional_choice("compat", &COMPAT).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use tollgate::internal::SETTINGS_OF_THE_SERVER;

    use super::*;

    #[test]
    fn an_embedded_engine_knows_the_same_settings() {
        let empty = document::read("{}").expect("valid YAML");
        let mut problems = Problems::new();
        let mut map = MapReader::new(&empty, "", &mut problems).expect("a map");
        read(&mut map, Path::new("/"));
        for name in map.known() {
            if let Err(error) = tollgate::Policy::from_yaml(&format!("{name}: null")) {
                panic!("{error}");
            }
        }
        for name in SETTINGS_OF_THE_SERVER {
            assert!(map.known().contains(&name), "the server has no setting {name}");
        }
    }
}
