//! Plain requests of an HTTP/1.1 connection: parsed in the read buffer and answered without hyper.
//!
//! A request is plain if nothing about it needs a decision ([`plain_head`](super::plain_head)) and if all of it has arrived
//! with its head. At the first request that is not, the connection is left to hyper for good, with the bytes that were read;
//! so every rejection of a malformed request is hyper's. What a plain request means and what becomes of it is decided by the same
//! exchange.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use bytes::{Buf, Bytes};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use hyper::{Method, Request, Response};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::Instant;

use super::client_connection::IDLE_TIMEOUT;
use super::plain_head::{self, PlainRequestHead};
use crate::connection::{ReadEvent, ReadWatch, Shutdown, WriteTimeoutStream};
use crate::http1::HeadSearch;
use crate::transport::proxy::body::{RequestBody, ResponseBody};
use crate::transport::proxy::exchange::ConnectionContext;
use crate::transport::proxy::respond::response_writer::{
    Coding, MAX_COPIED_BYTES, ResponseWriter, StartedResponse,
};
use crate::transport::proxy::verbatim::{
    GeneralExchange, VerbatimBuffers, VerbatimEnd, VerbatimExchange, VerbatimRequest, VerbatimStep,
};

/// Longer requests are not plain.
const MAX_REQUEST_BYTES: usize = 16 << 10;
/// The buffer of an idle connection.
const IDLE_BYTES: usize = 1 << 10;

/// How a connection goes on.
pub enum PlainRequestsEnd<S> {
    Closed,
    /// With the bytes from the start of a request that is not plain.
    NotPlain(S, Bytes),
}

/// A connection while its requests are plain.
pub struct PlainRequests<S> {
    stream: WriteTimeoutStream<S>,
    context: Arc<ConnectionContext>,
    input: Vec<u8>,
    search: HeadSearch,
    buffers: VerbatimBuffers,
    writer: ResponseWriter,
}

/// What the input begins with.
enum NextRequest {
    Request(PlainRequest),
    Partial,
    NotPlain,
}

enum PlainRequest {
    /// Admitted, and to be forwarded as it was written.
    Verbatim(VerbatimExchange),
    Decided(Box<GeneralExchange>),
    New(Box<Request<RequestBody>>),
}

impl<S: AsyncRead + AsyncWrite + Unpin> PlainRequests<S> {
    /// `read` was read from the stream already.
    pub fn new(stream: S, read: &[u8], context: Arc<ConnectionContext>) -> PlainRequests<S> {
        let mut input = Vec::with_capacity(IDLE_BYTES);
        input.extend_from_slice(read);
        PlainRequests {
            stream: WriteTimeoutStream::new(stream),
            context,
            input,
            search: HeadSearch::default(),
            buffers: VerbatimBuffers::default(),
            writer: ResponseWriter::default(),
        }
    }

    /// Answers requests until the connection ends, or until one is not plain.
    pub async fn answer_all(mut self, shutdown: &Shutdown) -> io::Result<PlainRequestsEnd<S>> {
        let mut reads = ReadWatch::new(shutdown);
        loop {
            let deadline = Instant::now() + IDLE_TIMEOUT;
            let request = loop {
                match self.take_request() {
                    NextRequest::Request(request) => break request,
                    NextRequest::Partial => {}
                    NextRequest::NotPlain => {
                        return Ok(PlainRequestsEnd::NotPlain(self.stream.into_inner(), self.input.into()));
                    }
                }
                grow(&mut self.input);
                match reads.read(&mut self.stream, &mut self.input, Some(deadline)).await {
                    ReadEvent::Read(Ok(1..)) => {}
                    ReadEvent::Read(end) => return end.map(|_| PlainRequestsEnd::Closed),
                    ReadEvent::DeadlinePassed | ReadEvent::Stopped => return Ok(PlainRequestsEnd::Closed),
                }
            };
            // Boxed: the futures are large, and an idle connection has none.
            let is_open = match request {
                PlainRequest::Verbatim(exchange) => {
                    Box::pin(self.exchange_verbatim(exchange, &mut reads, shutdown)).await?
                }
                PlainRequest::Decided(exchange) => {
                    let method = exchange.method.clone();
                    let context = Arc::clone(&self.context);
                    let served = Box::pin(async move { context.exchange_decided(*exchange).await });
                    Box::pin(self.answer(served, &method, shutdown)).await?
                }
                PlainRequest::New(request) => {
                    let method = request.method().clone();
                    let context = Arc::clone(&self.context);
                    let served = Box::pin(async move { context.exchange(*request).await });
                    Box::pin(self.answer(served, &method, shutdown)).await?
                }
            };
            if !is_open {
                return Ok(PlainRequestsEnd::Closed);
            }
            if self.input.is_empty() && self.input.capacity() > IDLE_BYTES {
                self.input = Vec::with_capacity(IDLE_BYTES);
            }
        }
    }

