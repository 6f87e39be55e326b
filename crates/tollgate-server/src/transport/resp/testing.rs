//! The stream of a Redis client: for fuzz targets and linearity tests.

use super::check::Check;
use super::command::Command;
use super::frame::{Args, Parser};
use super::throttle::ThrottleCall;

/// Parses a stream that arrives in pieces: how many arguments each command has, and whether it ends by breaking the
/// protocol.
pub fn commands(stream: &[u8], piece: usize) -> (Vec<usize>, bool) {
    let mut parser = Parser::default();
    let mut counts = Vec::new();
    let mut begin = 0;
    for end in (0..stream.len()).step_by(piece.max(1)).map(|at| (at + piece.max(1)).min(stream.len())) {
        loop {
            match parser.parse(&stream[begin..end]) {
                Ok(Some(length)) => {
                    let args = parser.inline_args().unwrap_or_else(|| parser.args(&stream[begin..end]));
                    interpret(&args);
                    counts.push(args.len());
                    parser.next();
                    begin += length;
                }
                Ok(None) => break,
                Err(_) => return (counts, true),
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
