//! Access logs: lines become hits, dated by the log's own clock.
//!
//! A record has the fields that are selected, the same ones in every format that can hold them. The format is recognised by
//! the first line that has one. A line that cannot be read is counted and skipped. Time never
//! goes back, as in the server: a line dated before an earlier line is decided at the time of that line.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;
use thiserror::Error;
use tollgate::internal::http::FieldSelection;
use tollgate::internal::identity::FieldSource;
use tollgate::{Hit, Time};

use crate::cli::progress::Progress;
use crate::cli::{Exit, out};

mod csv_line;
mod field_names;
mod json_line;
mod text_line;
mod timestamp;

use csv_line::CsvColumns;

/// A longer line is skipped as unreadable.
const MAX_LINE_BYTES: usize = 64 << 10;
const BUFFER_BYTES: usize = 1 << 20;
/// The first two bytes of a gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const PROGRESS_LINES: u64 = 1 << 14;

/// The formats that can be forced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum AccessLogFormat {
    /// The common log format of Apache and nginx
    Common,
    /// The same with referer and user agent; a virtual host may come first
    Combined,
    /// One JSON object a line, as Caddy, Traefik and nginx write it
    Json,
    /// Comma-separated values with a header line
    Csv,
}

/// One request of a log.
#[derive(Default, Debug)]
pub struct LogRecord<'a> {
    at: Option<Time>,
    at_rank: u8,
    ip: Option<IpAddr>,
    ip_rank: u8,
    domain: Option<Cow<'a, str>>,
    user: Option<Cow<'a, str>>,
    email: Option<Cow<'a, str>>,
    mac: Option<Cow<'a, str>>,
    api_key: Option<Cow<'a, str>>,
    method: Option<Cow<'a, str>>,
    host: Option<Cow<'a, str>>,
    path: Option<Cow<'a, str>>,
    /// Headers with lower-case names, and attributes: the selected ones, each with its value.
    fields: SmallVec<[(FieldSource, &'a str, Cow<'a, str>); 4]>,
    cost: Option<u64>,
    /// The status of the response.
    pub status: Option<u16>,
}

impl LogRecord<'_> {
    /// The hit of the request.
    pub fn hit(&self) -> Hit<'_> {
        let [method, host, path] =
            [&self.method, &self.host, &self.path].map(|part| part.as_deref().unwrap_or_default());
        let mut hit = Hit::on(method, host, path);
        if let Some(ip) = self.ip {
            hit = hit.ip(ip);
        }
        if let Some(domain) = self.domain.as_deref() {
            hit = hit.domain(domain);
        }
        if let Some(user) = self.user.as_deref() {
            hit = hit.user(user);
        }
        if let Some(email) = self.email.as_deref() {
            hit = hit.email(email);
        }
        if let Some(mac) = self.mac.as_deref() {
            hit = hit.mac(mac);
        }
        if let Some(api_key) = self.api_key.as_deref() {
            hit = hit.api_key(api_key);
        }
        if let Some(cost) = self.cost {
            hit = hit.cost(cost);
        }
        for (source, name, value) in &self.fields {
            hit = hit.field(*source, *name, value.as_ref());
        }
        hit
    }
}

/// What was read.
#[derive(Default)]
pub struct AccessLogSummary {
    /// Lines that became requests.
    pub requests: u64,
    pub unreadable: u64,
    /// The number of the first unreadable line, and why.
    pub first_unreadable: Option<(u64, String)>,
    /// Lines dated before an earlier one.
    pub late: u64,
    /// By how much at most.
    pub max_late: Duration,
    pub first: Option<Time>,
    pub last: Time,
}

impl AccessLogSummary {
    /// Prints what was not read as it is written.
    pub fn print_notes(&self, name: &str) {
        if let Some((line, why)) = &self.first_unreadable {
            let count = out::pluralize(self.unreadable, "line");
            out::message(format!(
                "warning: {count} could not be read; the first is {name}:{line}: {}",
                out::escape_control(why)
            ));
        }
        if self.late > 0 {
            let by = tollgate::internal::time::format_duration(self.max_late);
            let were = if self.late == 1 { "is" } else { "are" };
            out::message(format!(
                "note: {} {were} dated before an earlier line, by at most {by}: decided at the time of the \
                 latest line before them",
                out::pluralize(self.late, "line"),
            ));
        }
        if self.max_late > MAX_PLAUSIBLE_LATE {
            out::message(
                "warning: the log is not in order of time: sort it first, or the limits see a flood",
            );
        }
    }
}

/// Requests are logged when they end, so lines may be late by a long response.
const MAX_PLAUSIBLE_LATE: Duration = Duration::from_secs(300);

/// Why a log cannot be read at all.
#[derive(Debug, Error)]
pub enum AccessLogError {
    #[error("{error} in line {line}")]
    Unreadable { line: u64, error: io::Error },
    #[error("no known log format, line {line}: {why}")]
    UnknownFormat { line: u64, why: String },
}

