//! One memcached server: a shared connection behind a breaker.
//!
//! Concurrent batches are combined into one write. Replies arrive in order. A batch whose caller has given up is
//! dropped if it was not sent, and never resent if it was.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use super::wire::{self, MemcachedCommand, MemcachedReply};
use crate::counters::StoreError;
use crate::counters::breaker::{Breaker, ServerHealth};
use crate::counters::store_url::Credentials;

/// Batches in the queue.
const MAX_QUEUED: usize = 4096;
/// Batches sent and not yet answered.
const MAX_IN_FLIGHT: usize = 4096;
/// Batches combined into one write.
const MAX_BATCH: usize = 256;
/// A new connection must reply within this.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// After a connection that lasted less, the next one waits for the breaker's probe.
const MIN_CONNECTION_LIFETIME: Duration = Duration::from_secs(1);
/// Bytes of output that are not yet written.
const MAX_OUTPUT_BYTES: usize = 4 << 20;
const READ_BYTES: usize = 16 * 1024;

#[derive(Debug)]
pub struct MemcachedServer {
    address: Arc<str>,
    breaker: Arc<Breaker>,
    batches: mpsc::Sender<MemcachedBatch>,
}

/// Commands whose replies are delivered together.
#[derive(Debug)]
struct MemcachedBatch {
    commands: Vec<MemcachedCommand>,
    /// `None` if the replies are discarded.
    reply_to: Option<oneshot::Sender<Vec<MemcachedReply>>>,
}

impl MemcachedServer {
    /// Connects once a runtime polls the task, and reconnects whenever the connection is lost.
    pub fn connect(address: &str, credentials: Option<Credentials>) -> MemcachedServer {
        let breaker = Arc::new(Breaker::new(address));
        let (batches, queue) = mpsc::channel(MAX_QUEUED);
        let task = ConnectionTask { address: address.into(), credentials, breaker: breaker.clone(), queue };
        tokio::spawn(task.run());
        MemcachedServer { address: address.into(), breaker, batches }
    }

    /// Whether the breaker admits a request.
    pub fn admit(&self) -> Result<(), StoreError> {
        self.breaker.admit()
    }

    /// The replies to commands, in order.
    pub async fn execute(
        &self,
        commands: Vec<MemcachedCommand>,
        deadline: Instant,
    ) -> Result<Vec<MemcachedReply>, StoreError> {
        self.admit()?;
        let (reply_to, answered) = oneshot::channel();
        let batch = MemcachedBatch { commands, reply_to: Some(reply_to) };
        self.batches.try_send(batch).map_err(|_| StoreError::Busy { server: self.name() })?;
        match timeout_at(deadline, answered).await {
            Ok(Ok(replies)) => {
                self.breaker.record_success();
                Ok(replies)
            }
            Ok(Err(_)) => {
                Err(StoreError::Unreachable { server: self.name(), reason: "the connection is lost".into() })
            }
            Err(_) => {
                self.breaker.record_failure("it does not answer in time");
                Err(StoreError::Deadline { server: self.name() })
            }
        }
    }

    /// The reply to one command.
    pub async fn execute_one(
        &self,
        command: MemcachedCommand,
        deadline: Instant,
    ) -> Result<MemcachedReply, StoreError> {
        let mut replies = self.execute(vec![command], deadline).await?;
        replies.pop().ok_or_else(|| self.unexpected_reply())
    }

    /// Sends commands whose replies are discarded, after everything queued before. They are dropped if they cannot be
    /// queued.
    pub fn execute_detached(&self, commands: Vec<MemcachedCommand>) {
        if self.breaker.admit().is_ok() {
            let _ = self.batches.try_send(MemcachedBatch { commands, reply_to: None });
        }
    }

    pub fn health(&self) -> ServerHealth {
        self.breaker.health()
    }

    pub fn name(&self) -> String {
        self.address.to_string()
    }

    pub fn refused(&self, reason: impl Into<String>) -> StoreError {
        StoreError::Refused { server: self.name(), reason: reason.into() }
    }

    pub fn unexpected_reply(&self) -> StoreError {
        self.refused("the response does not match the request")
    }
}

/// The task that owns the connection.
struct ConnectionTask {
    address: Box<str>,
    credentials: Option<Credentials>,
    breaker: Arc<Breaker>,
    queue: mpsc::Receiver<MemcachedBatch>,
}

/// A batch that was sent.
struct InFlight {
    first_opaque: u32,
    expected: usize,
    replies: Vec<MemcachedReply>,
    reply_to: Option<oneshot::Sender<Vec<MemcachedReply>>>,
}

impl ConnectionTask {
    async fn run(mut self) {
        while !self.queue.is_closed() || !self.queue.is_empty() {
            match timeout(CONNECT_TIMEOUT, open_connection(&self.address, self.credentials.as_ref())).await {
                Ok(Ok(stream)) => {
                    self.breaker.probe_succeeded();
                    let connected_at = Instant::now();
                    match self.serve(stream).await {
                        Ok(()) => return,
                        // Possibly closed for idleness: no outage if a new connection can be established.
                        Err(_)
                            if connected_at.elapsed() > MIN_CONNECTION_LIFETIME
                                && !self.breaker.is_open() =>
                        {
                            continue;
                        }
                        Err(reason) => self.breaker.trip(&reason),
                    }
                }
                Ok(Err(reason)) => self.fail(&reason),
                Err(_) => self.fail("it accepts connections and does not answer"),
            }
            // Fail the queued batches at once: their callers would wait until their deadline.
            while self.queue.try_recv().is_ok() {}
            self.breaker.probe_due().await;
        }
    }

