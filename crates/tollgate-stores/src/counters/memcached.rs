//! Memcached: one server, or several that share the keys.
//!
//! Windows of the clock are numbers that the server adds to, in one round trip; everything else is one
//! value a counter, replaced by compare-and-swap. The nodes' clocks decide. Memcached forgets at will, when
//! it is full or restarted: then its counters begin anew.

mod address;
mod buckets;
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
pub use layout::{UnsupportedMemcachedLimit, check_limit};
pub use store::{MemcachedSetup, MemcachedStore};
