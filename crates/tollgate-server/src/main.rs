//! `tollgate`: the rate limiter as a server and on the command line.

#![deny(unsafe_code)]

mod admin;
#[allow(unsafe_code)] // one call of the C library
mod allocator;
mod answer;
mod assemble;
mod body;
mod cli;
mod client;
mod config;
mod connection;
mod fleet_bans;
mod gate;
mod guard;
mod history;
mod jwt;
mod log_rate;
mod metrics;
mod notice;
mod queue;
mod receipt;
mod reload;
mod rulebook;
mod state;
mod tokens;
mod transport;

fn main() -> std::process::ExitCode {
    cli::run()
}
