//! `envoy.service.ratelimit.v3.RateLimitService`: its messages.
//!
//! Values of entries are written by clients of Envoy, so neither their bytes nor their length is an error of the call:
//! Envoy might let the request pass then.

use smallvec::SmallVec;

use super::protobuf::{DecodeError, Fields, WriteFields};
use super::status::{self, CallError};
use super::stream::{Outgoing, single_varint};
use crate::envoy::{
    self, Descriptor, DescriptorStatus, Entry, LimitOverride, LimitUnit, RateLimitAnswer, RateLimitRequest,
    RequestError,
};
use crate::gate::Gate;
use crate::metrics::RequestStatus;
use crate::trace_id::TraceId;

pub const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

pub async fn should_rate_limit(
    gate: &Gate,
    message: &[u8],
    response: &mut Outgoing,
    trace: Option<TraceId>,
) -> Result<RequestStatus, CallError> {
    let request = read_request(message)?;
    let answer = envoy::decide(gate, &request, trace).await?;
    response.send(|message| write_answer(message, &request, &answer)).ok();
    Ok(if answer.is_over_limit() { RequestStatus::OverLimit } else { RequestStatus::Grpc(status::OK) })
}

/// Denies a request because its message is too long to be read.
pub fn deny(response: &mut Outgoing) -> RequestStatus {
    response.send(single_varint(1, OVER_LIMIT)).ok();
    RequestStatus::OverLimit
}

impl From<RequestError> for CallError {
    fn from(error: RequestError) -> CallError {
        CallError::invalid(error.to_string())
    }
}

/// A descriptor beyond this is not read into memory; the request is rejected by its count.
const READ_AT_MOST: usize = 1_000;

pub fn read_request(message: &[u8]) -> Result<RateLimitRequest<'_>, DecodeError> {
    let mut request = RateLimitRequest::default();
    for field in Fields::of(message) {
        let field = field?;
        match field.number {
            1 => request.domain = field.text()?.into(),
            2 if request.descriptors.len() < READ_AT_MOST => {
                request.descriptors.push(read_descriptor(field.message()?)?);
            }
            3 => request.hits_addend = field.varint32()?,
            _ => {}
        }
    }
    Ok(request)
}

fn read_descriptor(fields: Fields<'_>) -> Result<Descriptor<'_>, DecodeError> {
    let mut descriptor = Descriptor { entries: SmallVec::new(), ..Descriptor::default() };
    for field in fields {
        let field = field?;
        match field.number {
            1 if descriptor.entries.len() < READ_AT_MOST => {
                descriptor.entries.push(read_entry(field.message()?)?);
            }
            2 => descriptor.limit = read_override(field.message()?)?,
            3 => descriptor.hits_addend = Some(read_wrapped(field.message()?)?),
            4 => descriptor.is_refund = field.varint()? != 0,
            _ => {}
        }
    }
    Ok(descriptor)
}

fn read_entry(fields: Fields<'_>) -> Result<Entry<'_>, DecodeError> {
    let mut entry = Entry::default();
    for field in fields {
        let field = field?;
        match field.number {
            1 => entry.key = field.text()?.into(),
            2 => entry.value = field.text_lossy()?,
            _ => {}
        }
    }
    Ok(entry)
}

/// `None` if it has no unit: then it is no limit.
fn read_override(fields: Fields<'_>) -> Result<Option<LimitOverride>, DecodeError> {
    let mut requests_per_unit = 0;
    let mut unit = None;
    for field in fields {
        let field = field?;
        match field.number {
            1 => requests_per_unit = field.varint32()?,
            2 => unit = LimitUnit::from_number(field.varint32()?),
            _ => {}
        }
    }
    Ok(unit.map(|unit| LimitOverride { requests_per_unit, unit }))
}

/// A `google.protobuf.UInt64Value`.
fn read_wrapped(fields: Fields<'_>) -> Result<u64, DecodeError> {
    let mut value = 0;
    for field in fields {
        let field = field?;
        if field.number == 1 {
            value = field.varint()?;
        }
    }
    Ok(value)
}

const OK: u64 = 1;
const OVER_LIMIT: u64 = 2;

fn code(is_over_limit: bool) -> u64 {
    if is_over_limit { OVER_LIMIT } else { OK }
}

fn write_answer(message: &mut Vec<u8>, request: &RateLimitRequest<'_>, answer: &RateLimitAnswer) {
    message.put_varint(1, code(answer.is_over_limit()));
    for status in &answer.statuses {
        message.put_message(2, |message| write_status(message, status));
    }
    for (name, value) in answer.headers.iter() {
        message.put_message(3, |header| {
            header.put_text(1, name);
            header.put_text(2, value);
        });
    }
    if let Some(body) = &answer.body {
        message.put_bytes(5, body.as_bytes());
    }
    if let Some(violations) = answer.quota_violations() {
        message.put_message(6, |metadata| write_metadata(metadata, request, &violations));
    }
}

/// What envoyproxy/ratelimit reports of limits in quota mode, as a `google.protobuf.Struct`.
fn write_metadata(metadata: &mut Vec<u8>, request: &RateLimitRequest<'_>, violations: &[usize]) {
    let field = |metadata: &mut Vec<u8>, name: &str, write: &dyn Fn(&mut Vec<u8>)| {
        metadata.put_message(1, |entry| {
            entry.put_text(1, name);
            entry.put_message(2, write);
        });
    };
    field(metadata, "domain", &|value| value.put_bytes(3, request.domain.as_bytes()));
    if request.hits_addend > 0 {
        field(metadata, "hitsAddend", &|value| value.put_double(2, f64::from(request.hits_addend)));
    }
    field(metadata, "quotaModeEnabled", &|value| value.put_varint(4, 1));
    field(metadata, "quotaModeViolations", &|value| {
        value.put_message(6, |list| {
            violations.iter().for_each(|n| list.put_message(1, |item| item.put_double(2, *n as f64)));
        });
    });
    field(metadata, "descriptors", &|value| {
        value.put_message(6, |list| {
            for descriptor in &request.descriptors {
                list.put_message(1, |item| {
                    item.put_message(5, |map| {
                        field(map, "entries", &|value| {
                            value.put_message(6, |list| {
                                for Entry { key, value } in &descriptor.entries {
                                    let text = format!("{key}={value}");
                                    list.put_message(1, |item| item.put_bytes(3, text.as_bytes()));
                                }
                            });
                        });
                    });
                });
            }
        });
    });
}

fn write_status(message: &mut Vec<u8>, status: &DescriptorStatus) {
    message.put_varint(1, code(status.is_over_limit));
    if let Some(limit) = &status.limit {
        message.put_message(2, |message| {
            message.put_varint(1, u64::from(limit.requests_per_unit));
            message.put_varint(2, limit.unit.map_or(0, |unit| unit as u64));
            message.put_text(3, &limit.name);
        });
    }
    message.put_varint(3, u64::from(status.remaining));
    if let Some(reset_after) = status.reset_after {
        message.put_message(4, |duration| duration.put_varint(1, reset_after.as_secs()));
    }
}
