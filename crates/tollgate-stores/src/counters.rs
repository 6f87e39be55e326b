//! Central counter stores, one driver per backend.
//!
//! Requests and results are the library's types ([`tollgate::internal::store::central`]). A charge whose outcome is unknown is
//! never retried.

pub use tollgate::internal::store::central::{
    CentralCounter, CentralOutcome, CounterId, LimitResult, StoreError,
};

pub mod breaker;
#[cfg(any(feature = "redis", feature = "memcached", feature = "cassandra"))]
mod cas;
#[cfg(feature = "cassandra")]
pub mod cassandra;
#[cfg(any(feature = "redis", feature = "memcached", feature = "cassandra"))]
pub mod central;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
mod client_clock;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
mod decide;
#[cfg(feature = "memcached")]
pub mod memcached;
pub mod name;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "redis", feature = "memcached", feature = "cassandra"))]
mod request;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
pub(crate) mod state;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
pub mod store_url;
#[cfg(any(feature = "redis", feature = "memcached", feature = "cassandra"))]
pub(crate) mod track;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
mod transactions;
#[cfg(any(feature = "redis", feature = "memcached", feature = "cassandra"))]
mod varint;
#[cfg(any(feature = "redis", feature = "memcached", feature = "cassandra"))]
pub mod violations;
