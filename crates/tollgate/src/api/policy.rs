//! A rule set, read and valid.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::document::{Problem, Problems};
use crate::policy::PolicySnapshot;

/// Rules, allow list and bans, as read from YAML or JSON.
pub struct Policy {
    snapshot: PolicySnapshot,
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
    /// Reads `rules`, `allow` and `bans` from YAML or JSON.
    pub fn from_yaml(text: &str) -> Result<Policy, RulesError> {
        Ok(Policy { snapshot: PolicySnapshot::from_yaml(text)? })
    }

    /// What is valid but probably not intended, a line each.
    pub fn warnings(&self) -> Vec<String> {
        self.snapshot.warnings().into_lines()
    }

    pub(super) fn into_snapshot(self) -> PolicySnapshot {
        self.snapshot
    }
}

impl FromStr for Policy {
    type Err = RulesError;

    fn from_str(text: &str) -> Result<Policy, RulesError> {
        Policy::from_yaml(text)
    }
}
