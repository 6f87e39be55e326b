//! Counters on servers: one driver for each kind.
//!
//! What is asked of them, and what comes back, is the library's ([`tollgate::store::central`]). A charge whose
//! fate is unknown is never sent again.

pub use tollgate::store::central::{
    CentralCharge, CentralOutcome, CentralReceipt, CentralReceiptItem, Counter, StoreError,
};

pub mod breaker;
#[cfg(feature = "cassandra")]
pub mod cassandra;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
mod cells;
#[cfg(any(feature = "redis", feature = "memcached", feature = "cassandra"))]
pub mod central;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
mod demand;
#[cfg(feature = "memcached")]
pub mod memcached;
pub mod name;
#[cfg(any(feature = "redis", feature = "memcached", feature = "cassandra"))]
mod number;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
pub mod place;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
mod request;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
pub(crate) mod state;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
mod told;
#[cfg(any(feature = "redis", feature = "memcached", feature = "cassandra"))]
pub(crate) mod track;
#[cfg(any(feature = "redis", feature = "memcached", feature = "cassandra"))]
mod value;
#[cfg(any(feature = "redis", feature = "memcached", feature = "cassandra"))]
pub mod violations;
