//! Counters on real Redis and Valkey servers.

#[path = "../conformance/mod.rs"]
mod conformance;
#[path = "../servers/mod.rs"]
mod servers;

mod answers;
