//! The central stores, opened for tests and told the time of everything they do.

pub mod cassandra;
pub mod memcached;
pub mod redis;