/// For a log that is one JSON array.
const ONE_OBJECT_A_LINE: &str = "expected one JSON object a line: `jq -c '.[]'` writes an array so";

enum LineParser<'s> {
    Text,
    Json,
    Csv(CsvColumns<'s>),
}

/// A log that is being read.
pub struct AccessLog {
    pub name: String,
    input: Box<dyn BufRead>,
    total_bytes: Option<u64>,
    forced: Option<AccessLogFormat>,
}

impl AccessLog {
    /// Opens a file, or stdin for `-`.
    pub fn open(path: &Path, forced: Option<AccessLogFormat>) -> Result<AccessLog, Exit> {
        let fail = |why: String| {
            out::message(format!("error: {}: {why}", path.display()));
            Exit::Usage
        };
        let is_stdin = path == Path::new("-");
        let mut total_bytes = None;
        let mut input: Box<dyn BufRead> = if is_stdin {
            Box::new(BufReader::with_capacity(BUFFER_BYTES, io::stdin()))
        } else {
            let file = File::open(path).map_err(|error| fail(format!("cannot be opened: {error}")))?;
            total_bytes = file.metadata().ok().filter(|meta| meta.is_file()).map(|meta| meta.len());
            Box::new(BufReader::with_capacity(BUFFER_BYTES, file))
        };
        let start = input.fill_buf().map_err(|error| fail(format!("cannot be read: {error}")))?;
        if start.starts_with(&GZIP_MAGIC) {
            let shown = path.display();
            return Err(fail(format!("is compressed: pipe it, as in `zcat {shown} | tollgate … -`")));
        }
        let name = if is_stdin { "stdin".to_owned() } else { path.display().to_string() };
        Ok(AccessLog { name, input, total_bytes, forced })
    }

    /// A log in memory.
    pub fn of_text(name: &str, text: Bytes) -> AccessLog {
        let input = Box::new(io::Cursor::new(text));
        AccessLog { name: name.to_owned(), input, total_bytes: None, forced: None }
    }

    /// Reads to the end; calls `visit` with each request, which has the selected fields, and its time. Shows the progress,
    /// and prints an error.
    pub fn read(
        &mut self,
        selection: &FieldSelection,
        visit: impl FnMut(&LogRecord<'_>, Time),
    ) -> Result<AccessLogSummary, Exit> {
        let progress = Progress::start(format!("reading {}", self.name), self.total_bytes);
        let read = self.read_lines(selection, |bytes| progress.at(bytes), visit);
        drop(progress);
        read.map_err(|error| {
            let (hint, exit) = match error {
                AccessLogError::Unreadable { .. } => ("", Exit::Failure),
                AccessLogError::UnknownFormat { .. } => {
                    ("; --format common, combined, json or csv forces one", Exit::Usage)
                }
            };
            out::message(format!("error: {}: {error}{hint}", self.name));
            exit
        })
    }

    /// Like [`read`](Self::read), and prints nothing. `progress` receives the bytes so far.
    pub fn read_lines(
        &mut self,
        selection: &FieldSelection,
        progress: impl Fn(u64),
        mut visit: impl FnMut(&LogRecord<'_>, Time),
    ) -> Result<AccessLogSummary, AccessLogError> {
        let mut summary = AccessLogSummary::default();
        let mut parser = match self.forced {
            Some(AccessLogFormat::Common | AccessLogFormat::Combined) => Some(LineParser::Text),
            Some(AccessLogFormat::Json) => Some(LineParser::Json),
            Some(AccessLogFormat::Csv) | None => None,
        };
        let mut line = Vec::new();
        let mut number = 0;
        let mut bytes = 0;
        loop {
            line.clear();
            let length = read_line(&mut self.input, &mut line)
                .map_err(|error| AccessLogError::Unreadable { line: number + 1, error })?;
            if length == 0 {
                break;
            }
            number += 1;
            bytes += length;
            if number % PROGRESS_LINES == 0 {
                progress(bytes);
            }
            let result = match text_of(&line) {
                Ok("") => continue,
                Ok(text) => match parse(text, selection, self.forced, &mut parser) {
                    Ok(Some(record)) => {
                        let at = summary.date(&record);
                        visit(&record, at);
                        Ok(())
                    }
                    Ok(None) => continue,
                    Err(why) => Err(why),
                },
                Err(why) => Err(why),
            };
            if let Err(why) = result {
                summary.unreadable += 1;
                summary.first_unreadable.get_or_insert((number, why));
            }
        }
        match summary.first_unreadable {
            Some((line, why)) if summary.requests == 0 => Err(AccessLogError::UnknownFormat { line, why }),
            first_unreadable => Ok(AccessLogSummary { first_unreadable, ..summary }),
        }
    }
}

impl AccessLogSummary {
    /// The time at which a request is decided.
    fn date(&mut self, record: &LogRecord<'_>) -> Time {
        let at = record.at.unwrap_or(self.last);
        self.requests += 1;
        if at < self.last {
            self.late += 1;
            self.max_late = self.max_late.max(self.last.since(at));
        } else {
            self.last = at;
        }
        self.first.get_or_insert(at);
        self.last
    }
}

/// Reads a line without its bound exceeded; the rest of a longer line is skipped. Returns the bytes consumed.
fn read_line(input: &mut Box<dyn BufRead>, line: &mut Vec<u8>) -> io::Result<u64> {
    let mut consumed = input.take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', line)?;
    if line.len() > MAX_LINE_BYTES && line.last() != Some(&b'\n') {
        consumed += input.skip_until(b'\n')?;
    }
    Ok(consumed as u64)
}

fn text_of(line: &[u8]) -> Result<&str, String> {
    if line.len() > MAX_LINE_BYTES {
        return Err(format!("the line is longer than {MAX_LINE_BYTES} bytes"));
    }
    let text = str::from_utf8(line).map_err(|_| "the line is not UTF-8 text".to_owned())?;
    Ok(text.trim_ascii())
}

/// The request of a line; `None` for a header line. The format is fixed by the first line that has one.
fn parse<'l, 's: 'l>(
    line: &'l str,
    selection: &'s FieldSelection,
    forced: Option<AccessLogFormat>,
    parser: &mut Option<LineParser<'s>>,
) -> Result<Option<LogRecord<'l>>, String> {
    let record = match parser {
        Some(LineParser::Text) => text_line::parse(line, selection)?,
        Some(LineParser::Json) => json_line::parse(line, selection)?,
        Some(LineParser::Csv(columns)) => columns.parse(line)?,
        None if line.starts_with('{') && forced.is_none() => {
            let record = json_line::parse(line, selection)?;
            *parser = Some(LineParser::Json);
            record
        }
        None => match CsvColumns::of_header(line, selection) {
            Ok(columns) => {
                *parser = Some(LineParser::Csv(columns));
                return Ok(None);
            }
            Err(why) if forced.is_some() => return Err(why),
            Err(why) => {
                let record = text_line::parse(line, selection).map_err(|of_text| match line {
                    _ if line.starts_with('[') => ONE_OBJECT_A_LINE.to_owned(),
                    _ if line.contains(',') && !line.contains(' ') => why,
                    _ => of_text,
                })?;
                *parser = Some(LineParser::Text);
                record
            }
        },
    };
    if record.at.is_none() {
        return Err("the line has no time".to_owned());
    }
    Ok(Some(record))
}

