//! Counters on real memcached servers.

mod answers;
mod bad_input;
mod contention;
mod keys;
