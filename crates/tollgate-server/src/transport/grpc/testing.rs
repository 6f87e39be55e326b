//! Messages of clients: for fuzz targets and linearity tests.

use super::rate_limit;

/// Whether bytes are a request of the rate limit service; returns the number of its descriptors.
pub fn rate_limit_request(message: &[u8]) -> Option<usize> {
    let request = rate_limit::read_request(message).ok()?;
    request.validate().ok()?;
    Some(request.descriptors.len())
}
