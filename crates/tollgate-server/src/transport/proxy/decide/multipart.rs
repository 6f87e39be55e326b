//! Fields of `multipart/form-data` (RFC 7578) in the prefix of a body, which may be cut off.
//!
//! Servers disagree on line breaks, on what ends a part and on what names a field. Every reading is taken: a field is
//! found if some server may see it, and its value may be found in several forms, which makes it ambiguous
//! (`ambiguous_key`). The scan is linear: the number of readings is fixed, and a line is compared once in each.
//!
//! Not `multer` (3.1): it gives up at a line that begins like the boundary, and at 33 header lines of a part, where
//! servers read on, so fields behind these would be hidden from the rules.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use tollgate::internal::request::fields::{self, is_field};
use tollgate::internal::request::percent::{self, Plus};

/// How many bytes the spelling of a field's name may have beyond twice its length.
const MAX_NAME_PADDING: usize = 64;

/// The complete fields of a name, ignoring case. A part with a file name counts, too: some servers take it for a field.
pub fn fields(body: &[u8], boundary: &str, name: &str) -> Vec<String> {
    let mut found = Vec::new();
    for breaks in [LineBreaks::CrLf, LineBreaks::Any] {
        each_part(body, boundary, breaks, |part| values_of(part, name, &mut found));
    }
    found
}

/// What ends a line before a delimiter and behind it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineBreaks {
    CrLf,
    /// CR LF, LF or CR.
    Any,
}

/// What a line that begins with the delimiter is.
enum Delimiter {
    /// A part begins at this index.
    Part(usize),
    /// The closing delimiter. Some servers require more of its line, so the scan continues behind it.
    Close,
    /// Other text follows the delimiter. Some servers end a part here even so.
    Prefix,
}

/// Calls `on_part` with every complete part.
fn each_part<'b>(body: &'b [u8], boundary: &str, breaks: LineBreaks, mut on_part: impl FnMut(&'b [u8])) {
    let mut part = None;
    let mut has_prefix = false;
    let mut line = 0;
    while line < body.len() {
        let Some(delimiter) = delimiter_at(body, line, boundary, breaks) else {
            line = next_line(body, line);
            continue;
        };
        // At most once for each part, so that all of them together cost what the body does.
        let ends = !matches!(delimiter, Delimiter::Prefix) || !std::mem::replace(&mut has_prefix, true);
        if let Some(start) = part.filter(|_| ends) {
            on_part(&body[start..end_of_line_before(body, line).max(start)]);
        }
        line = match delimiter {
            Delimiter::Part(start) => {
                part = Some(start);
                has_prefix = false;
                start
            }
            Delimiter::Close => {
                part = None;
                next_line(body, line)
            }
            Delimiter::Prefix => next_line(body, line),
        };
    }
}

fn delimiter_at(body: &[u8], line: usize, boundary: &str, breaks: LineBreaks) -> Option<Delimiter> {
    let follows_break = breaks == LineBreaks::Any || line == 0 || body[..line].ends_with(b"\r\n");
    let rest = body[line..].strip_prefix(b"--")?.strip_prefix(boundary.as_bytes())?;
    if !follows_break {
        return None;
    }
    let padding = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    let start = match (breaks, &rest[padding..]) {
        (_, [b'\r', b'\n', ..]) => Some(2),
        (LineBreaks::Any, [b'\n' | b'\r', ..]) => Some(1),
        _ => None,
    };
    let at = body.len() - rest.len() + padding;
    match start {
        Some(line_break) => Some(Delimiter::Part(at + line_break)),
        None if rest.starts_with(b"--") => Some(Delimiter::Close),
        // The line is cut off.
        None if padding == rest.len() => None,
        None if breaks == LineBreaks::Any => Some(Delimiter::Prefix),
        None => None,
    }
}

/// The start of the next line, whatever the line breaks.
fn next_line(body: &[u8], line: usize) -> usize {
    let length = body[line..].iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    let end = length.map_or(body.len(), |length| line + length);
    match &body[end..] {
        [b'\r', b'\n', ..] => end + 2,
        [] => end,
        _ => end + 1,
    }
}

