//! The Redis protocol: `CL.THROTTLE` as redis-cell answers it, decisions by the rules, and what clients send besides.
//!
//! The commands that one read brings are parsed first and decided together; their replies are one write.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use crate::config::ListenAddress;
use crate::connection::{
    AddressLimiter, ClientSocket, HEADER_TIMEOUT, Listener, ReadEvent, ReadWatch, Shutdown, WorkerService,
    default_workers, send_replies, serve_on_workers,
};
use crate::gate::Gate;
use crate::log_rate::LogLimiter;
use crate::tokens::{Role, Tokens};

mod batch;
mod call_pattern;
mod check;
mod command;
mod frame;
mod reply;
mod session;
#[cfg(feature = "testing")]
pub mod testing;
mod throttle;
mod throttle_queue;

use batch::CommandBatch;
use frame::{Parser, ProtocolError};
use session::RespSession;

/// Bytes of one read. A larger buffer, of input or replies, is freed when the connection becomes idle.
const READ_BYTES: usize = 16 << 10;
/// Replies are sent once they have this many bytes, before further commands are decided.
const MAX_REPLY_BYTES: usize = 64 << 10;

/// What all connections share.
pub struct RespServer {
    gate: Arc<Gate>,
    /// Tokens that `AUTH` requires, if there are any with the role `check`.
    tokens: Option<Arc<Tokens>>,
    refusals: LogLimiter,
    connections: AtomicU64,
}

impl RespServer {
    pub fn new(gate: Arc<Gate>, tokens: Option<Arc<Tokens>>) -> RespServer {
        let tokens = tokens.filter(|tokens| tokens.has_check());
        RespServer { gate, tokens, refusals: LogLimiter::default(), connections: AtomicU64::new(0) }
    }

    /// Whether clients beyond this machine would be served without a token.
    pub fn is_open_at(&self, address: &ListenAddress) -> bool {
        self.tokens.is_none() && !address.is_local()
    }

    fn is_valid(&self, token: &[u8]) -> bool {
        let token = std::str::from_utf8(token).ok();
        let found =
            token.zip(self.tokens.as_ref()).and_then(|(token, tokens)| tokens.find(token, Role::Check));
        found.is_some_and(|(role, _)| role.includes(Role::Check))
    }

    /// Logs a refused client at a bounded rate.
    fn log_refused(&self, peer: SocketAddr) {
        self.refusals.warn(
            "refused clients",
            || tracing::warn!(%peer, "resp: AUTH refused: not a token of role check"),
        );
    }
}

/// Serves the listener until the shutdown turns true.
pub async fn serve(
    server: Arc<RespServer>,
    listener: Listener,
    per_address: Arc<AddressLimiter>,
    shutdown: Shutdown,
) {
    let serving = serve_on_workers(server, default_workers(), listener, per_address, shutdown);
    if let Err(error) = serving.await {
        tracing::error!("resp does not run: {error:#}");
    }
}

impl WorkerService for RespServer {
    const NAME: &'static str = "resp";

    async fn serve(&self, _worker: usize, stream: ClientSocket, peer: SocketAddr, shutdown: Shutdown) {
        serve_client(self, stream, peer, shutdown).await;
    }
}

/// Serves one client until it leaves, breaks the protocol, or the process stops.
async fn serve_client(server: &RespServer, mut stream: ClientSocket, peer: SocketAddr, shutdown: Shutdown) {
    let id = server.connections.fetch_add(1, Ordering::Relaxed) + 1;
    let mut session = RespSession::new(server, peer, id);
    let mut input = Vec::with_capacity(READ_BYTES);
    let mut parser = Parser::default();
    let mut reads = ReadWatch::new(&shutdown);
    loop {
        // Between commands a client may be silent; a command that has begun must go on.
        let deadline = (!input.is_empty()).then(|| Instant::now() + HEADER_TIMEOUT);
        input.reserve(READ_BYTES);
        let event = reads.read(&mut stream, &mut input, deadline).await;
        if !matches!(event, ReadEvent::Read(Ok(1..))) {
            return;
        }
        let Ok(used) = run_commands(&mut session, &mut stream, &mut parser, &input).await else { return };
        if send(&mut stream, &mut session).await.is_err() || session.is_closing {
            stream.shutdown().await.ok();
            return;
        }
        input.drain(..used);
        if input.is_empty() && input.capacity() > READ_BYTES {
            input = Vec::with_capacity(READ_BYTES);
        }
    }
}

