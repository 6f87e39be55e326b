//! How a call ends: a status code, and for an error a message (gRPC over HTTP/2, *Responses*).

use std::borrow::Cow;

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::protobuf::DecodeError;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// Percent-encoded in `grpc-message`, beside everything that is not ASCII.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// The code of a call that succeeded.
pub const OK: u8 = 0;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unauthenticated = 16,
}

/// An error that ends a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallError {
    pub code: Code,
    pub message: Cow<'static, str>,
}

impl CallError {
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> CallError {
        CallError { code, message: message.into() }
    }

    pub fn invalid(message: impl Into<Cow<'static, str>>) -> CallError {
        CallError::new(Code::InvalidArgument, message)
    }

    /// Whether the message was longer than the bound, which clients of the caller may have caused.
    pub fn is_too_long(&self) -> bool {
        self.code == Code::ResourceExhausted
    }

    pub fn write_to(&self, headers: &mut HeaderMap) {
        headers.insert(GRPC_STATUS, HeaderValue::from(self.code as u16));
        let message = utf8_percent_encode(&self.message, ENCODED).to_string();
        let message = HeaderValue::from_str(&message).expect("percent-encoded text fits a header");
        headers.insert(GRPC_MESSAGE, message);
    }
}

impl From<DecodeError> for CallError {
    fn from(error: DecodeError) -> CallError {
        CallError::invalid(format!("the message is not valid Protocol Buffers: {error}"))
    }
}

/// The trailers of a call that succeeded.
pub fn ok_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    trailers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_encoded_so_that_it_fits_a_header() {
        let mut headers = HeaderMap::new();
        CallError::invalid("50 % of 'ä'\n").write_to(&mut headers);
        assert_eq!(headers[GRPC_STATUS], "3");
        assert_eq!(headers[GRPC_MESSAGE], "50 %25 of '%C3%A4'%0A");
    }
}