/// The end of the line that precedes the one at `line`.
fn end_of_line_before(body: &[u8], line: usize) -> usize {
    if body[..line].ends_with(b"\r\n") { line - 2 } else { line.saturating_sub(1) }
}

/// Adds the value of a part, if it has this field name: behind the first blank line, and behind the first one of CR LF.
fn values_of(part: &[u8], name: &str, found: &mut Vec<String>) {
    let strict = part.windows(4).position(|window| window == b"\r\n\r\n").map(|end| (end, end + 4));
    let any = blank_line(part);
    let other = strict.filter(|(_, start)| any.is_none_or(|(_, same)| same != *start));
    for (end, start) in any.into_iter().chain(other) {
        let head = PartHead::of(&part[..end]);
        if !head.dispositions.iter().any(|disposition| is_named(disposition, name)) {
            continue;
        }
        let value = &part[start..];
        found.extend(head.is_quoted_printable.then(|| quoted_printable(value)));
        found.extend(head.is_base64.then(|| base64_text(value)).flatten());
        found.push(String::from_utf8_lossy(value).into_owned());
    }
}

/// The end of the head and the start of the value, by the first blank line.
fn blank_line(part: &[u8]) -> Option<(usize, usize)> {
    let mut line = 0;
    while line < part.len() {
        let next = next_line(part, line);
        if matches!(part[line], b'\r' | b'\n') {
            return Some((line, next));
        }
        line = next;
    }
    None
}

/// What the header lines of a part say.
#[derive(Default)]
struct PartHead {
    dispositions: Vec<String>,
    is_quoted_printable: bool,
    is_base64: bool,
}

impl PartHead {
    fn of(head: &[u8]) -> PartHead {
        let text = String::from_utf8_lossy(head);
        let mut lines: Vec<String> = Vec::new();
        for line in text.split(['\r', '\n']).filter(|line| !line.is_empty()) {
            match lines.last_mut() {
                // A folded line.
                Some(last) if line.starts_with([' ', '\t']) => last.push_str(line),
                _ => lines.push(line.to_owned()),
            }
        }
        let mut head = PartHead::default();
        for line in &lines {
            let Some((name, value)) = line.split_once(':') else { continue };
            match name.trim().to_ascii_lowercase().as_str() {
                "content-disposition" => head.dispositions.push(value.to_owned()),
                "content-transfer-encoding" => {
                    let value = value.to_ascii_lowercase();
                    head.is_quoted_printable |= value.contains("quoted-printable");
                    head.is_base64 |= value.contains("base64");
                }
                _ => {}
            }
        }
        head
    }
}

/// Whether one of the `name` parameters of a header is `wanted`, in any spelling. Quotes are not respected: some servers
/// look for the text alone.
fn is_named(disposition: &str, wanted: &str) -> bool {
    const NAME: &str = "name";
    let lower = disposition.to_ascii_lowercase();
    lower.match_indices(NAME).any(|(at, _)| {
        let is_end_of_word =
            lower[..at].ends_with(|before: char| before.is_alphanumeric() || "-_*".contains(before));
        let rest = &disposition[at + NAME.len()..];
        match rest.strip_prefix('*') {
            _ if is_end_of_word => false, // `filename`
            // A name in pieces (RFC 2231, 3) may be any.
            Some(extended) if extended.starts_with(|next: char| next.is_ascii_digit()) => true,
            Some(extended) => assigned(extended).is_some_and(|value| is_extended(value, wanted)),
            None => assigned(rest).is_some_and(|value| is_spelled(value, wanted)),
        }
    })
}

/// The text behind an equals sign.
fn assigned(text: &str) -> Option<&str> {
    text.trim_start().strip_prefix('=').map(str::trim_start)
}

/// As much of a text as a spelling of `wanted` may take, so that texts full of names cost linear time.
fn bounded<'t>(text: &'t str, wanted: &str) -> &'t str {
    &text[..text.floor_char_boundary(3 * wanted.len() + MAX_NAME_PADDING)]
}

