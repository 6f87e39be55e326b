//! Server reflection (`grpc.reflection.v1`, and v1alpha, which has the same messages): which services there are and what
//! their messages look like, for clients such as grpcurl.

use super::protobuf::{DecodeError, Fields, WriteFields};
use super::status::{CallError, Code};
use super::stream::{Incoming, Outgoing};
use crate::connection::{BODY_TIMEOUT, HEADER_TIMEOUT, Shutdown, shutdown_requested};

mod descriptor;
mod files;

use descriptor::FileBytes;

pub const SERVICE: &str = "grpc.reflection.v1.ServerReflection";
pub const SERVICE_ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";
/// Requests of one stream; a client with more opens another.
pub const MAX_REQUESTS: usize = 1_000;
/// A request has the name of a file or a symbol, and is repeated in its reply.
pub const MAX_REQUEST_BYTES: usize = 4 << 10;

/// One request of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ReflectionRequest<'a> {
    FileByName(&'a str),
    FileWithSymbol(&'a str),
    ListServices,
    Unsupported,
}

/// Answers requests until the client has no more. A request is read once the reply before it is sent.
pub async fn answer_all(
    incoming: &mut Incoming,
    response: &mut Outgoing,
    mut shutdown: Shutdown,
) -> Result<(), CallError> {
    for _ in 0..MAX_REQUESTS {
        let message = tokio::select! {
            message = incoming.next(HEADER_TIMEOUT, BODY_TIMEOUT) => message?,
            () = shutdown_requested(&mut shutdown) => return Ok(()),
        };
        let Some(message) = message else { return Ok(()) };
        if message.len() > MAX_REQUEST_BYTES {
            let length = message.len();
            return Err(exhausted(format!("the request has {length} bytes: at most {MAX_REQUEST_BYTES}")));
        }
        let request = read(&message)?;
        if !response.send_in_turn(|answer| write_answer(answer, &message, request)).await? {
            return Ok(());
        }
    }
    match incoming.next(HEADER_TIMEOUT, BODY_TIMEOUT).await? {
        None => Ok(()),
        Some(_) => Err(exhausted(format!("a stream has at most {MAX_REQUESTS} requests: open another"))),
    }
}

fn exhausted(message: String) -> CallError {
    CallError::new(Code::ResourceExhausted, message)
}

fn read(message: &[u8]) -> Result<ReflectionRequest<'_>, DecodeError> {
    let mut request = ReflectionRequest::Unsupported;
    for field in Fields::of(message) {
        let field = field?;
        match field.number {
            3 => request = ReflectionRequest::FileByName(field.text()?),
            4 => request = ReflectionRequest::FileWithSymbol(field.text()?),
            5 | 6 => request = ReflectionRequest::Unsupported,
            7 => request = ReflectionRequest::ListServices,
            _ => {}
        }
    }
    Ok(request)
}

fn write_answer(answer: &mut Vec<u8>, original: &[u8], request: ReflectionRequest<'_>) {
    answer.put_bytes(2, original);
    let found = match request {
        ReflectionRequest::ListServices => {
            let list = |list: &mut Vec<u8>| {
                super::SERVICES.iter().for_each(|name| list.put_message(1, |one| one.put_text(1, name)));
            };
            return answer.put_message(6, list);
        }
        ReflectionRequest::FileByName(name) => descriptor::file(name),
        ReflectionRequest::FileWithSymbol(symbol) => descriptor::file_with(symbol),
        ReflectionRequest::Unsupported => None,
    };
    match found {
        Some(FileBytes { bytes, .. }) => answer.put_message(4, |files| files.put_bytes(1, bytes)),
        None => answer.put_message(7, |error| {
            error.put_varint(1, Code::NotFound as u64);
            error.put_text(2, "there is no such file or symbol");
        }),
    }
}
