//! The engine with a clock of its own.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use thiserror::Error;

use crate::api::{Policy, Receipt, RulesError, Verdict};
use crate::ban::{Ban, BanSource};
use crate::engine::{EngineCore, EngineSetup, MemorySettings};
use crate::hit::Hit;
use crate::identity::Key;
use crate::policy::PolicySnapshot;
use crate::store::memory::{MemoryFull, Usage};
use crate::time::Clock;

/// Decides hits by rules; counts in memory.
///
/// ```
/// use tollgate::{Engine, Hit};
///
/// let engine = Engine::from_yaml("rules: [{id: login, key: user, limit: 2/m}]")?;
/// let hit = Hit::on("POST", "example.com", "/login").user("ann");
/// assert!(engine.check(&hit).is_allowed());
/// # Ok::<(), tollgate::EngineError>(())
/// ```
///
/// It can be shared between threads: `check` takes no lock for a known key, unless the state of its algorithm is too large
/// for a slot (logs, compacted logs, tiered windows).
pub struct Engine {
    core: EngineCore,
    clock: Clock,
    memory_bytes: usize,
}

/// Settings of an [`Engine`], fixed for its lifetime. They take precedence over those of the policy's text.
#[derive(Debug, Default)]
pub struct EngineBuilder {
    memory: MemorySettings,
    clock: Clock,
}

/// Why an engine cannot be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The rules are not valid.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// The counters of a key at its limit would not fit the memory.
    #[non_exhaustive]
    #[error("{given} bytes of memory are too few: rule {rule} needs {needed} for {limit}")]
    Memory {
        /// What the engine may use.
        given: usize,
        /// What the rule needs at least.
        needed: usize,
        /// The rule's id.
        rule: String,
        /// The limit, as it is written.
        limit: String,
    },
    /// The system does not grant the memory, or the processor lacks an instruction.
    #[error("the counters cannot be stored: {0}")]
    System(#[from] io::Error),
    /// The saved state cannot be used. No part of it was restored.
    #[error("the saved state cannot be used: {0}")]
    SavedState(String),
}

/// Why a key cannot be banned, lifted or reset.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum KeyNameError {
    /// The text is not a key.
    #[error("{0}")]
    Key(String),
    /// There is no such rule, or it does not count by such a key.
    #[error("{0}")]
    Rule(String),
}

impl EngineBuilder {
    /// How much memory counters may take: a gibibyte by default. It is reserved, and committed as keys arrive.
    #[must_use]
    pub fn memory_bytes(mut self, bytes: usize) -> Self {
        self.memory.bytes = Some(bytes);
        self
    }

    /// What happens to new keys while memory is full.
    #[must_use]
    pub fn memory_full(mut self, full: MemoryFull) -> Self {
        self.memory.full = Some(full);
        self
    }

    /// The time to count by; [`Clock::manual`] is for tests.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The engine.
    pub fn build(self, policy: Policy) -> Result<Engine, EngineError> {
        let setup = self.setup(&policy)?;
        let memory_bytes = setup.memory_bytes;
        let core = EngineCore::try_with_setup(policy.snapshot, setup)?;
        Ok(Engine { core, clock: self.clock, memory_bytes })
    }

    /// An engine that continues from a [saved state](Engine::save). Time that has passed since counts as elapsed.
    pub fn restore(self, policy: Policy, saved: &[u8]) -> Result<Engine, EngineError> {
        let setup = self.setup(&policy)?;
        setup.check_memory()?;
        let memory_bytes = setup.memory_bytes;
        let former = |rules: &str| Policy::without_variables(rules).ok().map(|policy| policy.snapshot);
        let restored = EngineCore::restore(policy.snapshot, setup, saved, former, self.clock.now());
        let (core, _) = restored.map_err(|error| EngineError::SavedState(error.to_string()))?;
        Ok(Engine { core, clock: self.clock, memory_bytes })
    }

    /// Fails if a limit of the policy does not fit the memory.
    fn setup(&self, policy: &Policy) -> Result<EngineSetup, EngineError> {
        let default = EngineSetup::default();
        let setup = EngineSetup {
            memory_bytes: self.memory.bytes.or(policy.memory.bytes).unwrap_or(default.memory_bytes),
            memory_full: self.memory.full.or(policy.memory.full).unwrap_or(default.memory_full),
            ..default
        };
        check_limits(&policy.snapshot, setup.memory_bytes)?;
        Ok(setup)
    }
}

