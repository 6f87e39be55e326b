//! One call: messages in both directions over a stream of HTTP/2 (gRPC over HTTP/2, *Length-Prefixed-Message*).

use std::future::poll_fn;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use tokio::time::timeout;

use super::protobuf::WriteFields;
use super::status::{CallError, Code, ok_trailers};
use crate::connection::WRITE_TIMEOUT;

/// Longer messages are rejected.
pub const MAX_MESSAGE_BYTES: usize = 256 << 10;
/// Compressed flag and length.
pub const PREFIX_BYTES: usize = 5;
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// The messages that a client sends. Their bytes count against the windows of the stream and of the connection until
/// the next message is asked for, or until this is dropped: so the window of the connection bounds them all.
pub struct Incoming {
    body: RecvStream,
    buffered: BytesMut,
    /// Bytes of the last message, with its prefix, that the windows still count.
    taken: usize,
}

impl Incoming {
    pub fn new(body: RecvStream) -> Incoming {
        Incoming { body, buffered: BytesMut::new(), taken: 0 }
    }

    /// The only message of a unary call, which must have arrived within a timeout.
    pub async fn single(&mut self, within: Duration) -> Result<Bytes, CallError> {
        let read = async {
            let message = self.read().await?;
            let message = message.ok_or_else(|| CallError::invalid("the call has no message"))?;
            match self.read().await? {
                None => Ok(message),
                Some(_) => Err(CallError::invalid("the call has more than one message")),
            }
        };
        timeout(within, read).await.unwrap_or_else(|_| Err(too_slow()))
    }

    /// The next message; `None` at the end. It must begin before `idle` has passed, and then arrive within `within`.
    pub async fn next(&mut self, idle: Duration, within: Duration) -> Result<Option<Bytes>, CallError> {
        let taken = std::mem::take(&mut self.taken);
        self.release(taken);
        while self.buffered.is_empty() {
            let data = timeout(idle, self.data()).await.unwrap_or_else(|_| Err(too_slow()))?;
            let Some(data) = data else { return Ok(None) };
            self.buffer(data);
        }
        timeout(within, self.read()).await.unwrap_or_else(|_| Err(too_slow()))
    }

    async fn read(&mut self) -> Result<Option<Bytes>, CallError> {
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(Some(message));
            }
            let Some(data) = self.data().await? else {
                return match self.buffered.is_empty() {
                    true => Ok(None),
                    false => Err(CallError::invalid("the stream ends inside a message")),
                };
            };
            self.buffer(data);
        }
    }

    async fn data(&mut self) -> Result<Option<Bytes>, CallError> {
        let Some(data) = poll_fn(|cx| self.body.poll_data(cx)).await else { return Ok(None) };
        data.map(Some).map_err(|_| CallError::new(Code::Internal, "the stream was reset"))
    }

    fn buffer(&mut self, data: Bytes) {
        // A message is usually one frame: it is not copied. A part is, since a frame is part of a larger buffer.
        if self.buffered.is_empty() && message_length(&data).is_some_and(|length| length <= data.len()) {
            self.buffered = BytesMut::from(data);
        } else {
            self.buffered.extend_from_slice(&data);
        }
    }

    /// Takes a message that has arrived as a whole.
    fn take_message(&mut self) -> Result<Option<Bytes>, CallError> {
        let Some(with_prefix) = message_length(&self.buffered) else { return Ok(None) };
        if self.buffered[0] != 0 {
            let message = "compressed messages are not supported: send grpc-encoding: identity";
            return Err(CallError::new(Code::Unimplemented, message));
        }
        let length = with_prefix - PREFIX_BYTES;
        if length > MAX_MESSAGE_BYTES {
            let message = format!("the message has {length} bytes: at most {MAX_MESSAGE_BYTES}");
            return Err(CallError::new(Code::ResourceExhausted, message));
        }
        if self.buffered.len() < with_prefix {
            return Ok(None);
        }
        self.taken += with_prefix;
        self.buffered.advance(PREFIX_BYTES);
        Ok(Some(self.buffered.split_to(length).freeze()))
    }

    fn release(&mut self, bytes: usize) {
        self.body.flow_control().release_capacity(bytes).ok(); // an error: the stream was reset
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.release(self.taken + self.buffered.len());
    }
}

