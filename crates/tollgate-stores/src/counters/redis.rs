//! Redis and Valkey: one server, a Sentinel group, or a Cluster.
//!
//! Every algorithm decides inside the server, by the server's clock (`script`); one call decides all counters of a
//! hash slot. The driver is our own because of its retry rules: a charge whose outcome is unknown is never resent; it
//! follows only redirects and error replies that guarantee that nothing was executed. redis-rs 1.8 and fred 10.1 do
//! both or neither (`bench/redis-drivers`).

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
mod server_time;
mod shared_call;
mod shared_reply;
mod store;
#[cfg(feature = "testing")]
mod testing;
mod track;
mod values;

pub use address::{RedisAddress, RedisAddressError};
pub use client::RedisClient;
pub use resp::RedisReply;
pub use script_limit::{EXPIRY_SLACK, TIME_UNIT, UnsupportedRedisLimit, check_limit};
pub use server_time::server_time;
pub use store::{RedisSetup, RedisStore};
#[cfg(feature = "testing")]
pub use testing::{Transition, args_of_call};
