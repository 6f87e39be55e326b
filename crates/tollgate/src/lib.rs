//! Rate limiting inside a program: one limit, or a file of rules.
//!
//! # One limit
//!
//! A [`Limiter`] counts any number of keys. It is fast (a known key costs one compare-and-swap), exact, and bounded in
//! memory.
//!
//! ```
//! use tollgate::Limiter;
//!
//! let limiter = Limiter::new("5/m")?;
//! let decision = limiter.check("user:42");
//! assert!(decision.is_allowed());
//! # Ok::<(), tollgate::LimiterError>(())
//! ```
//!
//! # Rules
//!
//! An [`Engine`] reads the server's configuration file and decides as the server does: by which keys clients are told
//! apart, how much each may do, who is exempt or banned. A request is a [`Hit`]; the answer is a [`Verdict`], which
//! knows the headers of the response.
//!
//! ```
//! use tollgate::{Engine, HeaderStyle, Hit};
//!
//! let engine = Engine::from_yaml(
//!     "
//! rules:
//!   - {id: login, match: POST /login, key: email, limits: [2/m, 20/h], algorithm: sliding-log}
//!   - {id: search, match: GET /search/**, key: [ip, user], limit: 2/s, burst: 10}
//! allow: [ip:10.0.0.0/8]
//! ",
//! )?;
//! let hit = Hit::on("POST", "example.com", "/login").email("ann@example.com");
//! assert!(engine.check(&hit).is_allowed());
//! assert!(engine.check(&hit).is_allowed());
//! let verdict = engine.check(&hit);
//! assert!(!verdict.is_allowed());
//! assert_eq!(verdict.reported().map(|limit| limit.rule()), Some("login"));
//! let headers = verdict.headers(HeaderStyle::Ietf);
//! assert_eq!(headers.last(), Some(&("retry-after", "60".to_owned())));
//! # Ok::<(), tollgate::EngineError>(())
//! ```
//!
//! # Giving back
//!
//! What was charged for nothing, or too much, is given back with the receipt:
//!
//! ```
//! use tollgate::{Engine, Hit};
//!
//! let engine = Engine::from_yaml("rules: [{id: reports, key: user, limit: 1/d}]")?;
//! let hit = Hit::by("ann");
//! let receipt = engine.check(&hit).into_receipt().expect("it was charged");
//! assert!(!engine.check(&hit).is_allowed());
//! engine.refund(receipt);
//! assert!(engine.check(&hit).is_allowed());
//! # Ok::<(), tollgate::EngineError>(())
//! ```
//!
//! # Time in tests
//!
//! A [manual clock](Clock::manual) moves only when it is advanced:
//!
//! ```
//! use std::time::Duration;
//! use tollgate::{Clock, Engine, Hit, Policy, Time};
//!
//! let clock = Clock::manual(Time::from_secs(1_800_000_000));
//! let policy = Policy::from_yaml("rules: [{id: all, key: user, limit: 1/m}]")?;
//! let engine = Engine::builder().clock(clock).build(policy)?;
//! assert!(engine.check(&Hit::by("ann")).is_allowed());
//! let denied = engine.check(&Hit::by("ann"));
//! assert_eq!(denied.retry_after(), Some(Duration::from_secs(60)));
//! engine.clock().advance(Duration::from_secs(60));
//! assert!(engine.check(&Hit::by("ann")).is_allowed());
//! # Ok::<(), tollgate::EngineError>(())
//! ```
//!
//! A limiter takes one, too, or is [given the time](Limiter::check_at) of each call instead.
//!
//! # More
//!
//! The [guide] has an example for every task: waiting for a turn, batches, bans, new rules, a saved state, memory.
//!
//! The library does no I/O and has no runtime. Counters that several processes share are in `tollgate-tower` (a layer for
//! axum, hyper and tonic), `tollgate-client` (budgets for a program's own calls) and the server; a rules database and the
//! reverse proxy are the server's.

// Modules of public items deny missing docs; where only some items are public, those do.
#![deny(unreachable_pub)]

#[deny(missing_docs)]
mod time;

mod limit;

mod algorithm;

mod document;

mod request;

mod identity;

#[deny(missing_docs)]
mod hit;

mod rule;

mod key_list;

mod ban;

mod enforce;

mod fingerprint;

mod store;

mod verdict;

mod plan;

mod policy;

mod rule_stats;

mod track;

mod engine;

mod headers;

mod denial;

#[cfg(feature = "tickets")]
mod ticket;

mod settlement;

mod hold;

#[cfg(feature = "http")]
mod http;

#[deny(missing_docs)]
mod limiter;

pub mod guide;

#[deny(missing_docs)]
mod api;

mod changes;
mod codec;
mod collections;
mod decimal;
mod prefetch;
mod sampled_lru;
mod stripes;
mod sync;
#[cfg(feature = "testing")]
mod testing;

#[doc(hidden)]
pub mod internal;

pub use algorithm::{Admission, Decision};
pub use api::{
    Engine, EngineBuilder, EngineError, KeyNameError, LimitStatus, Policy, Receipt, RulesError, Verdict,
};
pub use headers::HeaderStyle;
pub use hit::Hit;
pub use identity::FieldSource;
pub use limiter::{Limiter, LimiterBuilder, LimiterError, LimiterKey, WaitError};
pub use store::memory::{MemoryFull, Usage};
pub use time::{Clock, Time};
pub use verdict::Reason;

/// Compiles and runs the Rust examples of the documentation.
#[cfg(doctest)]
#[allow(rustdoc::invalid_codeblock_attributes)] // they are for scripts/doc-examples
mod doc_examples {
    #[doc = include_str!("../../../README.md")]
    struct Readme;

    #[doc = include_str!("../../../docs/decision-api.md")]
    struct DecisionApi;

    #[doc = include_str!("../../../docs/migrate/governor.md")]
    struct FromGovernor;
}
