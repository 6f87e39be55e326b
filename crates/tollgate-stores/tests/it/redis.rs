//! Counters on real Redis and Valkey servers.

mod answers;
mod bad_input;
mod contention;
mod keys;
mod listing;
mod several_slots;
mod shared_calls;
mod transport;
