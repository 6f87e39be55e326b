//! A small HTTP client for commands that call a running server.
//!
//! Calls have an idle timeout, not a total one: sent or received bytes count as progress, and so does a server that
//! works on a long import while it still answers other requests.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::timeout;

mod token;
mod upload;

use upload::CountedBody;
pub use upload::UploadCounter;

/// Maximum time without progress.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_ANSWER_BYTES: usize = 256 << 20;

#[derive(Debug, Error)]
pub enum ClientError {
    #[error("'{url}' is no address: write http://HOST:PORT")]
    Address { url: String },
    #[error("{place}: {why}")]
    Token { place: String, why: String },
    #[error("no answer from {url}: {why}; is the server running?")]
    Unreachable { url: String, why: String },
    #[error("{url} answered something that is not understood: {why}")]
    Answer { url: String, why: String },
    #[error("cannot write what {url} answered: {error}")]
    Output { url: String, error: io::Error },
}

/// The response of a server.
pub struct ClientResponse {
    pub status: u16,
    pub headers: HeaderMap,
    /// The body as JSON; null if it is not JSON.
    pub body: Value,
}

/// A request without its address.
pub struct ClientRequest<'a> {
    method: Method,
    path: &'a str,
    headers: Vec<(&'a str, &'a str)>,
    body: Bytes,
    /// The server may work on this request for long, as long as it answers others.
    is_long_running: bool,
}

impl<'a> ClientRequest<'a> {
    pub fn new(method: Method, path: &'a str) -> ClientRequest<'a> {
        ClientRequest { method, path, headers: Vec::new(), body: Bytes::new(), is_long_running: false }
    }

    pub fn header(mut self, name: &'a str, value: &'a str) -> ClientRequest<'a> {
        self.headers.push((name, value));
        self
    }

    pub fn json(self, body: Option<Value>) -> ClientRequest<'a> {
        let Some(body) = body else { return self };
        ClientRequest {
            body: body.to_string().into(),
            ..self.header(CONTENT_TYPE.as_str(), "application/json")
        }
    }

    /// A long body that the server needs time for.
    pub fn long_running(self, content_type: &'a str, body: Bytes) -> ClientRequest<'a> {
        ClientRequest { body, is_long_running: true, ..self.header(CONTENT_TYPE.as_str(), content_type) }
    }
}

/// A connection to one server.
pub struct ClientConnection {
    base: String,
    authority: String,
    token: Option<HeaderValue>,
    sender: SendRequest<CountedBody>,
    /// The number of responses on this connection.
    answers: u64,
    /// Maximum time without progress.
    idle: Duration,
}

impl ClientConnection {
    /// Connects to the admin API at `base`; every call carries the token of the environment.
    pub async fn with_token(base: &str) -> Result<ClientConnection, ClientError> {
        ClientConnection::open(base, token::authorization()?).await
    }

    /// Connects to a server that requires no token.
    pub async fn without_token(base: &str) -> Result<ClientConnection, ClientError> {
        ClientConnection::open(base, None).await
    }

    async fn open(base: &str, token: Option<HeaderValue>) -> Result<ClientConnection, ClientError> {
        let authority = authority(base)?;
        let sender = connect(base, &authority).await?;
        Ok(ClientConnection {
            base: base.to_owned(),
            authority,
            token,
            sender,
            answers: 0,
            idle: IDLE_TIMEOUT,
        })
    }

    /// Sends one request and returns its JSON response.
    pub async fn fetch_json(&mut self, call: ClientRequest<'_>) -> Result<ClientResponse, ClientError> {
        self.fetch_json_counted(call, &UploadCounter::default()).await
    }

    /// Like [`ClientConnection::fetch_json`], with a count of the bytes sent.
    pub async fn fetch_json_counted(
        &mut self,
        call: ClientRequest<'_>,
        sent: &UploadCounter,
    ) -> Result<ClientResponse, ClientError> {
        let (head, body) = self.send(call, sent).await?.into_parts();
        let said = self.collect(body).await?;
        Ok(ClientResponse { status: head.status.as_u16(), headers: head.headers, body: said })
    }

