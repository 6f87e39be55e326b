//! The Redis protocol: `CL.THROTTLE` as redis-cell answers it, decisions by the rules, and what clients send besides.
//!
//! The commands that one read brings are parsed first and decided together; their replies are one write.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::config::ListenAddress;
use crate::connection::{
    AddressLimiter, ClientSocket, HEADER_TIMEOUT, Listener, Shutdown, WRITE_TIMEOUT, WorkerService,
    default_workers, serve_on_workers, shutdown_requested,
};
use crate::gate::Gate;
use crate::log_rate::LogLimiter;
use crate::tokens::{Role, Tokens};

mod batch;
mod check;
mod command;
mod frame;
mod reply;
mod session;
#[cfg(feature = "testing")]
pub mod testing;
mod throttle;

use batch::CommandBatch;
use frame::Parser;
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
async fn serve_client(
    server: &RespServer,
    mut stream: ClientSocket,
    peer: SocketAddr,
    mut shutdown: Shutdown,
) {
    let id = server.connections.fetch_add(1, Ordering::Relaxed) + 1;
    let mut session = RespSession::new(server, peer, id);
    let mut input = Vec::with_capacity(READ_BYTES);
    let mut parser = Parser::default();
    let stop = shutdown_requested(&mut shutdown);
    tokio::pin!(stop);
    loop {
        let read = tokio::select! {
            biased;
            read = read_more(&mut stream, &mut input) => read,
            () = &mut stop => return,
        };
        if !matches!(read, Ok(1..)) {
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

/// Reads what has arrived. Between commands a client may be silent; a command that has begun must go on.
async fn read_more(stream: &mut ClientSocket, input: &mut Vec<u8>) -> std::io::Result<usize> {
    let has_begun = !input.is_empty();
    input.reserve(READ_BYTES);
    let read = stream.read_buf(input);
    if !has_begun {
        return read.await;
    }
    timeout(HEADER_TIMEOUT, read).await.unwrap_or(Err(std::io::ErrorKind::TimedOut.into()))
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
        let mut batch = CommandBatch::default();
        let parsed = loop {
            match parser.parse(&input[used..]) {
                // Its arguments are in the parser, not in the input: it is decided alone.
                Ok(Some(_)) if parser.inline_args().is_some() && !batch.is_empty() => break Ok(Some(())),
                Ok(Some(length)) => {
                    used += length;
                    if let Some(args) = parser.inline_args() {
                        let mut single = CommandBatch::default();
                        single.add(session, &args);
                        single.run(session).await;
                        parser.next();
                        break Ok(Some(()));
                    }
                    batch.add(session, &parser.args(&input[used - length..]));
                    parser.next();
                    if batch.is_full() {
                        break Ok(Some(()));
                    }
                }
                Ok(None) => break Ok(None),
                Err(error) => break Err(error),
            }
        };
        batch.run(session).await;
        if let Err(error) = &parsed {
            session.replies.error(format_args!("ERR {error}"));
            session.count(1);
            session.is_closing = true;
        }
        if session.is_closing || parsed == Ok(None) {
            return Ok(used);
        }
        if session.replies.bytes.len() > MAX_REPLY_BYTES {
            send(stream, session).await?;
        }
    }
}

/// Sends the replies; a client that does not read them is disconnected.
async fn send(stream: &mut ClientSocket, session: &mut RespSession<'_>) -> std::io::Result<()> {
    let replies = &mut session.replies.bytes;
    if replies.is_empty() {
        return Ok(());
    }
    let sent = match stream.try_write(replies) {
        Ok(sent) => sent,
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => 0,
        Err(error) => return Err(error),
    };
    if sent < replies.len() {
        let rest = async {
            stream.write_all(&replies[sent..]).await?;
            stream.flush().await
        };
        timeout(WRITE_TIMEOUT, rest).await.unwrap_or(Err(std::io::ErrorKind::TimedOut.into()))?;
    }
    replies.clear();
    if replies.capacity() > READ_BYTES {
        *replies = Vec::new();
    }
    Ok(())
}
