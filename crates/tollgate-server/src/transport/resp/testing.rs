//! The stream of a Redis client: for fuzz targets, linearity tests and counts of allocations.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use super::call_pattern::CallPattern;
use super::check::Check;
use super::command::Command;
use super::frame::{Args, Parser};
use super::throttle::ThrottleCall;
use super::{RespServer, serve_client};
use crate::testing::{PEER, counted_gate};

/// Serves a client of a node with this configuration until it leaves.
pub async fn serve(config: &str, stream: impl AsyncRead + AsyncWrite + Unpin) {
    let server = RespServer::new(counted_gate(config), None);
    let (_running, shutdown) = watch::channel(false);
    serve_client(&server, stream, PEER, shutdown).await;
}

/// Parses a stream that arrives in pieces: how many arguments each command has, and whether it ends by breaking the
/// protocol. A command that fits the pattern of the one before must be parsed to the same key and length.
pub fn commands(stream: &[u8], piece: usize) -> (Vec<usize>, bool) {
    let mut parser = Parser::default();
    let mut counts = Vec::new();
    let mut begin = 0;
    let mut pattern = CallPattern::default();
    for end in (0..stream.len()).step_by(piece.max(1)).map(|at| (at + piece.max(1)).min(stream.len())) {
        loop {
            let rest = &stream[begin..end];
            let similar = pattern.key_of(rest).filter(|_| parser.is_at_start());
            match parser.parse(rest) {
                Ok(Some(length)) => {
                    let args = parser.inline_args().unwrap_or_else(|| parser.args(rest));
                    interpret(&args);
                    counts.push(args.len());
                    assert!(similar.is_none_or(|(key, end)| args.get(1) == Some(key) && end == length));
                    pattern.replace(&args);
                    parser.next();
                    begin += length;
                }
                incomplete => {
                    assert!(similar.is_none());
                    match incomplete {
                        Ok(_) => break,
                        Err(_) => return (counts, true),
                    }
                }
            }
        }
    }
    (counts, false)
}

fn interpret(args: &Args<'_, '_>) {
    ThrottleCall::parse(args).ok();
    Check::parse(args).ok();
    Command::parse(args).ok();
}
