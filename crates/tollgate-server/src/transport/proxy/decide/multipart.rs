//! Fields of `multipart/form-data` (RFC 7578) in the prefix of a body, which may be cut off.
//!
//! Not `multer` (3.1): it gives up at a line that begins like the boundary, and at 33 header lines of a part, where
//! servers read on, so fields behind these would be hidden from the rules.

use std::borrow::Cow;

/// Longer boundaries are invalid (RFC 2046, 5.1.1).
const MAX_BOUNDARY: usize = 70;

/// The boundary of a content type, if it is `multipart/form-data`.
pub fn boundary(content_type: &str) -> Option<Cow<'_, str>> {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    parameter(content_type, "boundary").filter(|boundary| (1..=MAX_BOUNDARY).contains(&boundary.len()))
}

/// The complete fields of a name, ignoring case; files do not count.
pub fn fields(body: &[u8], boundary: &str, name: &str) -> Vec<String> {
    let mut found = Vec::new();
    each_part(body, boundary, |part| found.extend(value_of(part, name)));
    found
}

/// Calls `visit` with every complete part.
fn each_part<'b>(body: &'b [u8], boundary: &str, mut on_part: impl FnMut(&'b [u8])) -> Option<()> {
    let delimiter = format!("\r\n--{boundary}");
    // The first delimiter of a body has no line break before it.
    let mut rest = match body.strip_prefix(&delimiter.as_bytes()[2..]).map(after_delimiter) {
        Some(AfterDelimiter::Part(part)) => part,
        Some(AfterDelimiter::End) => return None,
        Some(AfterDelimiter::NotDelimiter) | None => split(body, delimiter.as_bytes())?.1?,
    };
    loop {
        let (part, next) = split(rest, delimiter.as_bytes())?;
        on_part(part);
        rest = next?;
    }
}

/// What follows a delimiter.
enum AfterDelimiter<'b> {
    Part(&'b [u8]),
    /// The closing delimiter.
    End,
    /// Not a delimiter after all.
    NotDelimiter,
}

fn after_delimiter(rest: &[u8]) -> AfterDelimiter<'_> {
    let padding = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    match rest[padding..].strip_prefix(b"\r\n") {
        Some(part) => AfterDelimiter::Part(part),
        None if rest.starts_with(b"--") => AfterDelimiter::End,
        None => AfterDelimiter::NotDelimiter,
    }
}

/// The bytes before the next delimiter, and those after it unless it was the closing one.
fn split<'b>(bytes: &'b [u8], delimiter: &[u8]) -> Option<(&'b [u8], Option<&'b [u8]>)> {
    let mut from = 0;
    loop {
        let at = from + find(&bytes[from..], delimiter)?;
        match after_delimiter(&bytes[at + delimiter.len()..]) {
            AfterDelimiter::Part(part) => return Some((&bytes[..at], Some(part))),
            AfterDelimiter::End => return Some((&bytes[..at], None)),
            AfterDelimiter::NotDelimiter => from = at + 2,
        }
    }
}

/// The value of a part, if it has this field name.
fn value_of(part: &[u8], name: &str) -> Option<String> {
    let end = find(part, b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&part[..end]);
    let disposition = head.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    })?;
    let named = parameter(disposition, "name").is_some_and(|found| found.eq_ignore_ascii_case(name));
    let is_file =
        parameter(disposition, "filename").is_some() || parameter(disposition, "filename*").is_some();
    (named && !is_file).then(|| String::from_utf8_lossy(&part[end + 4..]).into_owned())
}

/// The value of a header's parameter; it may be quoted.
fn parameter<'h>(header: &'h str, name: &str) -> Option<Cow<'h, str>> {
    let mut rest = header.split_once(';')?.1;
    loop {
        let (key, after) = rest.split_once('=')?;
        let (value, after) = match after.trim_start().strip_prefix('"') {
            Some(quoted) => {
                let (value, after) = unquote(quoted)?;
                (value, after.split_once(';').map_or("", |(_, after)| after))
            }
            None => {
                let (value, after) = after.split_once(';').unwrap_or((after, ""));
                (Cow::Borrowed(value.trim()), after)
            }
        };
        // A parameter without a value may precede this one.
        if key.rsplit(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(name) {
            return Some(value);
        }
        rest = after;
    }
}

/// A quoted string without its quotes, and the rest behind it.
fn unquote(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let mut escaped = false;
    let end = text.bytes().position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })?;
    let value = &text[..end];
    let rest = &text[end + 1..];
    let plain =
        if value.contains('\\') { Cow::Owned(value.replace("\\\"", "\"")) } else { Cow::Borrowed(value) };
    Some((plain, rest))
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str = "preamble\r\n--XX \r\nContent-Disposition: form-data; name=\"file\"; filename=\"a; name=\\\"email\\\"\"\r\n\
        Content-Type: text/plain\r\n\r\n--XX is no delimiter here\r\n--XX\r\n\
        content-disposition: form-data; name=email\r\n\r\nann@example.com\r\n--XX\r\n\
        Content-Disposition: form-data; name=\"email\"\r\n\r\nbob\r\n--XX\r\n\
        Content-Disposition: form-data; name=\"two\"\r\n\r\nlines\r\nof text\r\n--XX--\r\nepilogue";

    fn found(body: &[u8], name: &str) -> Vec<String> {
        fields(body, "XX", name)
    }

    #[test]
    fn fields_are_found_among_files_and_others() {
        assert_eq!(found(FORM.as_bytes(), "email"), ["ann@example.com", "bob"]);
        assert_eq!(found(FORM.as_bytes(), "EMAIL"), ["ann@example.com", "bob"]);
        assert_eq!(found(FORM.as_bytes(), "two"), ["lines\r\nof text"]);
        assert_eq!(found(&FORM.as_bytes()[10..], "email"), ["ann@example.com", "bob"]);
        for name in ["file", "none", ""] {
            assert!(found(FORM.as_bytes(), name).is_empty(), "{name}");
        }
    }

    #[test]
    fn what_is_cut_off_has_no_value() {
        let value = "ann@example.com\r\n--XX\r\n";
        let whole = FORM.find(value).expect("it is there") + value.len();
        for cut in 0..whole {
            assert!(found(&FORM.as_bytes()[..cut], "email").is_empty(), "cut at {cut}");
        }
        assert_eq!(found(&FORM.as_bytes()[..whole], "email"), ["ann@example.com"]);
        assert!(found(b"--XX\r\n\r\n\r\n--XX--", "email").is_empty(), "a part without a head");
        let behind_the_end = format!("--XX--\r\n{}", &FORM[10..]);
        assert!(found(behind_the_end.as_bytes(), "email").is_empty(), "nothing follows the end");
    }

    #[test]
    fn the_boundary_is_that_of_a_form() {
        assert_eq!(boundary("multipart/form-data; boundary=XX").as_deref(), Some("XX"));
        assert_eq!(
            boundary("Multipart/Form-Data;charset=utf-8; BOUNDARY=\"a b\"; x=y").as_deref(),
            Some("a b")
        );
        for other in [
            "multipart/mixed; boundary=XX",
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "text/plain",
        ] {
            assert_eq!(boundary(other), None, "{other}");
        }
        assert_eq!(boundary(&format!("multipart/form-data; boundary={}", "x".repeat(71))), None);
    }
}
