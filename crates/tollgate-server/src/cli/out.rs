//! What commands print.

use std::io::Write;

use serde_json::Value;
use tollgate::document::Problems;

use crate::cli::Exit;
use crate::client::{Answered, ClientError};

/// A line of data. A reader that has gone away is no error.
pub fn line(text: impl std::fmt::Display) {
    writeln!(std::io::stdout().lock(), "{text}").ok();
}

/// A message to the person at the terminal.
pub fn message(text: impl std::fmt::Display) {
    writeln!(std::io::stderr().lock(), "{text}").ok();
}

pub fn pretty(value: &Value) {
    line(serde_json::to_string_pretty(value).expect("a JSON value can be written"));
}

/// Says why a configuration is not valid.
pub fn problems(problems: &Problems) -> Exit {
    message(problems);
    let count = problems.count();
    message(format!("{count} {}", if count == 1 { "problem" } else { "problems" }));
    Exit::InvalidConfiguration
}

/// Says why the server did not do what it was asked.
pub fn refused(answered: &Answered) -> Exit {
    let detail = answered.body.get("detail").and_then(Value::as_str).unwrap_or("the server refused");
    message(format!("error: {detail}"));
    match answered.status {
        401 | 403 => Exit::Unauthorised,
        _ => Exit::No,
    }
}

pub fn unreachable(error: &ClientError) -> Exit {
    message(format!("error: {error}"));
    match error {
        ClientError::Address { .. } => Exit::Usage,
        ClientError::Unreachable { .. } | ClientError::Answer { .. } => Exit::Unreachable,
    }
}
