//! The server's configuration file, as an embedded engine reads it.
//!
//! Settings that decide requests are read, those of listeners, upstreams and the like have no effect here. A setting
//! that would make the server decide differently from an embedded engine is rejected, as is an unknown one.

use crate::document::{self, MapReader, Problem, Problems};
use crate::engine::MemorySettings;
use crate::policy::{PolicyParts, PolicySnapshot, Settings};

/// Settings of the server's listeners, stores and logs. A test of the server compares both lists of settings.
pub const SETTINGS_OF_THE_SERVER: [&str; 29] = [
    "advertise",
    "audit",
    "compat",
    "decision_log",
    "envoy_config",
    "fleet",
    "headers",
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
    "store_deadline",
    "store_keys",
    "store_secret_file",
    "strip_headers",
    "tls",
    "tokens_file",
    "trusted_header",
    "trusted_proxies",
    "upstreams",
];

pub(super) struct ConfigFile {
    pub(super) policy: PolicySnapshot,
    pub(super) memory: MemorySettings,
}

impl ConfigFile {
    pub(super) fn parse(text: &str) -> Result<ConfigFile, Problems> {
        let root = document::read(text)?;
        let mut problems = Problems::new();
        let mut parts = PolicyParts::default();
        let mut memory = MemorySettings::default();
        if !root.is_null()
            && let Some(mut map) = MapReader::new(&root, "", &mut problems)
        {
            parts.read(&mut map);
            parts.settings = Settings::read(&mut map);
            memory = MemorySettings::read(&mut map);
            reject_other_sources(&mut map);
            for name in SETTINGS_OF_THE_SERVER {
                map.optional(name);
            }
            map.finish();
        }
        problems.or(())?;
        let policy = PolicySnapshot::new(parts);
        let policy = policy.map_err(|error| Problems::from(Problem::new(None, "rules", error)))?;
        Ok(ConfigFile { policy, memory })
    }
}

/// Counters and rules that an embedded engine does not have.
fn reject_other_sources(map: &mut MapReader<'_, '_>) {
    if let Some(node) = map.optional("counters").filter(|node| node.as_str() != Some("memory")) {
        let message = "an embedded engine counts in memory: use the server to share counters, or remove this";
        map.reject("counters", node, message);
    }
    if let Some(node) = map.optional("rules_db") {
        map.reject("rules_db", node, "an embedded engine reads no database: pass it the rules as text");
    }
}
