//! The central stores, opened for tests with a given time.

pub mod cassandra;
pub mod memcached;
pub mod redis;