#[cfg(test)]
mod testing {
    use tollgate::internal::identity::Attribute;

    use super::FieldSelection;

    /// The fields of these attributes.
    pub fn selection(attributes: &[&str]) -> FieldSelection {
        let of = |name: &&str| FieldSelection::of_attribute(&Attribute::parse(name).expect("an attribute"));
        attributes.iter().map(of).fold(FieldSelection::default(), |all, one| all.union(&one))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Vec<(u64, String)>, AccessLogSummary) {
        let input = Box::new(io::Cursor::new(text.as_bytes().to_vec()));
        let mut log = AccessLog { name: "test".to_owned(), input, total_bytes: None, forced: None };
        let mut seen = Vec::new();
        let summary = log.read(&FieldSelection::default(), |record, at| {
            let path = record.path.as_deref().unwrap_or_default();
            seen.push((at.secs(), path.to_owned()));
        });
        (seen, summary.expect("the log can be read"))
    }

    #[test]
    fn time_never_goes_back_and_unreadable_lines_are_counted() {
        let line = |second: u32, path: &str| {
            format!("192.0.2.1 - - [01/Jan/2026:00:00:{second:02} +0000] \"GET {path} HTTP/1.1\" 200 1\n")
        };
        let long = "x".repeat(MAX_LINE_BYTES + 10);
        let text =
            [line(5, "/a"), "nonsense\n".to_owned(), line(3, "/b"), "\n".into(), long + "\n", line(6, "/c")];
        let (seen, summary) = read(&text.concat());
        let paths: Vec<_> = seen.iter().map(|(at, path)| (at - seen[0].0, path.as_str())).collect();
        assert_eq!(paths, [(0, "/a"), (0, "/b"), (1, "/c")]);
        assert_eq!((summary.requests, summary.unreadable, summary.late), (3, 2, 1));
        assert_eq!(summary.max_late, Duration::from_secs(2));
        assert_eq!(summary.first_unreadable.map(|(line, _)| line), Some(2));
    }

    #[test]
    fn a_last_line_without_its_end_counts() {
        let (seen, _) = read("{\"ts\": 1800000000.5, \"uri\": \"/x\"}");
        assert_eq!(seen, [(1_800_000_000, "/x".to_owned())]);
    }
}