/// Whether a text begins with a name, in quotes or not.
fn is_spelled(text: &str, wanted: &str) -> bool {
    let text = bounded(text, wanted);
    let is_wanted = |name: &str| is_field(name.trim().bytes(), wanted, fields::lower);
    match text.chars().next() {
        Some(quote @ ('"' | '\'')) => {
            let (raw, unescaped) = quoted(&text[1..], quote);
            is_wanted(raw) || is_wanted(&unescaped)
        }
        _ => {
            let value = text.split(';').next().unwrap_or_default().trim_end_matches(['"', '\'']);
            is_wanted(value) || value.split_whitespace().next().is_some_and(is_wanted)
        }
    }
}

/// Whether an extended value (RFC 5987), `UTF-8''name`, is a name.
fn is_extended(text: &str, wanted: &str) -> bool {
    let value = bounded(text, wanted).split(';').next().unwrap_or_default().trim_matches('"');
    let name = value.rsplit('\'').next().unwrap_or_default();
    let name = percent::text(percent::decode(name, Plus::Literal).collect());
    is_field(name.trim().bytes(), wanted, fields::lower)
}

/// A quoted string up to its end, as it is written and without escapes. It need not be closed.
fn quoted(text: &str, quote: char) -> (&str, String) {
    let mut unescaped = String::new();
    let mut is_escaped = false;
    for (at, char) in text.char_indices() {
        match char {
            '\\' if !is_escaped => {
                is_escaped = true;
                continue;
            }
            end if end == quote && !is_escaped => return (&text[..at], unescaped),
            other => unescaped.push(other),
        }
        is_escaped = false;
    }
    (text, unescaped)
}

