//! Rate limiting as a tower layer, for axum, hyper and tonic.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tollgate_tower::RateLimitLayer;
//!
//! let limit = RateLimitLayer::limit("100/m")?; // for each client address
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(limit);
//! # Ok::<(), tollgate_tower::LayerError>(())
//! ```
//!
//! A denied request is answered with a *response*: 429 with `RateLimit`, `Retry-After` and problem details, or
//! `RESOURCE_EXHAUSTED` for gRPC. So the layer has the error type of the service that it wraps.
//!
//! Rules are those of the server's file, and can be replaced while requests are served:
//!
//! ```
//! use tollgate_tower::{Policy, RateLimitLayer};
//!
//! let layer = RateLimitLayer::rules(
//!     "
//! rules:
//!   - {id: login, match: POST /login, key: [ip, 'header:x-account'], limit: 5/m, ban: {after: 20, within: 1h, for: 1h}}
//!   - {id: all, key: ip, limit: 20/s, burst: 40}
//! allow: [ip:10.0.0.0/8]
//! ",
//! )?;
//! let limiter = layer.limiter().clone();
//! limiter.apply(Policy::from_yaml("rules: [{id: all, key: ip, limit: 50/s}]")?)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Everything else is set on a [builder](RateLimitLayer::builder): trusted proxies, identities from extensions or
//! headers, a store that several processes share, the headers of responses. The guide is `docs/middleware.md`.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod admission;
mod body;
mod builder;
mod denied;
mod future;
mod grpc;
mod layer;
mod limiter;
mod needs;
mod request;
#[cfg(feature = "_store")]
mod shared_counters;
mod unsupported;

pub use body::LimitedBody;
pub use builder::{LayerError, RateLimitBuilder};
pub use future::LimitedFuture;
pub use layer::{RateLimitLayer, RateLimitService};
pub use limiter::RateLimiter;
pub use request::{IncomingRequest, PeerAddress};
pub use tollgate::internal::identity::forwarded::ForwardingHeader;
#[cfg(feature = "_store")]
pub use tollgate::internal::policy::KeyVisibility;
pub use tollgate::{Clock, EngineError, FieldSource, HeaderStyle, Hit, KeyNameError, Policy, RulesError};

/// Compiles and runs the Rust examples of the guide.
#[cfg(doctest)]
#[allow(rustdoc::invalid_codeblock_attributes)] // they are for scripts/doc-examples
mod doc_examples {
    #[doc = include_str!("../../../docs/middleware.md")]
    struct Middleware;
}
