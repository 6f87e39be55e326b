//! A rule set, read and valid.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::api::config_file::ConfigFile;
use crate::document::{Problem, Problems};
use crate::engine::MemorySettings;
use crate::policy::{LayerSettings, PolicySnapshot};

/// Rules, allow list, bans and the settings they share, as read from YAML or JSON.
pub struct Policy {
    pub(super) snapshot: PolicySnapshot,
    /// What the text says about memory; the builder's own settings come first.
    pub(super) memory: MemorySettings,
    /// What the text says to a layer; an engine has no use for it.
    layer: LayerSettings,
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
    /// requests. Those of listeners, upstreams and the like have no effect. Rejected are settings by which an embedded
    /// engine would decide differently: counters on other servers (`counters`), rules in a database (`rules_db`), files
    /// of Envoy's rate limit service (`envoy_config`, `compat: envoy`), and variables: see
    /// [`with_variables`](Self::with_variables).
    pub fn from_yaml(text: &str) -> Result<Policy, RulesError> {
        Policy::parse(text, |name| {
            Err(format!(
                "the variable {name} is not known: pass variables by `Policy::with_variables`, or write $${{"
            ))
        })
    }

    /// As [`from_yaml`](Self::from_yaml), with `${NAME}` in values replaced by what `variable` returns for the name. The
    /// server reads its environment; do that only for a text that may read it.
    ///
    /// ```
    /// use tollgate::{Engine, Policy};
    ///
    /// let text = "rules: [{id: all, key: user, limit: '${CALLS}/m'}]";
    /// let policy = Policy::with_variables(text, |name| std::env::var(name).ok().or(Some("5".to_owned())))?;
    /// let engine = Engine::new(policy)?;
    /// # Ok::<(), tollgate::EngineError>(())
    /// ```
    pub fn with_variables(
        text: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Policy, RulesError> {
        Policy::parse(text, |name| variable(name).ok_or_else(|| format!("the variable {name} is not set")))
    }

    /// As [`from_yaml`](Self::from_yaml), with variables as they are: where the rules of the text alone matter.
    pub(super) fn without_variables(text: &str) -> Result<Policy, RulesError> {
        Policy::parse(text, |name| Ok(format!("${{{name}}}")))
    }

    fn parse(text: &str, variable: impl Fn(&str) -> Result<String, String>) -> Result<Policy, RulesError> {
        let ConfigFile { policy, memory, layer } = ConfigFile::parse(text, variable)?;
        Ok(Policy { snapshot: policy, memory, layer })
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

/// What the text of a policy says to a layer, for the crates of this project.
pub fn layer_settings_of(policy: &Policy) -> &LayerSettings {
    &policy.layer
}
