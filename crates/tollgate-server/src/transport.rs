//! The protocols of decisions. They know neither each other nor any backend.

pub mod grpc;
pub mod http;
pub mod proxy;
pub mod resp;
