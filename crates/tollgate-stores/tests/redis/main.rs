//! Counters on real Redis and Valkey servers.

#[path = "../central/mod.rs"]
mod central;
#[path = "../conformance/mod.rs"]
mod conformance;
#[path = "../servers/mod.rs"]
mod servers;

mod answers;
mod bad_input;
mod crowd;
mod keys;
mod listing;
mod several_slots;
mod stores;
mod transport;
