//! The Redis protocol: `CL.THROTTLE` as redis-cell answers it, decisions by the rules, and what clients send besides.
//!
//! The commands that one read brings are parsed first and decided together; their replies are one write.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use crate::config::ListenAddress;
use crate::connection::{
    AddressLimiter, ClientSocket, HEADER_TIMEOUT, Listener, ReadEvent, ReadWatch, Shutdown, WRITE_TIMEOUT,
    WorkerService, default_workers, heartbeat, send_replies, serve_on_workers,
};
use crate::gate::Gate;
use crate::log_rate::LogLimiter;
use crate::tokens::{Role, Tokens};

mod batch;
#[cfg(test)]
mod bounds_tests;
mod call_pattern;
mod check;
mod command;
mod frame;
mod reply;
mod session;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(test)]
mod tests;
mod throttle;
mod throttle_queue;

use batch::CommandBatch;
use frame::{Parser, ProtocolError};
use session::RespSession;

/// Bytes of one read. A larger buffer, of input or replies, is freed when the connection becomes idle.
const READ_BYTES: usize = 16 << 10;
/// Replies are sent once they have this many bytes, before further commands are decided.
const MAX_REPLY_BYTES: usize = 64 << 10;
/// From the connection to its first command, and to `AUTH` where a token is required. Later a client may be silent.
const GREETING_TIMEOUT: Duration = Duration::from_secs(60);
/// From the first byte of a command to its last.
const COMMAND_TIMEOUT: Duration = HEADER_TIMEOUT;

/// What a client still sends after the last reply is discarded, within these bounds: if the socket were closed with
/// unread input, the kernel could discard the reply.
const LINGER_BYTES: usize = 32 << 20;
const LINGER_TIME: Duration = Duration::from_secs(5);

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

    fn start_worker(&self, _worker: usize) {
        heartbeat::start(&self.gate, Self::NAME);
    }

    async fn serve(&self, _worker: usize, stream: ClientSocket, peer: SocketAddr, shutdown: Shutdown) {
        serve_client(self, stream, peer, shutdown).await;
    }
}

/// Serves one client until it leaves, breaks the protocol, or the process stops.
async fn serve_client<S>(server: &RespServer, mut stream: S, peer: SocketAddr, shutdown: Shutdown)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let id = server.connections.fetch_add(1, Ordering::Relaxed) + 1;
    let mut session = RespSession::new(server, peer, id);
    let mut input = Vec::with_capacity(READ_BYTES);
    let mut parser = Parser::default();
    let mut reads = ReadWatch::new(&shutdown);
    let mut deadlines = Deadlines { greeting: Some(Instant::now() + GREETING_TIMEOUT), command: None };
    loop {
        input.reserve(READ_BYTES);
        match reads.read(&mut stream, &mut input, deadlines.next()).await {
            ReadEvent::Read(Ok(1..)) => {}
            // A command that has begun is answered if the rest of it arrives in time.
            ReadEvent::Stopped if !input.is_empty() => continue,
            ReadEvent::Read(_) | ReadEvent::DeadlinePassed | ReadEvent::Stopped => return,
        }
        let Ok(used) = run_commands(&mut session, &mut stream, &mut parser, &input).await else { return };
        // A client that never stops sending would prevent a stop.
        let is_last = session.is_closing || (used > 0 && shutdown.has_changed().unwrap_or(true));
        if send(&mut stream, &mut session).await.is_err() {
            return;
        }
        if is_last {
            // With TLS this also sends what is buffered, which a client that does not read would delay for ever.
            let ended = timeout(WRITE_TIMEOUT, stream.shutdown()).await;
            if session.is_closing && matches!(ended, Ok(Ok(()))) {
                linger(&mut stream, &mut reads, input).await;
            }
            return;
        }
        input.drain(..used);
        deadlines.follow(&session, used, input.len());
        if input.is_empty() && input.capacity() > READ_BYTES {
            input = Vec::with_capacity(READ_BYTES);
        }
    }
}