    /// Forwards an admitted request; returns whether the connection stays open.
    async fn exchange_verbatim(
        &mut self,
        exchange: VerbatimExchange,
        reads: &mut ReadWatch,
        shutdown: &Shutdown,
    ) -> io::Result<bool> {
        let method = exchange.method.clone();
        let work = self.context.exchange_verbatim(exchange, &self.buffers, &mut self.writer, reads, shutdown);
        let done = until_disconnect(&mut self.stream, &mut self.input, pin!(work)).await;
        self.buffers.shrink();
        match done {
            None => Ok(false),
            Some(VerbatimEnd::Written { closes }) => {
                self.send().await?;
                self.writer.shrink();
                self.end(!closes).await
            }
            Some(VerbatimEnd::Response(response)) => {
                let is_last = shutdown.has_changed().unwrap_or(true);
                let is_open = self.respond(*response, &method, is_last).await?;
                self.end(is_open).await
            }
        }
    }

    /// Answers a request with what is served; returns whether the connection stays open.
    async fn answer(
        &mut self,
        served: impl Future<Output = Response<ResponseBody>> + Unpin,
        method: &Method,
        shutdown: &Shutdown,
    ) -> io::Result<bool> {
        let served = until_disconnect(&mut self.stream, &mut self.input, pin!(served)).await;
        let Some(response) = served else { return Ok(false) };
        let is_last = shutdown.has_changed().unwrap_or(true);
        let is_open = self.respond(response, method, is_last).await?;
        self.end(is_open).await
    }

    /// Closes the connection unless it stays open.
    async fn end(&mut self, is_open: bool) -> io::Result<bool> {
        if !is_open {
            self.stream.shutdown().await?;
        }
        Ok(is_open)
    }

    /// Removes a complete request from the input.
    fn take_request(&mut self) -> NextRequest {
        // A head that arrives in pieces is searched for its end before it is parsed again.
        let is_new = self.search.is_new();
        if is_new && let Some(request) = self.take_verbatim() {
            return NextRequest::Request(request);
        }
        let Some(end) = self.search.end(&self.input) else {
            let may_be_plain =
                self.input.len() < MAX_REQUEST_BYTES && plain_head::may_begin_with(&self.input);
            return if may_be_plain { NextRequest::Partial } else { NextRequest::NotPlain };
        };
        self.search.restart();
        if !is_new && let Some(request) = self.take_verbatim() {
            return NextRequest::Request(request);
        }
        let head = plain_head::parse(&Bytes::copy_from_slice(&self.input[..end]));
        let Some(PlainRequestHead { request, body_bytes }) = head else { return NextRequest::NotPlain };
        let Some(body) = self.input.get(end..end + body_bytes) else { return NextRequest::NotPlain };
        let body = if body.is_empty() { Bytes::new() } else { Bytes::copy_from_slice(body) };
        self.input.drain(..end + body_bytes);
        NextRequest::Request(PlainRequest::New(Box::new(request.map(|()| RequestBody::Whole(body)))))
    }

