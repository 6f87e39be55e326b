//! The server and the command line. The binary is one call of [`run`]; nothing else here is public API.
//!
//! With the feature `testing` fuzz targets and linearity tests (`fuzz/`) reach the internal parsers.

#![deny(unsafe_code)]

mod admin;
#[allow(unsafe_code)] // calls of the C library
mod allocator;
mod assemble;
mod caller_auth;
mod check_bounds;
mod cli;
mod client;
mod config;
mod config_history;
mod connection;
mod decision_log;
mod envoy;
mod error_response;
mod fleet;
mod fleet_bans;
mod gate;
mod http1;
mod insight;
mod json_body;
mod jwt;
mod log;
mod log_rate;
mod metrics;
mod notice;
#[cfg(feature = "otlp")]
mod otlp;
mod queue;
mod ramp;
mod receipt;
mod reload;
mod request_head;
mod response;
mod rules_follower;
mod state;
mod systemd;
mod tls;
mod tokens;
mod trace_id;
mod transport;

#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;

pub use cli::run;