/// Discards input until the client closes the connection too.
async fn linger<S: AsyncRead + Unpin>(stream: &mut S, reads: &mut ReadWatch, mut input: Vec<u8>) {
    let deadline = Some(Instant::now() + LINGER_TIME);
    let mut discarded = 0;
    while discarded < LINGER_BYTES {
        input.clear();
        input.reserve(READ_BYTES);
        match reads.read(stream, &mut input, deadline).await {
            ReadEvent::Read(Ok(count @ 1..)) => discarded += count,
            ReadEvent::Read(_) | ReadEvent::DeadlinePassed | ReadEvent::Stopped => return,
        }
    }
}

/// When a client must have sent what is expected of it.
struct Deadlines {
    greeting: Option<Instant>,
    command: Option<Instant>,
}

impl Deadlines {
    fn next(&self) -> Option<Instant> {
        match (self.greeting, self.command) {
            (Some(greeting), Some(command)) => Some(greeting.min(command)),
            (greeting, command) => greeting.or(command),
        }
    }

    /// Called after the commands in `used` bytes were answered; `rest` bytes are left of a command that has begun.
    #[inline]
    fn follow(&mut self, session: &RespSession<'_>, used: usize, rest: usize) {
        if rest == 0 {
            self.command = None;
        } else if used > 0 || self.command.is_none() {
            self.command = Some(Instant::now() + COMMAND_TIMEOUT);
        }
        if !session.is_authenticated() {
            self.greeting = self.greeting.or_else(|| Some(Instant::now() + GREETING_TIMEOUT));
        } else if used > 0 {
            self.greeting = None;
        }
    }
}

/// Why a batch of commands ends.
enum BatchEnd {
    /// Further commands may follow.
    More,
    /// The rest is not a complete command.
    Incomplete,
    Malformed(ProtocolError),
}

/// Decides all complete commands of the input; returns how many bytes they have.
async fn run_commands<S>(
    session: &mut RespSession<'_>,
    stream: &mut S,
    parser: &mut Parser,
    input: &[u8],
) -> std::io::Result<usize>
where
    S: AsyncWrite + Unpin,
{
    let mut used = 0;
    loop {
        parser.bounds = session.command_bounds();
        let enqueued = enqueue_throttles(session, parser, input, &mut used);
        session.run_queued();
        let end = match enqueued {
            Err(error) => BatchEnd::Malformed(error),
            Ok(()) if session.replies.bytes.len() > MAX_REPLY_BYTES => BatchEnd::More,
            Ok(()) => run_batch(session, stream, parser, input, &mut used).await?,
        };
        match end {
            BatchEnd::More if !session.is_closing => {}
            BatchEnd::More | BatchEnd::Incomplete => return Ok(used),
            BatchEnd::Malformed(error) => {
                session.replies.error(format_args!("ERR {error}"));
                session.count(1);
                session.is_closing = true;
                return Ok(used);
            }
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

/// Decides the commands up to one that must be decided alone, or the last complete one. An inline command is alone:
/// its arguments are in the parser, not in the input.
async fn run_batch<S>(
    session: &mut RespSession<'_>,
    stream: &mut S,
    parser: &mut Parser,
    input: &[u8],
    used: &mut usize,
) -> std::io::Result<BatchEnd>
where
    S: AsyncWrite + Unpin,
{
    let mut batch = CommandBatch::default();
    let end = loop {
        let length = match parser.parse(&input[*used..]) {
            Ok(Some(length)) => length,
            Ok(None) => break BatchEnd::Incomplete,
            Err(error) => break BatchEnd::Malformed(error),
        };
        if let Some(args) = parser.inline_args() {
            if !batch.is_empty() {
                break BatchEnd::More; // it is parsed again
            }
            let mut single = CommandBatch::default();
            single.add(session, &args);
            single.run(session, stream).await?;
            *used += length;
            parser.next();
            return Ok(BatchEnd::More);
        }
        batch.add(session, &parser.args(&input[*used..]));
        *used += length;
        parser.next();
        if batch.is_full() {
            break BatchEnd::More;
        }
    };
    batch.run(session, stream).await?;
    Ok(end)
}

/// Sends the replies; a client that does not read them is disconnected.
async fn send<S>(stream: &mut S, session: &mut RespSession<'_>) -> std::io::Result<()>
where
    S: AsyncWrite + Unpin,
{
    send_replies(stream, &mut session.replies.bytes, READ_BYTES).await
}
