//! Calls of commands to a running server, over hyper-util's client: `http` and `https`, and an address may have a path.
//!
//! Calls have an idle timeout, not a total one: sent or received bytes count as progress, and so does a server that
//! works on a long import while it still answers other requests.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use thiserror::Error;
use tokio::time::timeout;

mod base_url;
mod token;
mod upload;

pub use base_url::{BaseUrl, connector, system_roots};
pub use token::file_authorization;
use upload::CountedBody;
pub use upload::UploadCounter;

/// Maximum time without progress.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_ANSWER_BYTES: usize = 256 << 20;

#[derive(Debug, Error)]
pub enum ClientError {
    #[error("'{url}' is not a valid address: {why}; expected http://HOST:PORT or https://HOST/PATH")]
    Address { url: String, why: String },
    #[error("{place}: {why}")]
    Token { place: String, why: String },
    #[error("no trusted certificates for https: {why}; name them with SSL_CERT_FILE=/path/to/ca.pem")]
    Roots { why: String },
    #[error("no answer from {url}: {why}; {hint}")]
    Unreachable { url: String, why: String, hint: &'static str },
    #[error("unexpected response from {url}: {why}")]
    Answer { url: String, why: String },
    #[error("cannot write the response of {url}: {error}")]
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

    #[cfg(feature = "otlp")]
    pub fn bytes(self, content_type: &'a str, body: Bytes) -> ClientRequest<'a> {
        ClientRequest { body, ..self.header(CONTENT_TYPE.as_str(), content_type) }
    }

    /// A long body that the server needs time for.
    pub fn long_running(self, content_type: &'a str, body: Bytes) -> ClientRequest<'a> {
        ClientRequest { body, is_long_running: true, ..self.header(CONTENT_TYPE.as_str(), content_type) }
    }
}

/// Calls to one server, over connections that are reused.
pub struct ServerClient {
    base: BaseUrl,
    token: Option<HeaderValue>,
    http: Client<HttpsConnector<HttpConnector>, CountedBody>,
    /// Maximum time without progress.
    idle: Duration,
}

impl ServerClient {
    /// Calls the admin API at `base` with the token of the environment.
    pub fn with_token(base: &str) -> Result<ServerClient, ClientError> {
        ServerClient::new(base, token::authorization()?)
    }

    /// Calls a server that requires no token.
    pub fn without_token(base: &str) -> Result<ServerClient, ClientError> {
        ServerClient::new(base, None)
    }

    fn new(base: &str, token: Option<HeaderValue>) -> Result<ServerClient, ClientError> {
        let base = BaseUrl::parse(base)?;
        let http = Client::builder(hyper_util::rt::TokioExecutor::new()).build(base.connector(IDLE_TIMEOUT)?);
        Ok(ServerClient { base, token, http, idle: IDLE_TIMEOUT })
    }

    /// Sends one request and returns its JSON response.
    pub async fn fetch_json(&self, call: ClientRequest<'_>) -> Result<ClientResponse, ClientError> {
        self.fetch_json_counted(call, &UploadCounter::default()).await
    }

    /// Like [`ServerClient::fetch_json`], with a count of the bytes sent.
    pub async fn fetch_json_counted(
        &self,
        call: ClientRequest<'_>,
        sent: &UploadCounter,
    ) -> Result<ClientResponse, ClientError> {
        let (head, body) = self.send(call, sent).await?.into_parts();
        let body = self.collect(body).await?;
        Ok(ClientResponse { status: head.status.as_u16(), headers: head.headers, body })
    }

    /// Sends one request and streams its response. An error response is returned.
    pub async fn download(
        &self,
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
        let mut received = Vec::new();
        self.receive(body, |data| {
            received.extend_from_slice(data);
            if received.len() > MAX_ANSWER_BYTES { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(()) }
        })
        .await?;
        Ok(serde_json::from_slice(&received).unwrap_or_default())
    }

    async fn receive(
        &self,
        mut body: Incoming,
        mut each: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), ClientError> {
        loop {
            let frame = timeout(self.idle, body.frame()).await;
            let Some(frame) = frame.map_err(|_| self.unreachable("no data within the idle timeout"))? else {
                return Ok(());
            };
            let Ok(data) = frame.map_err(|error| self.unreachable(error))?.into_data() else { continue };
            each(&data).map_err(|error| ClientError::Output { url: self.base.to_string(), error })?;
        }
    }

    async fn send(
        &self,
        call: ClientRequest<'_>,
        sent: &UploadCounter,
    ) -> Result<Response<Incoming>, ClientError> {
        let request = self.request(&call, sent).map_err(|error| self.answer(error.to_string()))?;
        let answer = self.http.request(request);
        tokio::pin!(answer);
        loop {
            let before = sent.bytes();
            if let Ok(answer) = timeout(self.idle, answer.as_mut()).await {
                return answer.map_err(|error| self.failed(&error));
            }
            let has_moved = sent.bytes() > before;
            let is_working = has_moved || (call.is_long_running && self.is_alive().await);
            if !is_working {
                return Err(self.unreachable("timed out"));
            }
        }
    }

    fn request(
        &self,
        call: &ClientRequest<'_>,
        sent: &UploadCounter,
    ) -> Result<Request<CountedBody>, hyper::http::Error> {
        let mut request = Request::builder().method(&call.method).uri(self.base.join(call.path));
        for (name, value) in &call.headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        request.body(CountedBody::new(call.body.clone(), sent.clone()))
    }

    /// Whether the server responds at all; checked on another connection, as the first one is in use.
    async fn is_alive(&self) -> bool {
        let probe = ClientRequest::new(Method::GET, "/healthz");
        let Ok(request) = self.request(&probe, &UploadCounter::default()) else { return false };
        timeout(IDLE_TIMEOUT, self.http.request(request)).await.is_ok_and(|answer| answer.is_ok())
    }

    fn unreachable(&self, why: impl ToString) -> ClientError {
        let hint = "is the server running?";
        ClientError::Unreachable { url: self.base.to_string(), why: why.to_string(), hint }
    }

    /// A request that failed: the innermost error, because the outer ones only say that a request failed.
    fn failed(&self, error: &(dyn std::error::Error + 'static)) -> ClientError {
        let mut cause = error;
        let mut is_no_http = false;
        while let Some(source) = cause.source() {
            cause = source;
            is_no_http |= cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse);
        }
        let hint = match tls_error(cause) {
            Some(rustls::Error::InvalidCertificate(why)) if is_authority(why) => {
                "the server's certificate is that of an authority (CA:TRUE), which cannot be a server's, even if it is \
                 trusted: give the server one that the authority has signed, or a self-signed one with \
                 basicConstraints=CA:FALSE, and name the authority or that one with SSL_CERT_FILE"
            }
            Some(rustls::Error::InvalidCertificate(_)) => {
                "to trust it, name its issuer with SSL_CERT_FILE=/path/to/ca.pem"
            }
            Some(rustls::Error::InvalidMessage(_)) => "does it expect http:// instead of https://?",
            Some(_) => "its TLS settings do not fit those of this program",
            None if is_no_http => "does it expect https:// instead of http://?",
            None => return self.unreachable(cause),
        };
        ClientError::Unreachable { url: self.base.to_string(), why: cause.to_string(), hint }
    }

    fn answer(&self, why: String) -> ClientError {
        ClientError::Answer { url: self.base.to_string(), why }
    }
}

/// The innermost error: the outer ones only say that a connection or a request failed.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Whether a server was given the certificate of an authority.
fn is_authority(error: &rustls::CertificateError) -> bool {
    format!("{error:?}").contains("CaUsedAsEndEntity")
}

/// The error of TLS in an I/O error, which may be wrapped several times.
fn tls_error<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e rustls::Error> {
    let mut io_error = error.downcast_ref::<io::Error>()?;
    loop {
        let inner = io_error.get_ref()?;
        match inner.downcast_ref::<io::Error>() {
            Some(wrapped) => io_error = wrapped,
            None => return inner.downcast_ref(),
        }
    }
}

/// One request to a server that requires no token.
pub async fn call(base: &str, call: ClientRequest<'_>) -> Result<ClientResponse, ClientError> {
    ServerClient::without_token(base)?.fetch_json(call).await
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

/// Everything but the unreserved characters (RFC 3986, 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Escapes a value for a query or a path segment.
pub fn percent_encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests;
