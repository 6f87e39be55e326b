//! Redis and Valkey: one server, a Sentinel group, or a Cluster.
//!
//! Every algorithm decides inside the server, in the server's time (`script`); one call decides all counters of a
//! hash slot. The driver is our own, because of what it must not do: a charge whose fate is unknown is never sent
//! again, only redirects and answers that say that nothing was done are followed.

mod address;
mod call;
mod client;
mod clock;
mod connection;
mod dial;
mod link;
pub(crate) mod resp;
mod script;
mod sentinels;
mod slots;
mod store;
mod terms;
mod values;

pub use address::{AddressError, RedisAddress};
pub use client::RedisClient;
pub use resp::Reply;
pub use store::{RedisSetup, RedisStore, Told, Transition, words_of_call};
pub use terms::{EXPIRY_SLACK, RefusedLimit, UNIT, check};
