//! Real servers on free loopback ports, in folders of their own, gone when dropped.

pub mod cassandra;
pub mod cluster;
pub mod memcached;
pub mod nginx;
pub mod postgres;
pub mod redis;
pub mod sentinel;