    fn fail(&self, reason: &str) {
        self.breaker.trip(reason);
        self.breaker.probe_failed(reason);
    }

    /// Runs the connection until it fails; `Ok` once all senders are dropped.
    async fn serve(&mut self, mut stream: TcpStream) -> Result<(), String> {
        let (mut reader, mut writer) = stream.split();
        let mut in_flight: VecDeque<InFlight> = VecDeque::new();
        let mut input = Vec::with_capacity(READ_BYTES);
        let mut output = Vec::new();
        let mut batches = Vec::new();
        let mut opaque = 0;
        loop {
            let room = in_flight.len() < MAX_IN_FLIGHT && output.len() < MAX_OUTPUT_BYTES;
            tokio::select! {
                biased; // reads first, so that nothing is sent on a connection that is known to be closed
                read = reader.read_buf(&mut input) => {
                    if read.map_err(|error| error.to_string())? == 0 {
                        return Err("it closed the connection".to_owned());
                    }
                    deliver_replies(&mut input, &mut in_flight)?;
                }
                wrote = writer.write(&output), if !output.is_empty() => {
                    output.drain(..wrote.map_err(|error| error.to_string())?);
                }
                count = self.queue.recv_many(&mut batches, MAX_BATCH), if room => {
                    if count == 0 {
                        return Ok(());
                    }
                    batches.drain(..).for_each(|each| write_batch(each, &mut output, &mut opaque, &mut in_flight));
                }
                // The breaker has opened on missing replies: only a new connection proves that the server is alive.
                () = self.breaker.probe_due() => return Err("it does not answer".to_owned()),
            }
        }
    }
}

fn write_batch(
    batch: MemcachedBatch,
    output: &mut Vec<u8>,
    opaque: &mut u32,
    in_flight: &mut VecDeque<InFlight>,
) {
    let MemcachedBatch { commands, reply_to } = batch;
    if reply_to.as_ref().is_some_and(oneshot::Sender::is_closed) {
        return;
    }
    let first_opaque = *opaque;
    let expected = commands.len();
    for command in commands {
        command.write(output, *opaque);
        *opaque = opaque.wrapping_add(1);
    }
    in_flight.push_back(InFlight { first_opaque, expected, replies: Vec::with_capacity(expected), reply_to });
}

fn deliver_replies(input: &mut Vec<u8>, in_flight: &mut VecDeque<InFlight>) -> Result<(), String> {
    let mut consumed = 0;
    while let Some(read) = wire::parse_reply(&input[consumed..]).map_err(|garbage| garbage.to_string())? {
        consumed += read.len;
        let Some(first) = in_flight.front_mut() else {
            return Err("a response without a request".to_owned());
        };
        let expected = first.first_opaque.wrapping_add(first.replies.len() as u32);
        if read.opaque.is_some_and(|opaque| opaque != expected) {
            return Err("a response out of order".to_owned());
        }
        first.replies.push(read.reply);
        if first.replies.len() == first.expected
            && let Some(InFlight { reply_to: Some(answer), replies, .. }) = in_flight.pop_front()
        {
            let _ = answer.send(replies); // the caller may have given up
        }
    }
    input.drain(..consumed);
    Ok(())
}

/// Opens a connection and waits for a first reply.
pub(super) async fn open_connection(
    address: &str,
    credentials: Option<&Credentials>,
) -> Result<TcpStream, String> {
    let mut stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    if let Some(Credentials { user, password }) = credentials {
        let secret = format!("{user} {password}");
        let request = format!("set login 0 0 {}\r\n{secret}\r\n", secret.len());
        let answer = request_line(&mut stream, request.as_bytes()).await?;
        if answer != "STORED" {
            return Err(format!("it rejects the user or the password: {answer}"));
        }
    }
    match request_line(&mut stream, b"mn\r\n").await?.as_str() {
        "MN" => Ok(stream),
        "CLIENT_ERROR unauthenticated" => Err("it requires a user and a password".to_owned()),
        "ERROR" => Err("it does not support meta commands: memcached 1.6 or later is needed".to_owned()),
        other => Err(format!("not a memcached response: {other}")),
    }
}

/// Sends one line and reads one line, on a connection that is not yet shared.
async fn request_line(stream: &mut TcpStream, request: &[u8]) -> Result<String, String> {
    const MAX_ANSWER_BYTES: usize = 512;
    stream.write_all(request).await.map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n") {
        let read = stream.read_buf(&mut answer).await.map_err(|error| error.to_string())?;
        if read == 0 {
            return Err("it closed the connection".to_owned());
        }
        if answer.len() > MAX_ANSWER_BYTES {
            break;
        }
    }
    answer.truncate(MAX_ANSWER_BYTES);
    Ok(answer.trim_ascii_end().escape_ascii().to_string())
}
