//! The layer inside real axum and tonic servers on loopback, and with a real Redis behind it.

mod app;
mod cancel;
mod decisions;
mod examples;
mod grpc;
mod hold;
mod identity;
mod settlement;
mod shared;
