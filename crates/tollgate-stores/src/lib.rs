//! Backends: shared counters (Redis, Memcached, Cassandra) and rule databases (SQLite, PostgreSQL).

#![forbid(unsafe_code)]

pub mod counters;
#[cfg(any(feature = "redis", feature = "postgres"))]
mod password_file;
pub mod recent_map;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub mod rules;
pub mod server_time;
#[cfg(all(feature = "testing", feature = "redis", feature = "memcached", feature = "cassandra"))]
#[doc(hidden)]
pub mod testing;
#[cfg(any(feature = "redis", feature = "postgres"))]
mod tls;
