//! The configuration of envoyproxy/ratelimit: for fuzz targets and linearity tests.

use tollgate::internal::policy::Settings;

use super::config::{ConfigTexts, EnvoyConfig, native_rules};
use super::{Compat, Entry};

/// Reads a file and looks a descriptor up in it, entries by line as `key=value`; returns whether the file is valid.
pub fn configured(text: &str, domain: &str, descriptor: &str) -> bool {
    let texts = ConfigTexts::single(text);
    let Ok(config) = EnvoyConfig::new(texts.clone(), Compat::Tollgate, Settings::default()) else {
        return false;
    };
    let entries = descriptor.lines().filter_map(|line| line.split_once('='));
    let entries: Vec<_> =
        entries.map(|(key, value)| Entry { key: key.into(), value: value.into() }).collect();
    let found = config.limits(domain, [&entries[..]].into_iter());
    assert_eq!(found.len(), 1, "one answer for each descriptor");
    assert!(native_rules(&texts).is_ok(), "what can be read can be imported");
    true
}
