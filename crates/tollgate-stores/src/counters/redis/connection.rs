//! One connection: requests that come at the same time share its round trips.
//!
//! A request is written once, answered in its turn, or lost with the connection; nothing is ever sent again here.
//! The requests under way are bounded. Whoever stops waiting leaves its place in the queue behind, so that
//! answers keep finding their owners.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Notify, oneshot};

use super::resp::{RedisReply, RespDecoder};

/// Requests under way on one connection, at the most.
pub(super) const MAX_IN_FLIGHT: usize = 8192;
const READ_BYTES: usize = 64 * 1024;
/// A buffer that a burst has made larger is given back.
const MAX_RETAINED_BYTES: usize = 1024 * 1024;

pub(super) trait RedisStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> RedisStream for S {}

pub(super) struct RedisConnection {
    queue: Mutex<PipelineQueue>,
    /// Something is to be written.
    output_ready: Notify,
    /// It is closed.
    closed: Notify,
}

#[derive(Default)]
struct PipelineQueue {
    out: Vec<u8>,
    /// In the order of their requests; `None` for an answer that nobody wants.
    pending: VecDeque<Option<oneshot::Sender<RedisReply>>>,
    close_reason: Option<String>,
}

/// Why a request could not be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum SendError {
    Full,
    Closed(String),
}

/// The answer to come; an error if the connection is lost before.
pub(super) type PendingReply = oneshot::Receiver<RedisReply>;

impl RedisConnection {
    /// Serves a stream until it ends, in the background.
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

    /// Queues a request that `write` writes, right behind a command whose own answer does not matter, if there
    /// is one.
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

    /// Gives everybody up who still waits.
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
            // Whoever is about to ask joins this write.
            tokio::task::yield_now().await;
            while self.take_output(&mut bytes)? {
                stream.write_all(&bytes).await?;
            }
        }
    }

    /// What is to be written now; `false` if nothing is.
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

    /// Hands all whole replies out.
    fn deliver(&self, decoder: &mut RespDecoder, bytes: &[u8]) -> io::Result<()> {
        let garbage = || io::Error::new(io::ErrorKind::InvalidData, "it does not speak the Redis protocol");
        let mut replies = Vec::new();
        while let Some(reply) = decoder.next(bytes).map_err(|_| garbage())? {
            replies.push(reply);
        }
        let mut queue = self.lock();
        for reply in replies {
            let owner = queue.pending.pop_front().ok_or_else(garbage)?;
            // Who has stopped waiting does not want it any more.
            owner.map(|owner| owner.send(reply).ok());
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, PipelineQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