    /// Removes a verbatim request from the input, decided.
    fn take_verbatim(&mut self) -> Option<PlainRequest> {
        let decided = self.context.decide_verbatim(&self.input, &mut self.buffers);
        let VerbatimRequest { bytes, next } = decided?;
        if bytes == self.input.len() {
            self.input.clear();
        } else {
            self.input.drain(..bytes);
        }
        Some(match next {
            VerbatimStep::Send(exchange) => PlainRequest::Verbatim(exchange),
            VerbatimStep::General(exchange) => PlainRequest::Decided(exchange),
        })
    }

    /// Sends a response; returns whether the connection stays open.
    async fn respond(
        &mut self,
        response: Response<ResponseBody>,
        method: &Method,
        is_last: bool,
    ) -> io::Result<bool> {
        let (head, body) = response.into_parts();
        let now = self.context.proxy.gate.now();
        let started = self.writer.start(&head, &body, method, is_last, now);
        let written = match started.coding {
            Coding::Empty => Ok(()),
            _ => self.write_body(&started, body).await,
        };
        // Also what has arrived of a body that was cut off.
        self.send().await?;
        written?;
        self.writer.shrink();
        Ok(!started.closes)
    }

    async fn write_body(&mut self, started: &StartedResponse, mut body: ResponseBody) -> io::Result<()> {
        let mut left = if let Coding::Length(length) = started.coding { length } else { u64::MAX };
        while left > 0 && !body.is_end_stream() {
            let frame = match poll_fn(|cx| Poll::Ready(Pin::new(&mut body).poll_frame(cx))).await {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    self.send().await?;
                    let frame = pin!(body.frame());
                    let frame = until_disconnect(&mut self.stream, &mut self.input, frame).await;
                    frame.ok_or(io::ErrorKind::ConnectionAborted)?
                }
            };
            let Some(frame) = frame else { break };
            let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
            if !data.is_empty() {
                let bytes = data.len() as u64;
                left = left.checked_sub(bytes).ok_or_else(|| io::Error::other("the body is too long"))?;
                self.write_data(started.coding, data).await?;
            }
        }
        match started.coding {
            Coding::Chunked => self.writer.end_chunks(),
            Coding::Length(_) if left > 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            Coding::Length(_) | Coding::Empty => {}
        }
        Ok(())
    }

    async fn write_data(&mut self, coding: Coding, data: Bytes) -> io::Result<()> {
        if coding == Coding::Chunked {
            self.writer.start_chunk(data.len());
        }
        if data.len() <= MAX_COPIED_BYTES {
            self.writer.out.extend_from_slice(&data);
        } else {
            let mut both = Buf::chain(&self.writer.out[..], data);
            self.stream.write_all_buf(&mut both).await?;
            self.writer.clear();
        }
        if coding == Coding::Chunked {
            self.writer.end_chunk();
        }
        if self.writer.out.len() > MAX_COPIED_BYTES {
            self.send().await?;
        }
        Ok(())
    }

    async fn send(&mut self) -> io::Result<()> {
        if !self.writer.out.is_empty() {
            self.stream.write_all(&self.writer.out).await?;
            self.writer.clear();
        }
        self.stream.flush().await
    }
}

/// Awaits the work while the client stays connected; reads what it sends meanwhile, up to a plain request.
async fn until_disconnect<S: AsyncRead + Unpin, F: Future>(
    stream: &mut S,
    input: &mut Vec<u8>,
    mut work: Pin<&mut F>,
) -> Option<F::Output> {
    poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        while input.len() < MAX_REQUEST_BYTES {
            grow(input);
            match pin!(stream.read_buf(input)).poll(cx) {
                Poll::Ready(Ok(1..)) => {}
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(None),
                Poll::Pending => break,
            }
        }
        Poll::Pending
    })
    .await
}

/// Doubles a full buffer, up to the longest request.
fn grow(input: &mut Vec<u8>) {
    if input.len() == input.capacity() {
        let wanted = (2 * input.len()).clamp(IDLE_BYTES, MAX_REQUEST_BYTES);
        input.reserve_exact(wanted.saturating_sub(input.len()));
    }
}
