//! The status of a gRPC call: of a denial, and of a response.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// Status codes of gRPC.
pub(crate) const PERMISSION_DENIED: u32 = 7;
pub(crate) const RESOURCE_EXHAUSTED: u32 = 8;
pub(crate) const UNAVAILABLE: u32 = 14;

/// Bytes of `grpc-message` that are percent-encoded, beside those that are not ASCII.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// The value of `grpc-message`.
pub(crate) fn message(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// The value of `grpc-status-details-bin`: a `google.rpc.Status` with a `google.rpc.RetryInfo`, in base64.
pub(crate) fn details(code: u32, message: &str, retry_after: Duration) -> String {
    let mut delay = Vec::new();
    varint_field(&mut delay, 1, retry_after.as_secs());
    varint_field(&mut delay, 2, u64::from(retry_after.subsec_nanos()));
    let mut retry_info = Vec::new();
    bytes_field(&mut retry_info, 1, &delay);
    let mut any = Vec::new();
    bytes_field(&mut any, 1, b"type.googleapis.com/google.rpc.RetryInfo");
    bytes_field(&mut any, 2, &retry_info);
    let mut status = Vec::new();
    varint_field(&mut status, 1, u64::from(code));
    bytes_field(&mut status, 2, message.as_bytes());
    bytes_field(&mut status, 3, &any);
    STANDARD_NO_PAD.encode(status)
}

/// A field of wire type 0; zero is the default and is not written.
fn varint_field(out: &mut Vec<u8>, field: u8, value: u64) {
    if value > 0 {
        out.push(field << 3);
        varint(out, value);
    }
}

/// A field of wire type 2: a string or a message.
fn bytes_field(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The HTTP status that corresponds to a gRPC status, as `google/rpc/code.proto` maps them: rules count by it.
pub(crate) fn http_status(grpc_status: &[u8]) -> u16 {
    match grpc_status {
        b"0" => 200,
        b"1" => 499,
        b"3" | b"9" | b"11" => 400,
        b"4" => 504,
        b"5" => 404,
        b"6" | b"10" => 409,
        b"7" => 403,
        b"8" => 429,
        b"12" => 501,
        b"14" => 503,
        b"16" => 401,
        _ => 500,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_a_status_with_retry_info() {
        let text = details(RESOURCE_EXHAUSTED, "no", Duration::from_millis(90_500));
        let bytes = STANDARD_NO_PAD.decode(text).expect("base64");
        let mut expected = vec![8, 8, 18, 2, b'n', b'o', 26, 54, 10, 40];
        expected.extend_from_slice(b"type.googleapis.com/google.rpc.RetryInfo");
        expected.extend_from_slice(&[18, 10, 10, 8, 8, 90, 16, 0x80, 0xca, 0xb5, 0xee, 0x01]);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_message_is_percent_encoded() {
        assert_eq!(message("100 % of \u{fc}"), "100 %25 of %C3%BC");
    }
}
