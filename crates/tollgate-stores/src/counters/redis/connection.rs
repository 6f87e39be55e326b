//! One pipelined connection.
//!
//! Replies arrive in request order. A caller that times out leaves its entry in the queue, so that later replies still
//! match their requests. The number of requests in flight is bounded. Nothing is resent here.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use tollgate::internal::lock;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Notify, oneshot};

use super::resp::{RedisReply, RespDecoder};

/// Maximum number of requests in flight on one connection.
pub(super) const MAX_IN_FLIGHT: usize = 8192;
const READ_BYTES: usize = 64 * 1024;
/// A buffer that grew larger in a burst is freed.
const MAX_RETAINED_BYTES: usize = 1024 * 1024;

pub(super) trait RedisStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> RedisStream for S {}

pub(super) struct RedisConnection {
    queue: Mutex<PipelineQueue>,
    /// Signalled when there is output to write.
    output_ready: Notify,
    /// Signalled when the connection is closed.
    closed: Notify,
}

#[derive(Default)]
struct PipelineQueue {
    out: Vec<u8>,
    /// In request order; `None` if the reply is discarded.
    pending: VecDeque<Option<oneshot::Sender<RedisReply>>>,
    close_reason: Option<String>,
}

/// Why a request was not sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum SendError {
    Full,
    Closed(String),
}

/// The reply to come; an error if the connection is lost first.
pub(super) type PendingReply = oneshot::Receiver<RedisReply>;

impl RedisConnection {
    /// Runs the connection in the background until the stream ends.
    pub(super) fn spawn(stream: Box<dyn RedisStream>) -> Arc<RedisConnection> {
        let connection = Arc::new(RedisConnection {
            queue: Mutex::default(),
            output_ready: Notify::new(),
            closed: Notify::new(),
        });
        let (reading, writing) = tokio::io::split(stream);
        let reader = Arc::clone(&connection);
        let writer = Arc::clone(&connection);
        tokio::spawn(async move {
            let reason = match reader.read(reading).await {
                Ok(()) => "the server closed the connection".to_owned(),
                Err(error) => error.to_string(),
            };
            reader.close(&reason);
        });
        tokio::spawn(async move {
            if let Err(error) = writer.write(writing).await {
                writer.close(&error.to_string());
            }
        });
        connection
    }

    /// Queues the request that `write` encodes, directly after the command `before`, if any, whose reply is discarded.
    pub(super) fn send(
        &self,
        before: Option<&[u8]>,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<PendingReply, SendError> {
        let mut queue = self.lock();
        if let Some(reason) = &queue.close_reason {
            return Err(SendError::Closed(reason.clone()));
        }
        if queue.pending.len() >= MAX_IN_FLIGHT {
            return Err(SendError::Full);
        }
        if let Some(before) = before {
            queue.pending.push_back(None);
            queue.out.extend_from_slice(before);
        }
        let (sender, pending) = oneshot::channel();
        queue.pending.push_back(Some(sender));
        write(&mut queue.out);
        drop(queue);
        self.output_ready.notify_one();
        Ok(pending)
    }

    /// Why it is closed; `None` while it is open.
    pub(super) fn close_reason(&self) -> Option<String> {
        self.lock().close_reason.clone()
    }

    /// Returns when it is closed.
    pub(super) async fn wait_closed(&self) -> String {
        loop {
            let over = self.closed.notified();
            if let Some(reason) = self.close_reason() {
                return reason;
            }
            over.await;
        }
    }

    /// Closes the connection and fails all pending requests.
    pub(super) fn close(&self, reason: &str) {
        let mut queue = self.lock();
        if queue.close_reason.is_none() {
            queue.close_reason = Some(reason.to_owned());
            queue.pending.clear();
            queue.out = Vec::new();
        }
        drop(queue);
        self.output_ready.notify_one();
        self.closed.notify_waiters();
    }

    async fn write(&self, mut stream: WriteHalf<Box<dyn RedisStream>>) -> io::Result<()> {
        let mut bytes = Vec::new();
        loop {
            self.output_ready.notified().await;
            // Yield once, so that requests of other tasks that are ready go into the same write.
            tokio::task::yield_now().await;
            while self.take_output(&mut bytes)? {
                stream.write_all(&bytes).await?;
            }
        }
    }

    /// Moves queued output into `bytes`; `false` if there is none.
    fn take_output(&self, bytes: &mut Vec<u8>) -> io::Result<bool> {
        let mut queue = self.lock();
        if queue.close_reason.is_some() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        bytes.clear();
        if bytes.capacity() > MAX_RETAINED_BYTES {
            *bytes = Vec::new();
        }
        std::mem::swap(bytes, &mut queue.out);
        Ok(!bytes.is_empty())
    }

    async fn read(&self, mut stream: ReadHalf<Box<dyn RedisStream>>) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(READ_BYTES);
        let mut decoder = RespDecoder::default();
        loop {
            let read = tokio::select! {
                read = stream.read_buf(&mut bytes) => read?,
                _ = self.wait_closed() => return Ok(()),
            };
            if read == 0 {
                return Ok(());
            }
            self.deliver(&mut decoder, &bytes)?;
            decoder.trim(&mut bytes);
            if bytes.is_empty() && bytes.capacity() > MAX_RETAINED_BYTES {
                bytes = Vec::with_capacity(READ_BYTES);
            }
        }
    }

    /// Delivers all complete replies.
    fn deliver(&self, decoder: &mut RespDecoder, bytes: &[u8]) -> io::Result<()> {
        let garbage = || io::Error::new(io::ErrorKind::InvalidData, "not a reply of the Redis protocol");
        let mut replies = Vec::new();
        while let Some(reply) = decoder.next(bytes).map_err(|_| garbage())? {
            replies.push(reply);
        }
        let mut queue = self.lock();
        for reply in replies {
            let owner = queue.pending.pop_front().ok_or_else(garbage)?;
            // The receiver may be gone: its caller has timed out.
            owner.map(|owner| owner.send(reply).ok());
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, PipelineQueue> {
        lock(&self.queue)
    }
}
