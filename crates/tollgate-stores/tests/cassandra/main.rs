//! Counters on a real Cassandra.

#[path = "../central/mod.rs"]
mod central;
#[path = "../conformance/mod.rs"]
mod conformance;
#[path = "../servers/mod.rs"]
mod servers;

mod answers;
mod stores;