/// The length of the message that `bytes` begin with, its prefix included; `None` without a whole prefix.
fn message_length(bytes: &[u8]) -> Option<usize> {
    let [_compressed, length @ ..] = *bytes.first_chunk::<PREFIX_BYTES>()?;
    Some(PREFIX_BYTES + u32::from_be_bytes(length) as usize)
}

fn too_slow() -> CallError {
    CallError::new(Code::DeadlineExceeded, "the message took too long to arrive")
}

/// The response to a call.
pub struct Outgoing {
    respond: SendResponse<Bytes>,
    stream: Option<SendStream<Bytes>>,
}

impl Outgoing {
    pub fn new(respond: SendResponse<Bytes>) -> Outgoing {
        Outgoing { respond, stream: None }
    }

    /// Sends a message, which is buffered if the client's window has no room: for calls with one or two messages.
    pub fn send(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), h2::Error> {
        let message = with_prefix(write);
        self.stream()?.send_data(message, false)
    }

    /// Sends a message as the client's window has room for it; an error if that takes longer than [`WRITE_TIMEOUT`].
    /// `false` if the client has gone.
    pub async fn send_in_turn(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<bool, CallError> {
        let mut rest = with_prefix(write);
        let Ok(stream) = self.stream() else { return Ok(false) };
        let send = async {
            while !rest.is_empty() {
                stream.reserve_capacity(rest.len());
                let Some(Ok(capacity)) = poll_fn(|cx| stream.poll_capacity(cx)).await else { return false };
                let part = rest.split_to(capacity.min(rest.len()));
                if stream.send_data(part, false).is_err() {
                    return false;
                }
            }
            true
        };
        timeout(WRITE_TIMEOUT, send).await.map_err(|_| not_taken())
    }

    /// The response's stream; its head is sent at the first call.
    fn stream(&mut self) -> Result<&mut SendStream<Bytes>, h2::Error> {
        match &mut self.stream {
            Some(stream) => Ok(stream),
            none => Ok(none.insert(self.respond.send_response(head(), false)?)),
        }
    }

    /// Ends the call.
    pub fn end(mut self, result: Result<(), CallError>) -> Result<(), h2::Error> {
        let Some(mut stream) = self.stream else {
            // Without a message the status is in the headers.
            let mut head = head();
            match result {
                Ok(()) => head.headers_mut().extend(ok_trailers()),
                Err(error) => error.write_to(head.headers_mut()),
            }
            return self.respond.send_response(head, true).map(drop);
        };
        let trailers = match result {
            Ok(()) => ok_trailers(),
            Err(error) => {
                let mut trailers = hyper::HeaderMap::new();
                error.write_to(&mut trailers);
                trailers
            }
        };
        stream.send_trailers(trailers)
    }

    /// Returns when the client has reset the stream or closed the connection.
    pub async fn closed(&mut self) {
        match &mut self.stream {
            Some(stream) => poll_fn(|cx| stream.poll_reset(cx)).await.map(drop).ok(),
            None => poll_fn(|cx| self.respond.poll_reset(cx)).await.map(drop).ok(),
        };
    }
}

fn with_prefix(write: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut bytes = Vec::with_capacity(256);
    bytes.extend_from_slice(&[0; PREFIX_BYTES]);
    write(&mut bytes);
    let length = u32::try_from(bytes.len() - PREFIX_BYTES).expect("responses are short");
    bytes[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    bytes.into()
}

fn not_taken() -> CallError {
    CallError::new(Code::DeadlineExceeded, "the client took too long to receive a message")
}

fn head() -> Response<()> {
    let mut head = Response::new(());
    head.headers_mut().insert(CONTENT_TYPE, GRPC);
    head
}

/// A message with one enum, as the health service has.
pub fn single_varint(number: u32, value: u64) -> impl FnOnce(&mut Vec<u8>) {
    move |message| message.put_varint(number, value)
}