impl Engine {
    /// Settings other than the default ones.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// An engine with the default settings.
    pub fn new(policy: Policy) -> Result<Engine, EngineError> {
        Engine::builder().build(policy)
    }

    /// An engine that decides as a server with this configuration file: see [`Policy::from_yaml`].
    pub fn from_yaml(text: &str) -> Result<Engine, EngineError> {
        Engine::new(Policy::from_yaml(text)?)
    }

    /// Decides a hit, and charges it if it is admitted.
    pub fn check(&self, hit: &Hit<'_>) -> Verdict {
        Verdict::new(self.core.check(hit, self.clock.now()))
    }

    /// Decides a request of which only the user and the address are known.
    pub fn request_allowed(&self, user_id: &str, ip: IpAddr) -> Verdict {
        self.check(&Hit::by(user_id).ip(ip))
    }

    /// Decides hits in order; faster than one call for each.
    pub fn check_batch(&self, hits: &[Hit<'_>]) -> Vec<Verdict> {
        let verdicts = self.core.check_batch(hits, self.clock.now());
        verdicts.into_iter().map(Verdict::new).collect()
    }

    /// The verdict that [`check`](Self::check) would return; nothing is charged.
    pub fn peek(&self, hit: &Hit<'_>) -> Verdict {
        Verdict::new(self.core.peek(hit, self.clock.now()))
    }

    /// Gives back what a hit was charged, except what time has given back already.
    pub fn refund(&self, receipt: Receipt) {
        self.core.refund(receipt.inner, self.clock.now());
    }

    /// Corrects the cost of a hit: the difference is refunded or charged.
    pub fn settle(&self, receipt: Receipt, real_cost: u64) {
        self.core.settle(receipt.inner, real_cost, self.clock.now());
    }

    /// Replaces the rules. Keys keep what they have used under rules with the same id.
    /// Rules whose limits do not fit the memory are rejected, and those in force stay.
    pub fn apply(&self, policy: Policy) -> Result<(), EngineError> {
        check_limits(&policy.snapshot, self.memory_bytes)?;
        self.core.apply(policy.snapshot, self.clock.now());
        Ok(())
    }

    /// Bans a key such as `ip:203.0.113.9` for a time.
    pub fn ban(&self, key: &str, duration: Duration, reason: &str) -> Result<(), KeyNameError> {
        let now = self.clock.now();
        let ban =
            Ban { until: now + duration, reason: reason.to_owned(), source: BanSource::Manual, strikes: 0 };
        self.core.ban(parse_key(key)?, ban, now);
        Ok(())
    }

    /// Lifts the ban of a key; returns whether there was one.
    pub fn unban(&self, key: &str) -> Result<bool, KeyNameError> {
        Ok(self.core.unban(parse_key(key)?, self.clock.now()).is_some())
    }

    /// Removes what a key has used under a rule.
    pub fn reset(&self, rule: &str, key: &str) -> Result<(), KeyNameError> {
        let reset = self.core.reset_key(rule, parse_key(key)?, self.clock.now());
        reset.map(drop).map_err(|error| KeyNameError::Rule(error.to_string()))
    }

    /// Writes the whole state: counters, bans, tracked keys. `rules` is the text of the rules in force, so that keys keep
    /// what they used if the rules differ when the state is [restored](EngineBuilder::restore).
    pub fn save(&self, out: impl io::Write, rules: &str) -> io::Result<()> {
        self.core.save(out, rules, self.clock.now())
    }

    /// How much memory its keys take.
    pub fn memory_usage(&self) -> Usage {
        self.core.store().usage()
    }

    /// The time that it counts by.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }
}

/// A key at any of the limits must fit the memory.
fn check_limits(policy: &PolicySnapshot, memory_bytes: usize) -> Result<(), EngineError> {
    for rule in policy.rules().iter() {
        for each in rule.all_limits() {
            let needed = EngineSetup::min_memory_for(&each.limit);
            if needed > memory_bytes {
                let rule = rule.id.to_string();
                let limit = each.limit.to_string();
                return Err(EngineError::Memory { given: memory_bytes, needed, rule, limit });
            }
        }
    }
    Ok(())
}

fn parse_key(text: &str) -> Result<Key, KeyNameError> {
    Key::parse(text).map_err(|error| KeyNameError::Key(error.to_string()))
}

/// The core of an engine, for the crates of this project.
pub fn core_of(engine: &Engine) -> &EngineCore {
    &engine.core
}
