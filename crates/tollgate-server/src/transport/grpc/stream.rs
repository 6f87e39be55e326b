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

/// Longer messages are rejected.
pub const MAX_MESSAGE_BYTES: usize = 256 << 10;
/// Compressed flag and length.
const PREFIX_BYTES: usize = 5;
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// The messages that a client sends.
pub struct Incoming {
    body: RecvStream,
    buffered: BytesMut,
}

impl Incoming {
    pub fn new(body: RecvStream) -> Incoming {
        Incoming { body, buffered: BytesMut::new() }
    }

    /// The only message of a unary call, which must have arrived within a timeout.
    pub async fn single(mut self, within: Duration) -> Result<Bytes, CallError> {
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

    /// The next message; `None` at the end.
    pub async fn next(&mut self, within: Duration) -> Result<Option<Bytes>, CallError> {
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
            // A message is usually one frame: it is not copied.
            if self.buffered.is_empty() {
                self.buffered = BytesMut::from(data);
            } else {
                self.buffered.extend_from_slice(&data);
            }
        }
    }

    async fn data(&mut self) -> Result<Option<Bytes>, CallError> {
        let Some(data) = poll_fn(|cx| self.body.poll_data(cx)).await else { return Ok(None) };
        let data = data.map_err(|_| CallError::new(Code::Internal, "the stream was reset"))?;
        self.body.flow_control().release_capacity(data.len()).ok();
        Ok(Some(data))
    }

    /// Takes a message that has arrived as a whole.
    fn take_message(&mut self) -> Result<Option<Bytes>, CallError> {
        let Some((prefix, rest)) = self.buffered.split_first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
        let [compressed, length @ ..] = *prefix;
        let length = u32::from_be_bytes(length) as usize;
        if compressed != 0 {
            let message = "compressed messages are not supported: send grpc-encoding: identity";
            return Err(CallError::new(Code::Unimplemented, message));
        }
        if length > MAX_MESSAGE_BYTES {
            let message = format!("the message has {length} bytes: at most {MAX_MESSAGE_BYTES}");
            return Err(CallError::new(Code::ResourceExhausted, message));
        }
        if rest.len() < length {
            return Ok(None);
        }
        self.buffered.advance(PREFIX_BYTES);
        Ok(Some(self.buffered.split_to(length).freeze()))
    }
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

    /// Sends a message.
    pub fn send(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), h2::Error> {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&[0; PREFIX_BYTES]);
        write(&mut bytes);
        let length = u32::try_from(bytes.len() - PREFIX_BYTES).expect("responses are short");
        bytes[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => self.stream.insert(self.respond.send_response(head(), false)?),
        };
        stream.send_data(bytes.into(), false)
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

fn head() -> Response<()> {
    let mut head = Response::new(());
    head.headers_mut().insert(CONTENT_TYPE, GRPC);
    head
}

/// A message with one enum, as the health service has.
pub fn single_varint(number: u32, value: u64) -> impl FnOnce(&mut Vec<u8>) {
    move |message| message.put_varint(number, value)
}
