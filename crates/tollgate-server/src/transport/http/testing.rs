//! Bodies of the decision API: for fuzz targets and linearity tests.

use super::CheckRequest;

/// Reads the body of `/v1/check`; says whether it is one.
pub fn is_check(body: &[u8]) -> bool {
    CheckRequest::parse(body).is_ok_and(|asked| asked.hit().is_ok())
}

/// How many checks the body of `/v1/check/batch` has, if it is one.
pub fn batch_len(body: &[u8]) -> Option<usize> {
    let asked = CheckRequest::parse_batch(body).ok()?;
    asked.iter().all(|each| each.hit().is_ok()).then_some(asked.len())
}

/// Reads the query of `/v1/request-allowed`; says whether it is one.
pub fn is_query(query: &str) -> bool {
    CheckRequest::from_query(query).is_ok_and(|asked| asked.hit().is_ok())
}
