//! Calls of the decision API: for fuzz targets, linearity tests and counts of allocations.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use super::plain_request::{CallScanner, Scanned};
use super::{CheckRequest, HttpServer};
use crate::testing::{PEER, counted_gate};

/// Serves a local client of a node with this configuration until it leaves.
pub async fn serve(config: &str, stream: impl AsyncRead + AsyncWrite + Unpin + Send) {
    let server = HttpServer { gate: counted_gate(config), access: Arc::default() };
    let (_running, shutdown) = watch::channel(false);
    server.serve_client(stream, PEER, shutdown).await;
}

/// The bodies of the plain calls at the start of a stream that arrives in pieces.
pub fn plain_bodies(stream: &[u8], piece: usize) -> Vec<&[u8]> {
    let piece = piece.max(1);
    let mut scanner = CallScanner::default();
    let mut bodies = Vec::new();
    let mut begin = 0;
    for end in (0..stream.len()).step_by(piece).map(|at| (at + piece).min(stream.len())) {
        loop {
            match scanner.scan(&stream[begin..end]) {
                Scanned::Call { head, body } => {
                    bodies.push(body);
                    begin += head.bytes + head.body_bytes;
                }
                Scanned::PartialHead | Scanned::CompleteHead(_) | Scanned::PartialBody => break,
                Scanned::NotPlain => return bodies,
            }
        }
    }
    bodies
}

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