    /// Sends one request and streams its response. An error response is returned.
    pub async fn download(
        &mut self,
        call: ClientRequest<'_>,
        each: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<ClientResponse, ClientError> {
        let (head, body) = self.send(call, &UploadCounter::default()).await?.into_parts();
        let body = match head.status.is_success() {
            true => self.receive(body, each).await.map(|()| Value::Null)?,
            false => self.collect(body).await?,
        };
        Ok(ClientResponse { status: head.status.as_u16(), headers: head.headers, body })
    }

    /// The body as JSON; null if it is not JSON.
    async fn collect(&self, body: Incoming) -> Result<Value, ClientError> {
        let mut said = Vec::new();
        self.receive(body, |data| {
            said.extend_from_slice(data);
            if said.len() > MAX_ANSWER_BYTES { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(()) }
        })
        .await?;
        Ok(serde_json::from_slice(&said).unwrap_or_default())
    }

    async fn receive(
        &self,
        mut body: Incoming,
        mut each: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), ClientError> {
        loop {
            let frame = timeout(self.idle, body.frame()).await;
            let Some(frame) = frame.map_err(|_| self.unreachable("it fell silent"))? else { return Ok(()) };
            let Ok(data) = frame.map_err(|error| self.unreachable(error))?.into_data() else { continue };
            each(&data).map_err(|error| ClientError::Output { url: self.base.clone(), error })?;
        }
    }

    async fn send(
        &mut self,
        call: ClientRequest<'_>,
        sent: &UploadCounter,
    ) -> Result<Response<Incoming>, ClientError> {
        let again = call.method == Method::GET && self.answers > 0;
        let answered = match self.try_send(&call, sent).await {
            // The server may have closed a connection that was idle between two calls.
            Err(ClientError::Unreachable { .. }) if again => {
                self.sender = connect(&self.base, &self.authority).await?;
                self.try_send(&call, sent).await
            }
            answered => answered,
        };
        self.answers += 1;
        answered
    }

    async fn try_send(
        &mut self,
        call: &ClientRequest<'_>,
        sent: &UploadCounter,
    ) -> Result<Response<Incoming>, ClientError> {
        let request = self.request(call, sent).map_err(|error| self.answer(error.to_string()))?;
        let answer = self.sender.send_request(request);
        tokio::pin!(answer);
        loop {
            let before = sent.bytes();
            if let Ok(answer) = timeout(self.idle, answer.as_mut()).await {
                return answer.map_err(|error| self.unreachable(error));
            }
            let moves = sent.bytes() > before;
            let works = moves || (call.is_long_running && is_alive(&self.base, &self.authority).await);
            if !works {
                return Err(self.unreachable("it took too long"));
            }
        }
    }

    fn request(
        &self,
        call: &ClientRequest<'_>,
        sent: &UploadCounter,
    ) -> Result<Request<CountedBody>, hyper::http::Error> {
        let mut request =
            Request::builder().method(&call.method).uri(call.path).header(HOST, &self.authority);
        for (name, value) in &call.headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        request.body(CountedBody::new(call.body.clone(), sent.clone()))
    }

    fn unreachable(&self, why: impl ToString) -> ClientError {
        ClientError::Unreachable { url: self.base.clone(), why: why.to_string() }
    }

    fn answer(&self, why: String) -> ClientError {
        ClientError::Answer { url: self.base.clone(), why }
    }
}

/// One request to a server that requires no token.
pub async fn call(base: &str, call: ClientRequest<'_>) -> Result<ClientResponse, ClientError> {
    ClientConnection::without_token(base).await?.fetch_json(call).await
}

async fn connect(base: &str, authority: &str) -> Result<SendRequest<CountedBody>, ClientError> {
    let unreachable = |why: String| ClientError::Unreachable { url: base.to_owned(), why };
    let stream = timeout(IDLE_TIMEOUT, TcpStream::connect(authority)).await;
    let stream = stream.map_err(|_| unreachable("it took too long".to_owned()))?;
    let stream = stream.map_err(|error| unreachable(error.to_string()))?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(|error| unreachable(error.to_string()))?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Whether the server responds at all; checked on another connection.
async fn is_alive(base: &str, authority: &str) -> bool {
    let asked = async {
        let mut sender = connect(base, authority).await.ok()?;
        let request = Request::get("/healthz").header(HOST, authority);
        let request = request.body(CountedBody::new(Bytes::new(), UploadCounter::default())).ok()?;
        sender.send_request(request).await.ok()
    };
    timeout(IDLE_TIMEOUT, asked).await.is_ok_and(|answer| answer.is_some())
}

/// Runs a call to completion, for commands that do nothing else.
pub fn block_on<T>(call: impl Future<Output = T>) -> T {
    runtime().block_on(call)
}

/// A single-threaded runtime: a command only waits for a server.
pub fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime of one thread can be built")
}

fn authority(base: &str) -> Result<String, ClientError> {
    let bad = || ClientError::Address { url: base.to_owned() };
    let uri: Uri = base.parse().map_err(|_| bad())?;
    let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(bad)?;
    Ok(match authority.port_u16() {
        Some(_) => authority.to_string(),
        None => format!("{authority}:80"),
    })
}

/// Escapes a value for a query or a path segment.
pub fn percent_encode(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => escaped.push(byte as char),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::Full;
    use hyper::service::service_fn;
    use tokio::net::TcpListener;

    use super::*;

    const PROBES: usize = 3;

    /// A server that responds to an import after [`PROBES`] liveness requests, and to nothing else.
    async fn slow_server() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let probes = Arc::new(AtomicUsize::new(0));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let probes = Arc::clone(&probes);
                let service = service_fn(move |request: Request<Incoming>| {
                    let probes = Arc::clone(&probes);
                    async move {
                        match request.uri().path() {
                            "/healthz" => _ = probes.fetch_add(1, Ordering::Relaxed),
                            "/import" => {
                                while probes.load(Ordering::Relaxed) < PROBES {
                                    tokio::time::sleep(Duration::from_millis(1)).await;
                                }
                            }
                            _ => std::future::pending().await,
                        }
                        let length = request.into_body().collect().await?.to_bytes().len();
                        Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from(length.to_string()))))
                    }
                });
                let serving = hyper::server::conn::http1::Builder::new();
                tokio::spawn(serving.serve_connection(TokioIo::new(stream), service));
            }
        });
        url
    }

    #[tokio::test]
    async fn a_server_that_works_on_an_import_and_still_lives_is_waited_for() {
        let url = slow_server().await;
        let mut connection = ClientConnection::without_token(&url).await.expect("a connection");
        connection.idle = Duration::from_millis(20);
        let body = Bytes::from(vec![b'x'; 1 << 20]);
        let call = ClientRequest::new(Method::POST, "/import").long_running("text/plain", body);
        let sent = UploadCounter::default();
        let answered = connection.fetch_json_counted(call, &sent).await.expect("an answer");
        assert_eq!((answered.status, answered.body), (200, Value::from(1 << 20)));
        assert_eq!(sent.bytes(), 1 << 20);
    }

    #[tokio::test]
    async fn a_server_that_does_not_move_is_given_up() {
        let url = slow_server().await;
        let mut connection = ClientConnection::without_token(&url).await.expect("a connection");
        connection.idle = Duration::from_millis(20);
        let answered = connection.fetch_json(ClientRequest::new(Method::GET, "/silent")).await;
        let error = answered.err().expect("no answer").to_string();
        assert!(error.contains(&url) && error.contains("it took too long"), "{error}");
    }
}
