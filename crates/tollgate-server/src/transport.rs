//! The protocols over which decisions are asked for. They know neither each other nor any backend.

pub mod http;
pub mod proxy;
