//! Settings of the configuration file that apply to all rules.

use crate::document::MapReader;
use crate::identity::Attribute;
use crate::rule::{OnStoreError, PathCase};

/// How identities are read from requests.
#[derive(Clone, Debug)]
pub struct Settings {
    /// IPv6 addresses that share this prefix are one client.
    pub ipv6_prefix: u8,
    /// The source of an identity that a hit does not have itself.
    pub identity: Vec<(Attribute, Attribute)>,
    /// Whether paths are case-sensitive.
    pub path_case: PathCase,
    pub store: StoreSettings,
}

/// Settings for counters in a central store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreSettings {
    /// The failure mode of rules that do not have their own.
    pub on_error: OnStoreError,
    /// The number of nodes that share the limits, for rules that fail to local.
    pub nodes: u64,
    /// Whether a key that was just denied is denied again without a call to the store.
    pub deny_cache: bool,
}

impl Default for StoreSettings {
    fn default() -> Self {
        StoreSettings { on_error: OnStoreError::Open, nodes: 1, deny_cache: true }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            ipv6_prefix: 64,
            identity: Vec::new(),
            path_case: PathCase::default(),
            store: StoreSettings::default(),
        }
    }
}

const IDENTITIES: [(&str, Attribute); 4] = [
    ("user", Attribute::User),
    ("email", Attribute::Email),
    ("mac", Attribute::Mac),
    ("api_key", Attribute::ApiKey),
];
const ON_STORE_ERROR: [(&str, OnStoreError); 3] =
    [("open", OnStoreError::Open), ("closed", OnStoreError::Closed), ("local", OnStoreError::Local)];

impl Settings {
    pub fn read(map: &mut MapReader<'_, '_>) -> Settings {
        let default = Settings::default();
        Settings {
            ipv6_prefix: ipv6_prefix(map).unwrap_or(default.ipv6_prefix),
            identity: identity(map),
            path_case: match map.optional_bool("case_insensitive_paths") {
                Some(true) => PathCase::Insensitive,
                _ => default.path_case,
            },
            store: StoreSettings::read(map),
        }
    }
}

impl StoreSettings {
    fn read(map: &mut MapReader<'_, '_>) -> StoreSettings {
        let default = StoreSettings::default();
        let nodes = map.optional("nodes").map(|node| (node, node.as_u64().filter(|nodes| *nodes > 0)));
        if let Some((node, None)) = nodes {
            map.reject("nodes", node, "expected the number of nodes that share the limits, at least 1");
        }
        StoreSettings {
            on_error: map.optional_choice("on_store_error", &ON_STORE_ERROR).unwrap_or(default.on_error),
            nodes: nodes.and_then(|(_, nodes)| nodes).unwrap_or(default.nodes),
            deny_cache: map.optional_bool("deny_cache").unwrap_or(default.deny_cache),
        }
    }
}

fn ipv6_prefix(map: &mut MapReader<'_, '_>) -> Option<u8> {
    let node = map.optional("ipv6_prefix")?;
    let bits = node.as_u64().and_then(|prefix| u8::try_from(prefix).ok());
    let prefix = bits.filter(|bits| (1..=128).contains(bits));
    if prefix.is_none() {
        map.reject("ipv6_prefix", node, "expected a number of bits from 1 to 128");
    }
    prefix
}

fn identity(map: &mut MapReader<'_, '_>) -> Vec<(Attribute, Attribute)> {
    let mut sources = Vec::new();
    let Some(mut map) = map.optional_map("identity") else { return sources };
    for (name, attribute) in IDENTITIES {
        let Some(node) = map.optional(name) else { continue };
        match node.as_str().ok_or("expected an attribute such as jwt:sub".to_owned()).and_then(Attribute::parse) {
            Ok(source @ Attribute::Field(..)) => sources.push((attribute, source)),
            Ok(source) => map.reject(name, node, format!("'{source}' is not a field of a request: use jwt:X, header:X, cookie:X, query:X, json:X or form:X")),
            Err(message) => map.reject(name, node, message),
        }
    }
    map.finish();
    sources
}
