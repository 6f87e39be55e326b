//! Server reflection (`grpc.reflection.v1`, and v1alpha, which has the same messages): which services there are and what
//! their messages look like, for clients such as grpcurl.

use super::protobuf::{DecodeError, Fields, WriteFields};
use super::status::{CallError, Code};
use super::stream::{Incoming, Outgoing};
use crate::connection::{HEADER_TIMEOUT, Shutdown, shutdown_requested};

mod descriptor;
mod files;

use descriptor::FileBytes;

pub const SERVICE: &str = "grpc.reflection.v1.ServerReflection";
pub const SERVICE_ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";

/// One question of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Question<'a> {
    FileByName(&'a str),
    FileWithSymbol(&'a str),
    ListServices,
    Unsupported,
}

/// Answers questions until the client has no more.
pub async fn answer_all(
    mut incoming: Incoming,
    response: &mut Outgoing,
    mut shutdown: Shutdown,
) -> Result<(), CallError> {
    loop {
        let message = tokio::select! {
            message = incoming.next(HEADER_TIMEOUT) => message?,
            () = shutdown_requested(&mut shutdown) => return Ok(()),
        };
        let Some(message) = message else { return Ok(()) };
        let question = read(&message)?;
        if response.send(|answer| write_answer(answer, &message, question)).is_err() {
            return Ok(());
        }
    }
}

fn read(message: &[u8]) -> Result<Question<'_>, DecodeError> {
    let mut question = Question::Unsupported;
    for field in Fields::of(message) {
        let field = field?;
        match field.number {
            3 => question = Question::FileByName(field.text()?),
            4 => question = Question::FileWithSymbol(field.text()?),
            5 | 6 => question = Question::Unsupported,
            7 => question = Question::ListServices,
            _ => {}
        }
    }
    Ok(question)
}

fn write_answer(answer: &mut Vec<u8>, original: &[u8], question: Question<'_>) {
    answer.put_bytes(2, original);
    let found = match question {
        Question::ListServices => {
            let list = |list: &mut Vec<u8>| {
                super::SERVICES.iter().for_each(|name| list.put_message(1, |one| one.put_text(1, name)));
            };
            return answer.put_message(6, list);
        }
        Question::FileByName(name) => descriptor::file(name),
        Question::FileWithSymbol(symbol) => descriptor::file_with(symbol),
        Question::Unsupported => None,
    };
    match found {
        Some(FileBytes { bytes, .. }) => answer.put_message(4, |files| files.put_bytes(1, bytes)),
        None => answer.put_message(7, |error| {
            error.put_varint(1, Code::NotFound as u64);
            error.put_text(2, "there is no such file or symbol");
        }),
    }
}
