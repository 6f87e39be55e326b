//! Settings of the central store, and what happens when it does not answer.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tollgate::internal::document::MapReader;
use tollgate::internal::policy::{KeyVisibility, LayerSettings};
use tollgate::internal::rule::Rule;
use tollgate::internal::store::DeniedHits;
use tollgate_stores::counters::central::CentralAddress;

use crate::config::IdleSetting;

/// A store on servers, shared by several nodes.
#[derive(Clone)]
pub struct StoreConfig {
    pub address: CentralAddress,
    /// The URL as written, to detect a change; it may contain a password.
    url: String,
    /// The URL without credentials and options, for logs.
    pub name: String,
    /// For all calls of one decision together.
    pub deadline: Duration,
    pub keys: StoreKeys,
    /// The number of nodes that share the store, if it is stated.
    pub nodes: Option<u64>,
}

/// How identities appear in the store.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreKeys {
    pub visibility: KeyVisibility,
    /// The key of the hash, which all nodes share. Without it identities are hashed, but can be guessed.
    pub secret_file: Option<PathBuf>,
}

impl StoreKeys {
    /// Whether identities are hashed without a secret, so that a guess can be confirmed.
    pub fn can_be_guessed(&self) -> bool {
        self.visibility != KeyVisibility::All && self.secret_file.is_none()
    }

    /// The value of `store_keys` in the file.
    pub fn name(&self) -> &'static str {
        self.visibility.name()
    }
}

impl PartialEq for StoreConfig {
    fn eq(&self, other: &StoreConfig) -> bool {
        (&self.url, self.deadline, &self.keys) == (&other.url, other.deadline, &other.keys)
    }
}

impl Eq for StoreConfig {}

impl StoreConfig {
    /// The settings, by name, and whether they differ.
    pub fn differences(&self, other: &StoreConfig) -> [(&'static str, bool); 4] {
        [
            ("counters", self.url != other.url),
            ("store_deadline", self.deadline != other.deadline),
            ("store_keys", self.keys.visibility != other.keys.visibility),
            ("store_secret_file", self.keys.secret_file != other.keys.secret_file),
        ]
    }

    /// `None` if counters are in memory: settings of central stores have no effect then.
    pub fn read(
        map: &mut MapReader<'_, '_>,
        layer: &LayerSettings,
        folder: &Path,
        rules: &[Rule],
        idle: &mut Vec<IdleSetting>,
    ) -> Option<StoreConfig> {
        let visibility = layer.store_keys.unwrap_or_default();
        let secret_file = layer.store_secret_file.as_ref().map(|file| folder.join(file));
        let node = map.optional("counters");
        let Some(node) = node.filter(|node| node.as_str() != Some("memory")) else {
            let settings = [
                "on_store_error",
                "store_keys",
                "store_secret_file",
                "deny_cache",
                "store_deadline",
                "nodes",
            ];
            let found = settings.iter().filter(|name| map.optional(name).is_some());
            idle.extend(found.map(|name| IdleSetting::new(*name, "counters on a server")));
            return None;
        };
        let text = node.as_str().unwrap_or_default();
        let address: CentralAddress =
            text.parse().map_err(|error| map.reject("counters", node, format!("{error}"))).ok()?;
        let refusals = rules.iter().filter_map(|rule| unsupported_reason(&address, rule));
        refusals.for_each(|why| map.reject("counters", node, why));
        if visibility == KeyVisibility::All && secret_file.is_some() {
            idle.push(IdleSetting::new("store_secret_file", "store_keys: sensitive or hashed"));
        }
        let keys = StoreKeys { visibility, secret_file };
        let deadline = layer.store_deadline.unwrap_or_else(|| address.default_deadline());
        let nodes = map.optional("nodes").and_then(|nodes| nodes.as_u64());
        let written = text.to_owned();
        let name = without_login(text);
        Some(StoreConfig { address, url: written, name, deadline, keys, nodes })
    }

    /// Why the store cannot hold a rule's counters.
    pub fn unsupported_reason(&self, rule: &Rule) -> Option<String> {
        unsupported_reason(&self.address, rule)
    }
}

/// Which limit of a rule the store cannot hold, and why.
fn unsupported_reason(address: &CentralAddress, rule: &Rule) -> Option<String> {
    let denied = if rule.count_denied { DeniedHits::Counted } else { DeniedHits::Free };
    rule.all_limits().find_map(|each| {
        let why = address.check(&each.limit, denied).err()?;
        Some(format!("limit {} of rule {}: {why}", each.limit, rule.id))
    })
}

/// The part of a URL that may be shown: scheme and servers.
pub(super) fn without_login(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, servers)| servers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_shown() {
        assert_eq!(without_login("redis://u:p%40@host:1/0?x=y"), "redis://host:1/0");
        assert_eq!(without_login("memcached://a,b"), "memcached://a,b");
        assert_eq!(without_login("redis://u:p@a@host"), "redis://host");
    }
}
