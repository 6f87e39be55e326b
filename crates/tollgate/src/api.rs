//! The engine as programs embed it: rules, a clock, and the core that the server uses, too.

mod engine;
mod policy;
mod verdict;

pub use engine::{Engine, EngineBuilder, EngineError, KeyNameError};
pub use policy::{Policy, RulesError};
pub use verdict::{LimitStatus, Receipt, Verdict};
