//! One pipelined connection.
//!
//! Replies arrive in request order. A caller that times out leaves its entry in the queue, so that later replies still
//! match their requests. The number of requests in flight is bounded. Nothing is resent here.
//!
//! Requests of the script that are ready at the same time share a call ([`SharedCall`]). Each of them yields before it has
//! the call sent, so that others of its thread can join; the first that goes on does it for all.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use tollgate::internal::lock;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Notify, oneshot};

use super::call::ScriptCall;
use super::resp::{RedisReply, RespDecoder, encode_command};
use super::shared_call::SharedCall;
use super::shared_reply::{PendingShare, SharedReply};

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
    /// In request order, except for the open call.
    pending: VecDeque<ReplyOwner>,
    /// Requests that wait for a reply.
    in_flight: usize,
    /// Requests that are not in `out` yet.
    open: Option<(SharedCall, SharedReply)>,
    close_reason: Option<String>,
}

/// Who waits for a reply.
enum ReplyOwner {
    Discarded,
    Command(oneshot::Sender<RedisReply>),
    /// The number of counters of each request.
    Shared(SharedReply, Vec<usize>),
}

/// How a request is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Sending {
    /// A request of the script may share its call.
    #[default]
    Shared,
    /// In a call of its own: a cluster refuses several keys of a slot that is being moved.
    Alone,
    /// In a call of its own, directly after `ASKING`.
    Asking,
}

/// Whether a request has to have its call sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Joined {
    /// It has opened the call.
    First,
    Later,
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

    /// Queues the request that `write` encodes.
    pub(super) fn send(
        &self,
        sending: Sending,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<PendingReply, SendError> {
        let mut queue = self.lock_for_request()?;
        queue.close_call();
        queue.push_asking(sending);
        let (sender, pending) = oneshot::channel();
        queue.pending.push_back(ReplyOwner::Command(sender));
        queue.in_flight += 1;
        write(&mut queue.out);
        drop(queue);
        self.send_queued();
        Ok(pending)
    }

    /// Adds a request of the script to the open call, or opens one. It is sent by [`send_queued`](Self::send_queued).
    pub(super) fn share(
        &self,
        sending: Sending,
        request: &ScriptCall<'_>,
        until: Option<u64>,
    ) -> Result<(PendingShare, Joined), SendError> {
        let mut queue = self.lock_for_request()?;
        queue.in_flight += 1;
        if sending == Sending::Shared
            && let Some((call, reply)) = &mut queue.open
            && call.admits(request, until)
        {
            call.add(request, until);
            return Ok((reply.join(), Joined::Later));
        }
        queue.close_call();
        queue.push_asking(sending);
        let reply = SharedReply::default();
        let share = reply.join();
        queue.open = Some((SharedCall::new(request, until), reply));
        if sending != Sending::Shared {
            queue.close_call();
        }
        Ok((share, Joined::First))
    }

    /// Has everything that is queued sent.
    pub(super) fn send_queued(&self) {
        self.output_ready.notify_one();
    }

    /// Has a call sent that is still open: the task that opened it may be suspended.
    pub(super) fn send_open_call(&self) {
        if self.lock().open.is_some() {
            self.send_queued();
        }
    }

    fn lock_for_request(&self) -> Result<MutexGuard<'_, PipelineQueue>, SendError> {
        let queue = self.lock();
        match &queue.close_reason {
            Some(reason) => Err(SendError::Closed(reason.clone())),
            None if queue.in_flight >= MAX_IN_FLIGHT => Err(SendError::Full),
            None => Ok(queue),
        }
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
            queue.open = None;
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
        queue.close_call();
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
            queue.in_flight -= owner.requests();
            match owner {
                ReplyOwner::Discarded => {}
                // The receiver may be gone: its caller has timed out.
                ReplyOwner::Command(owner) => drop(owner.send(reply)),
                ReplyOwner::Shared(owner, counters) => owner.complete(reply, &counters),
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, PipelineQueue> {
        lock(&self.queue)
    }
}

impl PipelineQueue {
    /// Encodes the open call.
    fn close_call(&mut self) {
        if let Some((call, reply)) = self.open.take() {
            let counters = call.write(&mut self.out);
            self.pending.push_back(ReplyOwner::Shared(reply, counters));
        }
    }

    fn push_asking(&mut self, sending: Sending) {
        if sending == Sending::Asking {
            self.pending.push_back(ReplyOwner::Discarded);
            self.out.extend_from_slice(&encode_command(&["ASKING"]));
        }
    }
}

impl ReplyOwner {
    fn requests(&self) -> usize {
        match self {
            ReplyOwner::Discarded => 0,
            ReplyOwner::Command(_) => 1,
            ReplyOwner::Shared(_, counters) => counters.len(),
        }
    }
}
