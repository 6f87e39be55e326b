//! Memcached: one server, or several that share the keys.
//!
//! Clock-aligned windows are integers that the server increments, in one round trip; every other counter is one value,
//! replaced by compare-and-swap. The nodes' clocks decide. Memcached evicts when it is full and is empty after a
//! restart: the counters then start from zero.

mod address;
mod buckets;
mod clock;
mod closed_windows;
mod denied_costs;
mod layout;
mod pool;
mod ring;
mod server;
mod store;
mod tiers;
mod values;
mod windows;
pub(crate) mod wire;

pub use address::MemcachedAddress;
pub use clock::server_times;
pub use layout::{UnsupportedMemcachedLimit, check_limit};
pub use store::{MemcachedSetup, MemcachedStore};
