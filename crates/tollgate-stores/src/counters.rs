//! Counters on servers: one driver for each kind.
//!
//! What is asked of them, and what comes back, is the library's ([`tollgate::store::central`]). A charge whose
//! fate is unknown is never sent again.

pub use tollgate::store::central::{
    CentralCharge, CentralOutcome, CentralReceipt, CentralReceiptItem, CounterId, StoreError,
};

pub mod breaker;
#[cfg(any(feature = "redis", feature = "memcached", feature = "cassandra"))]
mod cas;
#[cfg(feature = "cassandra")]
pub mod cassandra;
#[cfg(any(feature = "redis", feature = "memcached", feature = "cassandra"))]
pub mod central;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
mod client_clock;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
mod decide;
#[cfg(feature = "memcached")]
pub mod memcached;
pub mod name;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
mod request;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
pub(crate) mod state;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
pub mod store_url;
#[cfg(any(feature = "redis", feature = "memcached", feature = "cassandra"))]
pub(crate) mod track;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
mod transactions;
#[cfg(any(feature = "redis", feature = "memcached", feature = "cassandra"))]
mod varint;
#[cfg(any(feature = "redis", feature = "memcached", feature = "cassandra"))]
pub mod violations;
