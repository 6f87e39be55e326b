//! A small HTTP client for the commands that talk to a running server.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(10);
const MAX_ANSWER_BYTES: usize = 256 << 20;

#[derive(Debug, Error)]
pub enum ClientError {
    #[error("'{url}' is no address: write http://HOST:PORT")]
    Address { url: String },
    #[error("no answer from {url}: {why}; is the server running?")]
    Unreachable { url: String, why: String },
    #[error("{url} answered something that is not understood: {why}")]
    Answer { url: String, why: String },
}

/// What a server answered.
pub struct Answered {
    pub status: u16,
    pub headers: HeaderMap,
    /// The JSON of the body; null where it is none.
    pub body: Value,
}

/// One request to the admin API at `base`; the token of the environment goes with it.
pub async fn call_admin(
    method: Method,
    base: &str,
    path: &str,
    body: Option<Value>,
) -> Result<Answered, ClientError> {
    let bearer = std::env::var("TOLLGATE_TOKEN").map(|token| format!("Bearer {token}"));
    let headers: Vec<_> = bearer.iter().map(|bearer| (AUTHORIZATION.as_str(), bearer.as_str())).collect();
    call(method, base, path, &headers, body).await
}

/// One request to `base`.
pub async fn call(
    method: Method,
    base: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<Value>,
) -> Result<Answered, ClientError> {
    let unreachable = |why: String| ClientError::Unreachable { url: base.to_owned(), why };
    let authority = authority(base)?;
    let conversation = async {
        let stream = TcpStream::connect(&authority).await.map_err(|error| unreachable(error.to_string()))?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| unreachable(error.to_string()))?;
        let connection = tokio::spawn(connection);
        let request = request(method, &authority, path, headers, body)
            .map_err(|error| ClientError::Answer { url: base.to_owned(), why: error.to_string() })?;
        let response = sender.send_request(request).await.map_err(|error| unreachable(error.to_string()))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
        let body =
            body.map_err(|error| ClientError::Answer { url: base.to_owned(), why: error.to_string() })?;
        connection.abort();
        let body = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
        Ok(Answered { status: head.status.as_u16(), headers: head.headers, body })
    };
    timeout(TIMEOUT, conversation).await.unwrap_or_else(|_| Err(unreachable("it took too long".to_owned())))
}

/// Runs a call to its end, for commands that do nothing else.
pub fn block_on<T>(call: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime of one thread can be built").block_on(call)
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

fn request(
    method: Method,
    authority: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<Value>,
) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
    let mut request = Request::builder().method(method).uri(path).header(HOST, authority);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if body.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    request.body(Full::new(Bytes::from(body.map_or_else(String::new, |body| body.to_string()))))
}

/// Escapes a value for a query or a path segment.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => escaped.push(byte as char),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}
