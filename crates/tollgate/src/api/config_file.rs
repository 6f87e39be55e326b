//! The server's configuration file, as an embedded engine reads it.
//!
//! Settings that decide requests are read, with `${NAME}` replaced by the caller's variables; those of listeners,
//! upstreams and the like have no effect here. A setting that would make the server decide differently from an embedded
//! engine is rejected, as is an unknown one. What a layer follows is read for it ([`LayerSettings`]).

use crate::document::{self, MapReader, Problem, Problems};
use crate::engine::MemorySettings;
use crate::policy::{LayerSettings, PolicyParts, PolicySnapshot, Settings};

/// Settings of the server's listeners, stores and logs. A test of the server compares both lists of settings.
pub const SETTINGS_OF_THE_SERVER: [&str; 21] = [
    "advertise",
    "audit",
    "decision_log",
    "fleet",
    "jwt",
    "listen",
    "log",
    "log_keys",
    "metrics",
    "on_rules_error",
    "otlp",
    "proxy",
    "proxy_protocol",
    "queue",
    "receipt_key_file",
    "state",
    "state_dir",
    "strip_headers",
    "tls",
    "tokens_file",
    "upstreams",
];

pub(super) struct ConfigFile {
    pub(super) policy: PolicySnapshot,
    pub(super) memory: MemorySettings,
    pub(super) layer: LayerSettings,
}

impl ConfigFile {
    /// Reads a text; `lookup` knows its variables.
    pub(super) fn parse(
        text: &str,
        lookup: impl Fn(&str) -> Result<String, String>,
    ) -> Result<ConfigFile, Problems> {
        let mut root = document::read(text)?;
        let unset = document::expand_variables(&mut root, lookup);
        let mut problems = unset.clone();
        let mut parts = PolicyParts::default();
        let mut memory = MemorySettings::default();
        let mut layer = LayerSettings::default();
        if !root.is_null()
            && let Some(mut map) = MapReader::new(&root, "", &mut problems)
        {
            parts.read(&mut map);
            parts.settings = Settings::read(&mut map);
            memory = MemorySettings::read(&mut map);
            layer = LayerSettings::read(&mut map);
            reject_other_sources(&mut map);
            for name in SETTINGS_OF_THE_SERVER {
                map.optional(name);
            }
            map.finish();
        }
        problems.remove_consequences_of(&unset);
        problems.or(())?;
        let policy = PolicySnapshot::new(parts);
        let policy = policy.map_err(|error| Problems::from(Problem::new(None, "rules", error)))?;
        Ok(ConfigFile { policy, memory, layer })
    }
}

/// Counters, rules and decisions that an embedded engine does not have.
fn reject_other_sources(map: &mut MapReader<'_, '_>) {
    if let Some(node) = map.optional("counters").filter(|node| node.as_str() != Some("memory")) {
        let message = "an engine in a program counts in memory: remove this; to share counters, give the address to \
                       `store` of a tollgate-tower layer, or use the server";
        map.reject("counters", node, message);
    }
    if let Some(node) = map.optional("rules_db").filter(|node| node.as_str() != Some("none")) {
        map.reject("rules_db", node, "an embedded engine reads no database: pass it the rules as text");
    }
    let envoy = "an engine in a program has no listener of Envoy's rate limit service: remove this, or use the server";
    if let Some(node) = map.optional("envoy_config") {
        map.reject("envoy_config", node, envoy);
    }
    if let Some(node) = map.optional("compat").filter(|node| node.as_str() != Some("tollgate")) {
        map.reject("compat", node, envoy);
    }
}
