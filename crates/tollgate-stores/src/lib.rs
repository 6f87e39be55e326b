//! What needs a server or a database: counters that several nodes share, and rules that change while they run.

#![forbid(unsafe_code)]

pub mod counters;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub mod rules;
#[cfg(all(feature = "testing", feature = "redis", feature = "memcached", feature = "cassandra"))]
#[doc(hidden)]
pub mod testing;
#[cfg(any(feature = "redis", feature = "postgres"))]
mod tls;
