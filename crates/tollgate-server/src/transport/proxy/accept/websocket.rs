//! WebSockets over HTTP/2 (RFC 8441). Upstreams get the handshake of HTTP/1.1, so that such a request is handled as an
//! upgrade from here on.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::ext::Protocol;
use hyper::header::{CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode, Version};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use ring::rand::{SecureRandom, SystemRandom};

use crate::response::ProblemDetails;

const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
/// Appended to the key before it is hashed (RFC 6455, 1.3).
const SALT: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The handshake with the upstream; the HTTP/2 client takes no part in it.
pub struct WebSocketHandshake {
    key: String,
}

impl WebSocketHandshake {
    /// Rewrites a request for a WebSocket over HTTP/2; `None` for other requests. Any other CONNECT is rejected.
    pub fn of(parts: &mut Parts) -> Result<Option<WebSocketHandshake>, ProblemDetails> {
        if parts.method != Method::CONNECT {
            return Ok(None);
        }
        let protocol = parts.extensions.remove::<Protocol>();
        if !protocol.is_some_and(|protocol| protocol.as_str().eq_ignore_ascii_case("websocket")) {
            return Err(ProblemDetails::new(StatusCode::NOT_IMPLEMENTED, "CONNECT is not supported"));
        }
        let mut random = [0; 16];
        SystemRandom::new().fill(&mut random).expect("the system has random numbers");
        let key = BASE64_STANDARD.encode(random);
        parts.method = Method::GET;
        parts.version = Version::HTTP_11;
        let headers = &mut parts.headers;
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, WEBSOCKET);
        headers.insert(SEC_WEBSOCKET_KEY, HeaderValue::from_str(&key).expect("base64 is plain text"));
        Ok(Some(WebSocketHandshake { key }))
    }

    /// Whether the upstream's response accepts this handshake.
    pub fn is_answered_by(&self, headers: &HeaderMap) -> bool {
        let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{}{SALT}", self.key).as_bytes());
        let expected = BASE64_STANDARD.encode(hash);
        headers.get(SEC_WEBSOCKET_ACCEPT).is_some_and(|accept| accept.as_bytes() == expected.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_that_of_the_standard() {
        let handshake = WebSocketHandshake { key: "dGhlIHNhbXBsZSBub25jZQ==".to_owned() };
        let mut headers = HeaderMap::new();
        assert!(!handshake.is_answered_by(&headers));
        headers.insert(SEC_WEBSOCKET_ACCEPT, HeaderValue::from_static("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert!(handshake.is_answered_by(&headers));
    }
}
