//! A rule set, read and valid.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::api::config_file::ConfigFile;
use crate::document::{Problem, Problems};
use crate::engine::MemorySettings;
use crate::policy::PolicySnapshot;

/// Rules, allow list, bans and the settings they share, as read from YAML or JSON.
pub struct Policy {
    pub(super) snapshot: PolicySnapshot,
    /// What the text says about memory; the builder's own settings come first.
    pub(super) memory: MemorySettings,
}

/// What is wrong with rules or with a limit: all of it, a line for each problem, with its position.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{problems}")]
pub struct RulesError {
    problems: Problems,
}

impl RulesError {
    /// A line for each problem.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        self.problems.iter().map(ToString::to_string)
    }

    /// A problem of a text without positions.
    pub(crate) fn of(message: impl fmt::Display) -> RulesError {
        RulesError::from(Problems::from(Problem::new(None, "", message)))
    }
}

impl From<Problems> for RulesError {
    fn from(problems: Problems) -> RulesError {
        RulesError { problems }
    }
}

impl Policy {
    /// Reads a configuration file of the server, YAML or JSON: rules, allow list, bans and every setting that decides
    /// requests. Those of listeners, upstreams and the like have no effect. Counters on other servers (`counters`) and
    /// rules in a database (`rules_db`) are rejected, because an embedded engine would decide differently.
    pub fn from_yaml(text: &str) -> Result<Policy, RulesError> {
        let ConfigFile { policy, memory } = ConfigFile::parse(text)?;
        Ok(Policy { snapshot: policy, memory })
    }

    /// What is valid but probably not intended, a line each.
    pub fn warnings(&self) -> Vec<String> {
        self.snapshot.warnings().into_lines()
    }
}

impl FromStr for Policy {
    type Err = RulesError;

    fn from_str(text: &str) -> Result<Policy, RulesError> {
        Policy::from_yaml(text)
    }
}

/// The snapshot that a policy becomes, for the crates of this project.
pub fn snapshot_of(policy: &Policy) -> &PolicySnapshot {
    &policy.snapshot
}