/// How far the commands of the input were parsed.
#[derive(PartialEq, Eq)]
enum Progress {
    /// Further commands may follow.
    Partly,
    /// The rest is not a complete command.
    Wholly,
}

/// Decides all complete commands of the input; returns how many bytes they have.
async fn run_commands(
    session: &mut RespSession<'_>,
    stream: &mut ClientSocket,
    parser: &mut Parser,
    input: &[u8],
) -> std::io::Result<usize> {
    let mut used = 0;
    loop {
        let enqueued = enqueue_throttles(session, parser, input, &mut used);
        session.run_queued();
        let progress = match enqueued {
            Err(error) => Err(error),
            Ok(()) if session.replies.bytes.len() > MAX_REPLY_BYTES => Ok(Progress::Partly),
            Ok(()) => run_batch(session, parser, input, &mut used).await,
        };
        if let Err(error) = &progress {
            session.replies.error(format_args!("ERR {error}"));
            session.count(1);
            session.is_closing = true;
        }
        if session.is_closing || progress == Ok(Progress::Wholly) {
            return Ok(used);
        }
        if session.replies.bytes.len() > MAX_REPLY_BYTES {
            send(stream, session).await?;
        }
    }
}

/// Adds calls of `CL.THROTTLE` to the queue, up to the first command that is something else or not complete.
fn enqueue_throttles(
    session: &mut RespSession<'_>,
    parser: &mut Parser,
    input: &[u8],
    used: &mut usize,
) -> Result<(), ProtocolError> {
    while session.replies.bytes.len() <= MAX_REPLY_BYTES {
        let rest = &input[*used..];
        if parser.is_at_start()
            && let Some(length) = session.enqueue_similar(rest)
        {
            *used += length;
            continue;
        }
        let Some(length) = parser.parse(rest)? else { break };
        // A complete command that is not added can be parsed again.
        if parser.inline_args().is_some() || !session.enqueue(&parser.args(rest)) {
            break;
        }
        *used += length;
        parser.next();
    }
    Ok(())
}

/// Decides the commands up to one that must be decided alone, or the last complete one.
async fn run_batch(
    session: &mut RespSession<'_>,
    parser: &mut Parser,
    input: &[u8],
    used: &mut usize,
) -> Result<Progress, ProtocolError> {
    let mut batch = CommandBatch::default();
    let progress = loop {
        match parser.parse(&input[*used..]) {
            // Its arguments are in the parser, not in the input: it is decided alone.
            Ok(Some(_)) if parser.inline_args().is_some() && !batch.is_empty() => break Ok(Progress::Partly),
            Ok(Some(length)) => {
                *used += length;
                if let Some(args) = parser.inline_args() {
                    let mut single = CommandBatch::default();
                    single.add(session, &args);
                    single.run(session).await;
                    parser.next();
                    return Ok(Progress::Partly);
                }
                batch.add(session, &parser.args(&input[*used - length..]));
                parser.next();
                if batch.is_full() {
                    break Ok(Progress::Partly);
                }
            }
            Ok(None) => break Ok(Progress::Wholly),
            Err(error) => break Err(error),
        }
    };
    batch.run(session).await;
    progress
}

/// Sends the replies; a client that does not read them is disconnected.
async fn send(stream: &mut ClientSocket, session: &mut RespSession<'_>) -> std::io::Result<()> {
    send_replies(stream, &mut session.replies.bytes, READ_BYTES).await
}