/// Decodes `=XX` and soft line breaks (RFC 2045, 6.7).
fn quoted_printable(value: &[u8]) -> String {
    let mut decoded = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((&byte, after)) = rest.split_first() {
        let digit = |at: usize| after.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        let (taken, text) = match (byte, after) {
            (b'=', [b'\r', b'\n', ..]) => (2, None),
            (b'=', [b'\n', ..]) => (1, None),
            (b'=', _) => match digit(0).zip(digit(1)) {
                Some((high, low)) => (2, Some((high << 4 | low) as u8)),
                None => (0, Some(byte)),
            },
            _ => (0, Some(byte)),
        };
        decoded.extend(text);
        rest = &after[taken..];
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

fn base64_text(value: &[u8]) -> Option<String> {
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    // Lenient decoders skip all other characters.
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let plain: Vec<u8> = value.iter().copied().filter(is_digit).collect();
    let decoded = GeneralPurpose::new(&STANDARD, config).decode(plain).ok()?;
    Some(String::from_utf8_lossy(&decoded).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str = "preamble\r\n--XX \r\nContent-Disposition: form-data; name=\"file\"; filename=\"email\"\r\n\
        Content-Type: text/plain\r\n\r\ntext\r\n--XX\r\n\
        content-disposition: form-data; name=email\r\n\r\nann@example.com\r\n--XX\r\n\
        Content-Disposition: form-data; name=\"email\"\r\n\r\nbob\r\n--XX\r\n\
        Content-Disposition: form-data; name=\"two\"\r\n\r\nlines\r\nof text\r\n--XX--\r\nepilogue";

    fn found(body: &[u8], name: &str) -> Vec<String> {
        let mut values = fields(body, "XX", name);
        let mut known = Vec::new();
        values.retain(|value| {
            !known.contains(value) && {
                known.push(value.clone());
                true
            }
        });
        values
    }

    /// One part that should have the value `v` for the field `email`.
    #[track_caller]
    fn check(head: &str) {
        let body = format!("--XX\r\n{head}\r\n\r\nv\r\n--XX--\r\n");
        assert!(found(body.as_bytes(), "email").contains(&"v".to_owned()), "{head:?}");
    }

    #[test]
    fn fields_are_found_among_files_and_others() {
        assert_eq!(found(FORM.as_bytes(), "email"), ["ann@example.com", "bob"]);
        assert_eq!(found(FORM.as_bytes(), "EMAIL"), ["ann@example.com", "bob"]);
        assert_eq!(found(FORM.as_bytes(), "two"), ["lines\r\nof text"]);
        assert_eq!(found(FORM.as_bytes(), "file"), ["text"], "some servers take a file for a field");
        assert_eq!(found(&FORM.as_bytes()[10..], "email"), ["ann@example.com", "bob"]);
        for name in ["none", "", "filename", "text"] {
            assert!(found(FORM.as_bytes(), name).is_empty(), "{name}");
        }
    }

    #[test]
    fn line_feeds_alone_are_line_breaks_for_some_servers() {
        for line_break in ["\n", "\r"] {
            let form = FORM.replace("\r\n", line_break);
            assert_eq!(found(form.as_bytes(), "email"), ["ann@example.com", "bob"], "{line_break:?}");
        }
        let mixed = FORM.replace("\r\n\r\n", "\n\n");
        assert_eq!(found(mixed.as_bytes(), "email"), ["ann@example.com", "bob"]);
    }

    #[test]
    fn every_spelling_of_a_name_is_that_name() {
        for parameters in [
            "name=\"email\"; filename=\"\"",
            "name=\"email\"; filename=\"a.txt\"",
            "name=\"x\"; name=\"email\"",
            "name=\"email\"; name=\"x\"",
            "NAME=EMAIL",
            "name = \"email\"",
            "name='email'",
            "name=\"email",
            "name=\"em\\ail\"",
            "name=email x",
            "name*=UTF-8''%65mail",
            "name*=\"utf-8'en'email\"",
            "name*0=em; name*1=ail",
            "x=\"; name=email\"",
        ] {
            check(&format!("Content-Disposition: form-data; {parameters}"));
        }
        check("Content-Disposition: form-data;\r\n name=\"email\"");
        check("Content-Disposition: form-data; name=x\r\nContent-Disposition: form-data; name=email");
        check("x: y\r\ncontent-disposition : form-data; name=email");
    }

    #[test]
    fn other_names_are_not_it() {
        for parameters in
            ["name=\"emails\"", "filename=\"email\"", "name=\"e-mail\"", "x-name=email", "name", "name=", ""]
        {
            let body = format!("--XX\r\nContent-Disposition: form-data; {parameters}\r\n\r\nv\r\n--XX--\r\n");
            assert!(found(body.as_bytes(), "email").is_empty(), "{parameters}");
        }
    }

    #[test]
    fn text_behind_a_delimiter_hides_no_value() {
        let head = "Content-Disposition: form-data; name=email\r\n\r\n";
        let body = format!("--XX\r\n{head}ann\r\n--XXmore\r\nx\r\n--XX--\r\n");
        assert_eq!(found(body.as_bytes(), "email"), ["ann\r\n--XXmore\r\nx", "ann"]);
        let behind_an_end = format!("--XX\r\n\r\nx\n--XX--\nx\r\n--XX\r\n{head}ann\r\n--XX--\r\n");
        assert_eq!(found(behind_an_end.as_bytes(), "email"), ["ann"]);
    }

    #[test]
    fn transfer_encodings_are_decoded() {
        for (encoding, value) in [
            ("quoted-printable", "=76ic=\r\ntim"),
            ("Quoted-Printable", "victim"),
            ("base64", "dmlj\r\ndGlt"),
            ("base64", "dm-ljdGlt=="),
        ] {
            let body = format!(
                "--XX\r\nContent-Disposition: form-data; name=email\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n{value}\r\n--XX--"
            );
            assert!(found(body.as_bytes(), "email").contains(&"victim".to_owned()), "{encoding}: {value}");
        }
    }

    #[test]
    fn what_is_cut_off_has_no_value() {
        let value = "ann@example.com\r\n--XX\r\n";
        let whole = FORM.find(value).expect("it is there") + value.len();
        for cut in 0..whole - 1 {
            assert!(found(&FORM.as_bytes()[..cut], "email").is_empty(), "cut at {cut}");
        }
        assert_eq!(found(&FORM.as_bytes()[..whole], "email"), ["ann@example.com"]);
        assert!(found(b"--XX\r\n\r\n\r\n--XX--", "email").is_empty(), "a part without a head");
        assert!(found(b"--XX\r\n--XX\r\n--XX--", "email").is_empty(), "no part at all");
    }
}
