//! What needs a server: counters that several nodes share.

pub mod counters;
