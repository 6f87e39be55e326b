//! Rate limit requests of Envoy, whatever the protocol: their contents, and how they are decided.
//!
//! Every descriptor is checked by the rules in force. Limits beside them, of the configuration of envoyproxy/ratelimit
//! and those that requests bring along, are policies of their own over the same counters.

use std::path::{Path, PathBuf};

use tollgate::Time;
use tollgate::internal::document::{self, MapReader, Problem, Problems};
use tollgate::internal::policy::{PolicyParts, PolicySnapshot, Settings};

mod answer;
pub mod config;
mod decide;
#[cfg(test)]
mod decide_tests;
mod hit;
mod overrides;
mod request;
#[cfg(feature = "testing")]
pub mod testing;

pub use answer::{DescriptorStatus, RateLimitAnswer};
use config::{ConfigTexts, ConfiguredLimit, EnvoyConfig};
pub use decide::decide;
use overrides::LimitOverrides;
pub use request::{Descriptor, Entry, LimitOverride, LimitUnit, RateLimitRequest, RequestError};

/// How requests of Envoy are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compat {
    /// All descriptors or none; a denial counts nowhere.
    #[default]
    Tollgate,
    /// As envoyproxy/ratelimit: each descriptor by itself, denials included.
    Envoy,
}

/// The settings of Envoy's requests.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EnvoySettings {
    /// The folder with the configuration of envoyproxy/ratelimit, if there is one.
    pub folder: Option<PathBuf>,
    pub compat: Compat,
}

/// The limits of Envoy's requests beside the rules in force.
pub struct EnvoyLimits {
    settings: EnvoySettings,
    config: Option<EnvoyConfig>,
    overrides: LimitOverrides,
}

impl EnvoyLimits {
    /// Reads the configuration of envoyproxy/ratelimit, if there is one.
    pub fn load(settings: EnvoySettings, policy: &Settings) -> Result<EnvoyLimits, Problems> {
        let texts = settings.folder.as_deref().map(ConfigTexts::read).transpose()?;
        EnvoyLimits::of_texts(settings, texts, policy)
    }

    fn of_texts(
        settings: EnvoySettings,
        texts: Option<ConfigTexts>,
        policy: &Settings,
    ) -> Result<EnvoyLimits, Problems> {
        let compat = settings.compat;
        let config = texts.map(|texts| EnvoyConfig::new(texts, compat, policy.clone())).transpose()?;
        Ok(EnvoyLimits { settings, config, overrides: LimitOverrides::new(policy.clone(), compat) })
    }

    /// Takes over what counters of the limits that it replaces need.
    pub fn inherit(self, old: &EnvoyLimits, now: Time) -> EnvoyLimits {
        let config = match (self.config, &old.config) {
            (Some(config), Some(old)) => Some(config.inherit(old, now)),
            (config, _) => config,
        };
        EnvoyLimits { config, ..self }
    }

    /// Whether both were read from the same texts, with the same settings.
    pub fn is_same_as(&self, other: &EnvoyLimits) -> bool {
        let texts = |limits: &EnvoyLimits| limits.config.as_ref().map(|config| config.texts().clone());
        self.settings == other.settings && texts(self) == texts(other)
    }

    /// Whether limits that descriptors bring along are counted in a domain. envoyproxy/ratelimit ignores those of domains
    /// that its files do not have.
    fn has_overrides_in(&self, domain: &str) -> bool {
        let is_unknown = self.config.as_ref().is_some_and(|config| !config.has_domain(domain));
        !(is_unknown && self.settings.compat == Compat::Envoy)
    }

    /// The limits of the configuration as rules, if there is one.
    pub fn configured_policy(&self) -> Option<&PolicySnapshot> {
        self.config.as_ref().map(|config| &**config.policy())
    }

    /// All limits of the configuration, each with its domain and the entries of its descriptor.
    pub fn visit_limits<'l>(&'l self, visit: &mut impl FnMut(&str, &[(&str, &str)], &'l ConfiguredLimit)) {
        if let Some(config) = &self.config {
            config.visit_limits(visit);
        }
    }

    pub fn folder(&self) -> Option<&Path> {
        self.settings.folder.as_deref()
    }
}

/// A policy of rules only, with the settings of the one in force.
fn policy_of(rules: &str, settings: Settings) -> Result<PolicySnapshot, Problems> {
    let root = document::read(rules)?;
    let mut problems = Problems::new();
    let mut parts = PolicyParts { settings, ..PolicyParts::default() };
    if let Some(mut map) = MapReader::new(&root, "", &mut problems) {
        parts.read(&mut map);
        map.finish();
    }
    problems.or(())?;
    PolicySnapshot::new(parts).map_err(|error| Problem::new(None, "rules", error).into())
}
