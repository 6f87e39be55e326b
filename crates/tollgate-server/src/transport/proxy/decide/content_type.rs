//! What the content type of a request says about the form in its body.
//!
//! A content type that two servers read differently is an error: the fields that one of them sees might not be counted.

use hyper::header::{CONTENT_TYPE, HeaderMap};

use crate::response::ProblemDetails;

/// Clients use up to 70 characters (RFC 2046, 5.1.1), and many servers accept more.
const MAX_BOUNDARY: usize = 1024;

/// The encoding of the fields of a form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FormEncoding {
    UrlEncoded,
    /// Without a boundary there are no fields.
    Multipart {
        boundary: Option<String>,
    },
    /// The content type is not that of a form: servers that do not look at it may read pairs or, if there is a
    /// boundary, parts.
    Other {
        boundary: Option<String>,
    },
}

/// A content type that two servers read differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AmbiguousContentType(&'static str);

impl From<AmbiguousContentType> for ProblemDetails {
    fn from(AmbiguousContentType(detail): AmbiguousContentType) -> ProblemDetails {
        ProblemDetails::bad_field("content-type", detail)
    }
}

impl FormEncoding {
    pub fn of(headers: &HeaderMap) -> Result<FormEncoding, AmbiguousContentType> {
        let mut lines = headers.get_all(CONTENT_TYPE).iter();
        let content_type = lines.next().map_or("".into(), |line| String::from_utf8_lossy(line.as_bytes()));
        if lines.next().is_some() {
            return Err(AmbiguousContentType("there is more than one Content-Type header"));
        }
        let boundary = boundary(&content_type)?.map(str::to_owned);
        let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        Ok(match kind.as_str() {
            "application/x-www-form-urlencoded" => FormEncoding::UrlEncoded,
            "multipart/form-data" => FormEncoding::Multipart { boundary },
            _ => FormEncoding::Other { boundary },
        })
    }

    /// Whether the body may be JSON, which ends before the body does.
    pub fn may_be_json(&self) -> bool {
        *self == FormEncoding::Other { boundary: None }
    }
}

/// The boundary of a content type, if it is `multipart/…` and has one.
///
/// PHP takes the first text `boundary` for the parameter, wherever it stands, and ends its value at a comma. So that text
/// must be the parameter, and the only one.
fn boundary(content_type: &str) -> Result<Option<&str>, AmbiguousContentType> {
    let lower = content_type.to_ascii_lowercase();
    if !lower.contains("multipart/") {
        return Ok(None);
    }
    if !lower.trim_start().starts_with("multipart/") {
        return Err(AmbiguousContentType("the Content-Type names a multipart type beside another type"));
    }
    const NAME: &str = "boundary";
    let Some(at) = lower.find(NAME) else { return Ok(None) };
    let assigned = content_type[at + NAME.len()..].trim_start().strip_prefix('=');
    let Some(text) = assigned.filter(|_| lower[..at].trim_end().ends_with(';')).map(str::trim_start) else {
        return Err(AmbiguousContentType("the Content-Type has no clear boundary parameter"));
    };
    let (value, rest) = boundary_value(text)?;
    if value.len() > MAX_BOUNDARY {
        return Err(AmbiguousContentType("the boundary in the Content-Type is longer than 1024 characters"));
    }
    let is_boundary = |parameter: &str| parameter.trim_start().starts_with(NAME);
    if rest.to_ascii_lowercase().split(';').any(is_boundary) {
        return Err(AmbiguousContentType("the Content-Type has several boundary parameters"));
    }
    Ok(Some(value).filter(|boundary| !boundary.is_empty()))
}

/// The boundary at the start of a text, and the parameters behind it.
fn boundary_value(text: &str) -> Result<(&str, &str), AmbiguousContentType> {
    let ambiguous = AmbiguousContentType("the boundary in the Content-Type can be read in several ways");
    let (value, rest, is_space_clear) = match text.strip_prefix('"') {
        Some(quoted) => {
            let (value, rest) = quoted.split_once('"').ok_or(ambiguous)?;
            (value, rest.trim_start(), true)
        }
        None => {
            let (value, rest) = text.split_at(text.find(';').unwrap_or(text.len()));
            (value.trim_end(), rest, false)
        }
    };
    let is_clear = |char: char| match char {
        ' ' => is_space_clear,
        ',' | '"' | '\\' => false,
        other => other.is_ascii_graphic(),
    };
    let ends = rest.is_empty() || rest.starts_with(';');
    if ends && value.chars().all(is_clear) { Ok((value, rest)) } else { Err(ambiguous) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boundary_is_that_of_a_multipart_type() {
        for (content_type, expected) in [
            ("multipart/form-data; boundary=XX", Some("XX")),
            ("Multipart/Form-Data;charset=utf-8; BOUNDARY=\"a b\"; x=y", Some("a b")),
            ("multipart/form-data; boundary=----WebKitFormBoundaryX", Some("----WebKitFormBoundaryX")),
            ("multipart/form-data; boundary=----=_Part_0_1.2 ; x", Some("----=_Part_0_1.2")),
            ("multipart/form-data; boundary=a; x=\"boundary=b\"", Some("a")),
            ("multipart/mixed; boundary=XX", Some("XX")),
            ("multipart/form-data", None),
            ("multipart/form-data; boundary=", None),
            ("multipart/form-data; boundary=\"\"", None),
            ("text/plain; boundary=XX", None),
            ("", None),
        ] {
            assert_eq!(boundary(content_type), Ok(expected), "{content_type}");
        }
        let longest = "x".repeat(MAX_BOUNDARY);
        let content_type = |boundary: &str| format!("multipart/form-data; boundary={boundary}");
        assert_eq!(boundary(&content_type(&longest)), Ok(Some(longest.as_str())));
        assert!(boundary(&content_type(&(longest + "x"))).is_err());
    }

    #[test]
    fn what_two_servers_read_differently_is_ambiguous() {
        for content_type in [
            "multipart/form-data; boundary=a; boundary=b",
            "multipart/form-data; boundary=a; BOUNDARY=a",
            "multipart/form-data; boundary=a; x=\"; boundary=b\"",
            "multipart/form-data; boundary=a,b",
            "multipart/form-data; boundary=a b",
            "multipart/form-data; boundary=\"a\\\"b\"",
            "multipart/form-data; boundary=\"a",
            "multipart/form-data; boundary=\"a\"b",
            "multipart/form-data; boundary=é",
            "multipart/form-data; xboundary=a; boundary=b",
            "multipart/form-data; x=\"; boundary=a\"; boundary=b",
            "multipart/form-data; x=\"boundary=a\"; boundary=b",
            "multipart/form-data; boundary*=utf-8''a",
            "multipart/form-data boundary=a",
            "text/plain, multipart/form-data; boundary=a",
        ] {
            assert!(boundary(content_type).is_err(), "{content_type}");
        }
    }
}
