//! Rate limit requests of Envoy, whatever the protocol: what they ask, and how they are decided.
//!
//! The rules in force are asked about every descriptor. Limits beside them, which requests bring along, are policies of
//! their own over the same counters.

use tollgate::internal::document::{self, MapReader, Problem, Problems};
use tollgate::internal::policy::{PolicyParts, PolicySnapshot, Settings};

mod answer;
mod decide;
mod hit;
mod overrides;
mod request;

pub use answer::{DescriptorStatus, RateLimitAnswer};
pub use decide::decide;
use overrides::LimitOverrides;
pub use request::{Descriptor, Entry, LimitOverride, LimitUnit, RateLimitRequest, RequestError};

/// The limits of Envoy's requests beside the rules in force.
pub struct EnvoyLimits {
    overrides: LimitOverrides,
}

impl EnvoyLimits {
    pub fn new(settings: Settings) -> EnvoyLimits {
        EnvoyLimits { overrides: LimitOverrides::new(settings) }
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
