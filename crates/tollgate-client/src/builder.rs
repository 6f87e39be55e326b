//! Settings of a throttle.

use std::time::Duration;

use thiserror::Error;
use tollgate::internal::document::Problems;

use crate::budget::{BudgetSpec, CallBudget};
use crate::key_table::KeyTable;
use crate::learned::{FirstCall, LearnSettings};
use crate::throttle::{FOREVER, Throttle};

/// The longest wait that a server can cause, unless it is set.
pub const DEFAULT_MAX_SERVER_WAIT: Duration = Duration::from_secs(3600);

/// Why a throttle cannot be made.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A limit or an option of it is not valid.
    #[error("{0}")]
    Limit(String),
    /// A setting of the budget without a limit: it would have no effect.
    #[error("{setting} has no effect without a limit: set one")]
    NoLimit {
        /// The setting.
        setting: &'static str,
    },
    /// The system does not grant the memory for the counters.
    #[error("the counters cannot be stored: {0}")]
    Memory(String),
    /// The address of the store is not valid, or the store cannot hold the limits.
    #[error("{0}")]
    Store(String),
}

impl BuildError {
    pub(crate) fn from_problems(problems: &Problems) -> BuildError {
        // The positions refer to a rule that the caller has not written.
        let one = |path: &str, message: &str| {
            let path = path.trim_start_matches("rules[0]").trim_start_matches('.');
            if path.is_empty() { message.to_owned() } else { format!("{path}: {message}") }
        };
        let all: Vec<String> =
            problems.into_iter().map(|problem| one(problem.path(), problem.message())).collect();
        BuildError::Limit(all.join("; "))
    }
}

/// Settings of a [`Throttle`].
#[derive(Clone, Debug)]
pub struct ThrottleBuilder {
    budget: BudgetSpec,
    learns: bool,
    max_wait: Option<Duration>,
    max_server_wait: Duration,
    #[cfg(feature = "redis")]
    store: Option<String>,
    #[cfg(feature = "redis")]
    store_deadline: Option<Duration>,
}

impl Default for ThrottleBuilder {
    fn default() -> Self {
        ThrottleBuilder {
            budget: BudgetSpec::default(),
            learns: true,
            max_wait: None,
            max_server_wait: DEFAULT_MAX_SERVER_WAIT,
            #[cfg(feature = "redis")]
            store: None,
            #[cfg(feature = "redis")]
            store_deadline: None,
        }
    }
}

impl ThrottleBuilder {
    /// A limit for each key, such as `100/m`. If there are several, all of them apply.
    ///
    /// Unless a burst or an algorithm is set, the number is never exceeded in any window, wherever the server's windows
    /// begin.
    pub fn limit(mut self, rate: &str) -> Self {
        self.budget.limits.push(rate.to_owned());
        self
    }

    /// The calls that may be sent at once; further ones are spread evenly. For servers that have a burst of their own,
    /// such as nginx.
    pub fn burst(mut self, burst: u64) -> Self {
        self.budget.burst = Some(burst);
        self
    }

    /// The algorithm that the server uses, by the name that a rule of Tollgate has for it.
    pub fn algorithm(mut self, name: &str) -> Self {
        self.budget.algorithm = Some(name.to_owned());
        self
    }

    /// Options of the algorithm, as a rule has them: `refill: calendar`.
    pub fn options(mut self, yaml: &str) -> Self {
        self.budget.options = Some(yaml.to_owned());
        self
    }

    /// Fails a call that would wait longer. [`Duration::ZERO`] fails every call that would wait at all; unless it is set,
    /// calls wait as long as it takes.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// The longest wait that the headers of one response can cause; an hour unless it is set.
    pub fn max_server_wait(mut self, max_wait: Duration) -> Self {
        self.max_server_wait = max_wait;
        self
    }

    /// Ignores what servers say about their limits.
    pub fn ignore_server(mut self) -> Self {
        self.learns = false;
        self
    }

    /// Counts in a store that several processes share, such as `redis://127.0.0.1`. While it does not answer, each
    /// process counts for itself.
    ///
    /// [`build`](Self::build) must then be called inside a tokio runtime. What is shared is the budget, so it needs a
    /// limit; what is learned from servers is of each process.
    #[cfg(feature = "redis")]
    pub fn store(mut self, url: &str) -> Self {
        self.store = Some(url.to_owned());
        self
    }

    /// How long a call may wait for the store before it counts in the process.
    #[cfg(feature = "redis")]
    pub fn store_deadline(mut self, deadline: Duration) -> Self {
        self.store_deadline = Some(deadline);
        self
    }

    /// The throttle.
    pub fn build(self) -> Result<Throttle, BuildError> {
        let has_budget = !self.budget.limits.is_empty();
        if let Some(setting) = self.needs_limit().filter(|_| !has_budget) {
            return Err(BuildError::NoLimit { setting });
        }
        let budget = if has_budget { Some(self.budget()?) } else { None };
        let first_call = match has_budget || !self.learns {
            true => FirstCall::WithOthers,
            false => FirstCall::Alone,
        };
        let max_wait = self.max_server_wait.min(FOREVER);
        let spaced = budget.as_ref().and_then(CallBudget::spaced_rate);
        let keys = KeyTable::new(LearnSettings { first_call, max_wait, spaced });
        Ok(Throttle::with(budget, self.learns, self.max_wait.map(|wait| wait.min(FOREVER)), keys))
    }

    /// A setting that has no effect without a limit.
    fn needs_limit(&self) -> Option<&'static str> {
        #[cfg(feature = "redis")]
        if self.store.is_some() {
            return Some("store");
        }
        let BudgetSpec { burst, algorithm, options, limits: _ } = &self.budget;
        let settings =
            [("burst", burst.is_some()), ("algorithm", algorithm.is_some()), ("options", options.is_some())];
        settings.into_iter().find(|(_, is_set)| *is_set).map(|(name, _)| name)
    }

    fn budget(&self) -> Result<CallBudget, BuildError> {
        let budget = CallBudget::new(&self.budget)?;
        #[cfg(feature = "redis")]
        if let Some(url) = &self.store {
            return budget.in_store_at(url, self.store_deadline);
        }
        Ok(budget)
    }
}
