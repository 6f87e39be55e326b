//! Bodies of the decision API: for fuzz targets and linearity tests.

use super::CheckRequest;

/// Whether this is a valid body of `/v1/check`.
pub fn is_check(body: &[u8]) -> bool {
    CheckRequest::parse(body).is_ok_and(|request| request.hit().is_ok())
}

/// The number of checks in a body of `/v1/check/batch`, if it is valid.
pub fn batch_len(body: &[u8]) -> Option<usize> {
    let requests = CheckRequest::parse_batch(body).ok()?;
    requests.iter().all(|each| each.hit().is_ok()).then_some(requests.len())
}

/// Whether this is a valid query of `/v1/request-allowed`.
pub fn is_query(query: &str) -> bool {
    CheckRequest::from_query(query).is_ok_and(|request| request.hit().is_ok())
}
