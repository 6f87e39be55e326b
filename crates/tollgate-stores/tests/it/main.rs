//! The stores on real servers, and the memory store under the same conformance suite. One binary, so that the drivers are
//! linked once.

mod cassandra;
mod memcached;
mod memory;
mod redis;
mod rules_db;
mod tracks;
mod violations;
