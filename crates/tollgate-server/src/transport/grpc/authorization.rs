//! `envoy.service.auth.v3.Authorization`: Envoy describes a request that it has received, and forwards it or sends the
//! response of this service to its client.
//!
//! Malformed input of a client is a denial with 400, not an error of the call: Envoy may be configured to let requests pass
//! on errors.

use std::net::IpAddr;

use http_body_util::BodyExt;
use hyper::header::{ACCEPT, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::response;
use hyper::{Method, Request, StatusCode, Uri};
use tollgate::internal::identity::address::parse_ip;

use super::protobuf::{DecodeError, Field, Fields, WriteFields};
use super::status::{CallError, Code};
use super::stream::Outgoing;
use crate::connection::FullResponse;
use crate::error_response::{self, ErrorFormat};
use crate::gate::{Gate, GateSnapshot};
use crate::metrics::RequestStatus;
use crate::request_head;
use crate::response::ProblemDetails;
use crate::trace_id::TraceId;

pub const SERVICE: &str = "envoy.service.auth.v3.Authorization";

/// The trace of the call is that of the request, unless Envoy sends none.
pub async fn check(
    gate: &Gate,
    message: &[u8],
    response: &mut Outgoing,
    trace: Option<TraceId>,
) -> Result<RequestStatus, CallError> {
    let described = DescribedRequest::read(message)?;
    let peer = described.peer()?;
    let snapshot = gate.snapshot();
    let answer = match described.parts(&snapshot) {
        Ok((parts, host)) => {
            let snapshot = snapshot.with_trace(trace.or_else(|| gate.trace(&parts.headers)));
            request_head::decide(gate, &snapshot, &parts, &host, peer).await
        }
        Err((problem, format)) => error_response::problem(problem, format),
    };
    Ok(send(answer, response).await)
}

/// Denies a request because its description is too long to be read.
pub async fn deny(response: &mut Outgoing) -> RequestStatus {
    let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    let problem = ProblemDetails::new(status, "the headers of the request are too long to be checked");
    send(error_response::problem(problem, ErrorFormat::Json), response).await
}

async fn send(answer: FullResponse, response: &mut Outgoing) -> RequestStatus {
    let (head, body) = answer.into_parts();
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(never) => match never {},
    };
    response.send(|message| write_answer(message, &head, &body)).ok();
    RequestStatus::Http(head.status)
}

/// Whether a message describes a request that is decided. Otherwise it is denied with a status for its client.
#[cfg(feature = "testing")]
pub fn is_decidable(snapshot: &GateSnapshot, message: &[u8]) -> Result<bool, CallError> {
    let described = DescribedRequest::read(message)?;
    described.peer()?;
    match described.parts(snapshot) {
        Ok(_) => Ok(true),
        Err((problem, _)) => {
            assert!(problem.status.is_client_error(), "the client is told what is wrong");
            Ok(false)
        }
    }
}

/// The parts of an `AttributeContext` that rules can see.
#[derive(Default)]
struct DescribedRequest<'a> {
    source: &'a [u8],
    method: &'a [u8],
    path: &'a [u8],
    host: &'a [u8],
    /// Headers with the same name are joined.
    headers: Vec<(&'a [u8], &'a [u8])>,
    /// All headers as they came, if Envoy is told to send them so (`encode_raw_headers`).
    raw_headers: Vec<(&'a [u8], &'a [u8])>,
}

