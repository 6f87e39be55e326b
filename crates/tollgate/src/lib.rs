//! Tollgate, the library: who asks, what is allowed, and how it is counted.
//!
//! No I/O, no async runtime; time is passed in.

pub mod time;

pub mod limit;

pub mod algorithm;

pub mod request;

pub mod identity;

pub mod fingerprint;
pub mod store;

mod codec;
mod sync;
