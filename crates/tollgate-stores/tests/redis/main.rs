//! Counters on real Redis and Valkey servers.

#[path = "../conformance/mod.rs"]
mod conformance;
mod hits;
#[path = "../servers/mod.rs"]
mod servers;

mod answers;
mod bad_input;
mod hammer;
mod keys;
mod several_slots;
mod transport;
