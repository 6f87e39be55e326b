//! Redis and Valkey: one server, a Sentinel group, or a Cluster.
//!
//! Every algorithm decides inside the server, in the server's time (`script`); one call decides all counters of a
//! hash slot. The driver is our own, because of what it must not do: a charge whose fate is unknown is never sent
//! again, only redirects and answers that say that nothing was done are followed.

mod address;
mod call;
mod client;
mod clock;
mod cluster;
mod connection;
mod dial;
mod link;
pub(crate) mod resp;
mod script;
mod script_limit;
mod sentinels;
mod store;
mod values;

pub use address::{RedisAddress, RedisAddressError};
pub use client::RedisClient;
pub use resp::RedisReply;
pub use script_limit::{EXPIRY_SLACK, TIME_UNIT, UnsupportedRedisLimit, check_limit};
pub use store::{FixedTimeStore, RedisSetup, RedisStore, Transition, args_of_call};
