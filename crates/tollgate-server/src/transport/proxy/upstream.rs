//! Upstream servers: choice, connections, forwarding with retries, health checks.

pub(super) mod balance;
pub(super) mod connect;
pub(super) mod forward;
pub(super) mod health;
pub(super) mod plain_body;
pub(super) mod plain_connection;
pub(super) mod server;
