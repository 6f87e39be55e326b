//! Keeps a program's own calls under the limits of the APIs that it calls.
//!
//! A [`Throttle`] knows a budget, learns from the headers of responses, or both. Calls wait for their turn, first come
//! first served, or fail fast. It works with any HTTP client:
//!
//! ```
//! # use http::{HeaderMap, StatusCode};
//! # async fn send() -> (StatusCode, HeaderMap) { (StatusCode::OK, HeaderMap::new()) }
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tollgate_client::Throttle;
//!
//! let throttle = Throttle::new("100/m")?;
//! let permit = throttle.acquire("api.example.com").await?;
//! let (status, headers) = send().await;
//! permit.observe(status, &headers);
//! # Ok(())
//! # }
//! ```
//!
//! # What is learned
//!
//! `RateLimit` and `RateLimit-Policy` (revision 11 of the IETF draft, and earlier ones), `RateLimit-Limit`, `-Remaining`
//! and `-Reset`, the same with `X-`, and `Retry-After` of 429, 503 and 403. Of gRPC, `RESOURCE_EXHAUSTED` and
//! `UNAVAILABLE` with `RetryInfo` or `Retry-After`. Headers are untrusted: they are bounded, what is not valid is ignored, and no response stops the calls for longer than an hour
//! ([`max_server_wait`](ThrottleBuilder::max_server_wait)).
//!
//! Without a budget, the first call to a host is sent alone: its response tells how many may follow.
//!
//! # Features
//!
//! | Feature | Adds |
//! |---|---|
//! | `tower` | `ThrottleLayer`, for tower services of `http` requests: hyper, tonic, axum's clients |
//! | `reqwest` | `ThrottleMiddleware`, for reqwest-middleware |
//! | `redis` | `ThrottleBuilder::store`: processes share a budget |

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod headers;

mod learned;

mod key_table;

mod budget;

mod throttle;

mod builder;

mod request;

#[cfg(feature = "tower")]
mod tower;

#[cfg(feature = "reqwest")]
mod reqwest;

pub use builder::{BuildError, DEFAULT_MAX_SERVER_WAIT, ThrottleBuilder};
pub use request::{KeyOf, RequestHead};
#[cfg(feature = "reqwest")]
pub use reqwest::ThrottleMiddleware;
pub use throttle::{CallPermit, Throttle, ThrottleError};
#[cfg(feature = "tower")]
pub use tower::{ThrottleLayer, ThrottleService, ThrottleServiceError};
