//! The layer inside real axum and tonic servers on loopback, and with real stores behind it.

mod app;
mod cancel;
mod decisions;
mod denials;
mod examples;
mod file_settings;
mod grpc;
mod hold;
mod identity;
mod other_servers;
mod settlement;
mod shared;
