//! The engine as programs embed it: rules, a clock, and the core that the server uses, too.

mod config_file;
mod engine;
mod policy;
mod verdict;

pub use config_file::SETTINGS_OF_THE_SERVER;
pub use engine::{Engine, EngineBuilder, EngineError, KeyNameError, core_of};
pub use policy::{Policy, RulesError, layer_settings_of, snapshot_of};
pub use verdict::{LimitStatus, Receipt, Verdict};
