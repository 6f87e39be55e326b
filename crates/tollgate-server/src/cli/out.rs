//! Output of commands.

use std::io::{self, Write};

use serde_json::{Value, json};
use tollgate::internal::document::Problems;

use crate::cli::Exit;
use crate::client::{ClientError, ClientResponse};

/// Prints a line of data. A closed pipe is not an error.
pub fn line(text: impl std::fmt::Display) {
    try_line(text).ok();
}

/// Prints one of many lines of data; returns the error of a closed pipe, so that the caller can stop.
pub fn try_line(text: impl std::fmt::Display) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{text}")
}

/// Prints a whole file. A closed pipe is not an error.
pub fn file(bytes: &[u8]) -> io::Result<()> {
    match io::stdout().lock().write_all(bytes) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// The exit code of writing a file; an error is printed.
pub fn written(result: io::Result<()>) -> Exit {
    match result {
        Ok(()) => Exit::Success,
        Err(error) => {
            message(format!("error: {error}"));
            Exit::Failure
        }
    }
}

/// Prints a message to stderr.
pub fn message(text: impl std::fmt::Display) {
    writeln!(io::stderr().lock(), "{text}").ok();
}

pub fn warnings(warnings: Vec<String>) {
    for warning in warnings {
        message(format!("warning: {warning}"));
    }
}

pub fn pretty(value: &Value) {
    line(serde_json::to_string_pretty(value).expect("a JSON value can be written"));
}

/// Escapes control characters, which could move the terminal's cursor or reorder its line.
pub fn escape_control(text: &str) -> String {
    let is_strange = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_strange(c) { escaped.extend(c.escape_default()) } else { escaped.push(c) }
    }
    escaped
}

/// A string field of a response; empty if absent.
pub fn text_field(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

/// `1 rule`, `2 rules`
pub fn pluralize(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// The result of an import.
pub fn tally(done: &Value) -> String {
    let names = ["created", "changed", "deleted", "unchanged"];
    let counts = names.iter().filter_map(|name| Some(format!("{} {name}", done.get(*name)?)));
    counts.collect::<Vec<_>>().join(", ")
}

/// Prints why a configuration is invalid.
pub fn problems(problems: &Problems) -> Exit {
    message(problems);
    message(pluralize(problems.count() as u64, "problem"));
    Exit::InvalidConfiguration
}

/// Like [`problems`], as JSON on stdout.
pub fn json_problems(problems: &Problems) -> Exit {
    let list: Vec<_> = problems
        .iter()
        .map(|problem| {
            json!({
                "file": problem.file(),
                "line": problem.position().map(|position| position.line),
                "column": problem.position().map(|position| position.column),
                "path": problem.path(),
                "message": problem.message(),
            })
        })
        .collect();
    pretty(&json!({ "valid": false, "problems": list }));
    Exit::InvalidConfiguration
}

/// Prints the error response of the server. `listener` is the setting of the address that the command calls.
pub fn refused(answered: &ClientResponse, listener: &str) -> Exit {
    let detail =
        answered.body.get("detail").and_then(Value::as_str).unwrap_or("the server rejected the call");
    let hint = match answered.status {
        401 => "; set TOLLGATE_TOKEN, or TOLLGATE_TOKEN_FILE".to_owned(),
        404 if detail.starts_with("there is nothing at") => {
            format!("; is this the address of {listener}?")
        }
        _ => String::new(),
    };
    message(format!("error: {}{hint}", detail.lines().map(escape_control).collect::<Vec<_>>().join("\n")));
    match answered.status {
        401 | 403 => Exit::Unauthorised,
        _ => Exit::Failure,
    }
}

/// Prints why there is no response.
pub fn failed(error: &ClientError) -> Exit {
    message(format!("error: {error}"));
    match error {
        ClientError::Address { .. } | ClientError::Token { .. } | ClientError::Roots { .. } => Exit::Usage,
        ClientError::Unreachable { .. } | ClientError::Answer { .. } => Exit::Unreachable,
        ClientError::Output { .. } => Exit::Failure,
    }
}
