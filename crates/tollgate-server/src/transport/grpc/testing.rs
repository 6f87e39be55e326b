//! Messages of clients: for fuzz targets and linearity tests.

use std::sync::{Arc, LazyLock};

use super::{authorization, rate_limit};
use crate::gate::Gate;
use crate::testing::gate;

/// Whether bytes are a request of the rate limit service; returns the number of its descriptors.
pub fn rate_limit_request(message: &[u8]) -> Option<usize> {
    let request = rate_limit::read_request(message).ok()?;
    request.validate().ok()?;
    Some(request.descriptors.len())
}

/// Reads a request of external authorization; `None` if the call fails, and otherwise whether the request that it
/// describes can be decided.
pub fn authorization_request(message: &[u8]) -> Option<bool> {
    static GATE: LazyLock<Arc<Gate>> =
        LazyLock::new(|| gate("rules: [{ id: all, host: a.example, key: ip, limit: 5/m }]"));
    authorization::is_decidable(&GATE.snapshot(), message).ok()
}
