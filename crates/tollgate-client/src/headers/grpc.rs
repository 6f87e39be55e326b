//! The status of a gRPC response: in its headers if it has no message, otherwise in its trailers.
//!
//! `grpc-status-details-bin` is a `google.rpc.Status` in base64. Of its details `google.rpc.RetryInfo` is read, by the
//! wire format of protobuf: fields that are not known are skipped, and what is not valid says nothing.

use std::time::Duration;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::header::{HeaderMap, HeaderName};

use super::{MAX_FIELD_BYTES, number, single};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const RESOURCE_EXHAUSTED: u64 = 8;
const UNAVAILABLE: u64 = 14;
const RETRY_INFO: &[u8] = b"google.rpc.RetryInfo";
/// Senders may pad base64 or not.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
const _: () = assert!(MAX_FIELD_BYTES <= 4096, "decoding is bounded");

/// Whether the server refuses the call for a while, if it says for how long.
pub fn is_refusal(headers: &HeaderMap) -> bool {
    let status = single(headers, &STATUS).and_then(number);
    matches!(status, Some(RESOURCE_EXHAUSTED | UNAVAILABLE))
}

/// The delay of `RetryInfo`.
pub fn retry_delay(headers: &HeaderMap) -> Option<Duration> {
    let status = BASE64.decode(single(headers, &DETAILS)?).ok()?;
    let details = fields(&status).filter(|(field, _)| *field == 3);
    details.filter_map(|(_, any)| any.bytes()).find_map(delay_in)
}

/// The delay in one detail, a `google.protobuf.Any`.
fn delay_in(any: &[u8]) -> Option<Duration> {
    let [url, value] = [1, 2].map(|wanted| last(any, wanted).and_then(Value::bytes));
    if url?.rsplit(|byte| *byte == b'/').next() != Some(RETRY_INFO) {
        return None;
    }
    // A message whose fields are all zero is empty.
    let delay = last(value.unwrap_or_default(), 1)?.bytes()?;
    let [seconds, nanos] = [1, 2].map(|wanted| last(delay, wanted).map_or(Some(0), Value::varint));
    let seconds = seconds.filter(|seconds| i64::try_from(*seconds).is_ok())?;
    let nanos = nanos.filter(|nanos| *nanos < 1_000_000_000)?;
    Some(Duration::new(seconds, nanos as u32))
}

/// The value of a field.
#[derive(Clone, Copy)]
enum Value<'m> {
    Varint(u64),
    Bytes(&'m [u8]),
    Fixed,
}

impl<'m> Value<'m> {
    fn bytes(self) -> Option<&'m [u8]> {
        if let Value::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    fn varint(self) -> Option<u64> {
        if let Value::Varint(number) = self { Some(number) } else { None }
    }
}

/// Of a field that is there twice, the last one counts.
fn last(message: &[u8], wanted: u64) -> Option<Value<'_>> {
    fields(message).filter(|(field, _)| *field == wanted).last().map(|(_, value)| value)
}

/// The fields of a message, up to the first that is not valid.
fn fields(mut message: &[u8]) -> impl Iterator<Item = (u64, Value<'_>)> {
    std::iter::from_fn(move || {
        let tag = varint(&mut message)?;
        let value = match tag & 7 {
            0 => Value::Varint(varint(&mut message)?),
            1 => take(&mut message, 8).map(|_| Value::Fixed)?,
            2 => {
                let length = usize::try_from(varint(&mut message)?).ok()?;
                Value::Bytes(take(&mut message, length)?)
            }
            5 => take(&mut message, 4).map(|_| Value::Fixed)?,
            _ => return None,
        };
        Some((tag >> 3, value))
    })
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn take<'m>(message: &mut &'m [u8], length: usize) -> Option<&'m [u8]> {
    let (taken, rest) = message.split_at_checked(length)?;
    *message = rest;
    Some(taken)
}
