//! Tollgate, the library: identities, rules, limits, and the counters behind them.
//!
//! No I/O, no async runtime; time is passed in.

pub mod time;

pub mod limit;

pub mod algorithm;

pub mod document;

pub mod request;

pub mod identity;

pub mod hit;

pub mod rule;

mod key_list;

pub mod ban;

pub mod enforce;

pub mod fingerprint;

pub mod store;

pub mod verdict;

mod plan;

pub mod policy;

pub mod rule_stats;

pub mod track;

pub mod event;

pub mod engine;

pub mod headers;

pub mod limiter;

pub mod changes;
mod codec;
mod collections;
#[cfg(shuttle)]
#[doc(hidden)]
pub use sync::seeded;
mod prefetch;
mod sampled_lru;
mod stripes;
mod sync;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;

pub use enforce::Enforce;
pub use engine::{EngineCore, EngineSetup};
pub use hit::Hit;
pub use limit::{Limit, Rate, Shape};
pub use limiter::{Limiter, LimiterError, LimiterKey};
pub use policy::PolicySnapshot;
pub use time::{Clock, Time};
pub use verdict::{EngineVerdict, Reason};

/// Compiles and runs the Rust examples of the documentation.
#[cfg(doctest)]
#[allow(rustdoc::invalid_codeblock_attributes)] // they are for scripts/doc-examples
mod doc_examples {
    #[doc = include_str!("../../../README.md")]
    struct Readme;

    #[doc = include_str!("../../../docs/decision-api.md")]
    struct DecisionApi;
}