impl<'a> DescribedRequest<'a> {
    fn read(message: &'a [u8]) -> Result<DescribedRequest<'a>, DecodeError> {
        let mut described = DescribedRequest::default();
        each(Fields::of(message), |request| match request.number {
            1 => each(request.message()?, |attributes| match attributes.number {
                1 => described.read_source(attributes.message()?),
                4 => described.read_request(attributes.message()?),
                _ => Ok(()),
            }),
            _ => Ok(()),
        })?;
        Ok(described)
    }

    fn read_source(&mut self, peer: Fields<'a>) -> Result<(), DecodeError> {
        let address = member(peer, 1)?;
        let socket = member(Fields::of(address), 1)?;
        self.source = member(Fields::of(socket), 2)?;
        Ok(())
    }

    fn read_request(&mut self, request: Fields<'a>) -> Result<(), DecodeError> {
        let http = member(request, 2)?;
        each(Fields::of(http), |field| {
            match field.number {
                2 => self.method = field.bytes()?,
                3 => self.headers.push((member(field.message()?, 1)?, member(field.message()?, 2)?)),
                4 => self.path = field.bytes()?,
                5 => self.host = field.bytes()?,
                13 => each(field.message()?, |header| {
                    let value = member(header.message()?, 3)?;
                    let value = if value.is_empty() { member(header.message()?, 2)? } else { value };
                    self.raw_headers.push((member(header.message()?, 1)?, value));
                    Ok(())
                })?,
                _ => {}
            }
            Ok(())
        })
    }

    /// The address that Envoy was connected to from.
    fn peer(&self) -> Result<IpAddr, CallError> {
        let text = std::str::from_utf8(self.source).unwrap_or_default();
        parse_ip(text).ok_or_else(|| {
            let message = "attributes.source.address has no IP address: it identifies the client";
            CallError::new(Code::InvalidArgument, message)
        })
    }

    /// The request as Envoy has received it, and its host.
    fn parts(&self, snapshot: &GateSnapshot) -> Result<(Parts, HeaderValue), (ProblemDetails, ErrorFormat)> {
        let (mut parts, ()) = Request::new(()).into_parts();
        let described = self.describe(&mut parts).and_then(|()| snapshot.requested_host(&parts));
        match described {
            Ok(host) => Ok((parts, host)),
            Err(problem) => Err((problem, error_response::format(parts.headers.get(ACCEPT)))),
        }
    }

    fn describe(&self, parts: &mut Parts) -> Result<(), ProblemDetails> {
        let headers = if self.raw_headers.is_empty() { &self.headers } else { &self.raw_headers };
        // Names that begin with a colon repeat the method, the path and the host.
        for (name, value) in headers.iter().filter(|(name, _)| !name.starts_with(b":")) {
            append(&mut parts.headers, name, value)
                .ok_or_else(|| ProblemDetails::bad_field("headers", "a header cannot be read"))?;
        }
        let host = HeaderValue::from_bytes(self.host);
        let host =
            host.map_err(|_| ProblemDetails::bad_field("host", "the Host header is not a valid host"))?;
        parts.headers.insert(HOST, host);
        parts.method = Method::from_bytes(self.method)
            .map_err(|_| ProblemDetails::bad_field("method", "not a valid method"))?;
        let uri = Uri::try_from(self.path).ok().filter(|uri| uri.authority().is_none());
        parts.uri =
            uri.ok_or_else(|| ProblemDetails::bad_field("path", "not a valid path with its query"))?;
        Ok(())
    }
}

/// `None` if the header is not valid, or there are too many.
fn append(headers: &mut HeaderMap, name: &[u8], value: &[u8]) -> Option<()> {
    let name = HeaderName::from_bytes(name).ok()?;
    let value = HeaderValue::from_bytes(value).ok()?;
    headers.try_append(name, value).ok().map(drop)
}

fn each<'a>(
    fields: Fields<'a>,
    mut read: impl FnMut(Field<'a>) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    fields.into_iter().try_for_each(|field| read(field?))
}

/// The bytes of a member of a message; empty if it is missing.
fn member<'a>(fields: Fields<'a>, number: u32) -> Result<&'a [u8], DecodeError> {
    let mut bytes = &[][..];
    each(fields, |field| {
        if field.number == number {
            bytes = field.bytes()?;
        }
        Ok(())
    })?;
    Ok(bytes)
}

/// Replaces a header of the same name.
const OVERWRITE: u64 = 2;

fn write_answer(message: &mut Vec<u8>, head: &response::Parts, body: &[u8]) {
    let write_headers = |message: &mut Vec<u8>, number| {
        for (name, value) in &head.headers {
            message.put_message(number, |option| {
                option.put_message(1, |header| {
                    header.put_text(1, name.as_str());
                    header.put_bytes(2, value.as_bytes());
                });
                option.put_varint(3, OVERWRITE);
            });
        }
    };
    if head.status == StatusCode::OK {
        message.put_message(1, |_status| {});
        message.put_message(3, |ok| write_headers(ok, 6));
        return;
    }
    message.put_message(1, |status| status.put_varint(1, Code::PermissionDenied as u64));
    message.put_message(2, |denied| {
        denied.put_message(1, |status| status.put_varint(1, u64::from(head.status.as_u16())));
        write_headers(denied, 2);
        denied.put_bytes(3, body);
    });
}
