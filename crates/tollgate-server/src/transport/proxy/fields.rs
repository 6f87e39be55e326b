//! Identity from the body: fields of JSON and of forms, in a bounded prefix that is passed on untouched.

use std::borrow::Cow;

use hyper::header::HeaderValue;
use tollgate::identity::Source;
use tollgate::request::fields;

use crate::transport::proxy::body::{BodyError, Upload};
use crate::transport::proxy::multipart;

/// What lies further in is not seen.
pub const MAX_PREFIX_BYTES: usize = 64 << 10;

/// The start of a body.
pub struct Prefix {
    bytes: Vec<u8>,
    whole: bool,
    shape: Shape,
}

/// How fields are written in a body.
enum Shape {
    Pairs,
    Multipart {
        boundary: String,
    },
    /// It does not say that it is a form.
    Other,
}

impl Shape {
    fn of(content_type: Option<&HeaderValue>) -> Shape {
        let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let kind = content_type.split(';').next().unwrap_or_default().trim();
        if kind.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
            return Shape::Pairs;
        }
        let boundary = multipart::boundary(content_type);
        boundary.map_or(Shape::Other, |boundary| Shape::Multipart { boundary: boundary.into_owned() })
    }
}

impl Prefix {
    /// Reads as far as is needed: to the end of the body, of its JSON, or to the bound.
    pub async fn read(upload: &mut Upload, content_type: Option<&HeaderValue>) -> Result<Prefix, BodyError> {
        let mut nesting = Nesting::default();
        let shape = Shape::of(content_type);
        let mut fed = 0;
        let whole = loop {
            nesting.feed(&upload.prefix()[fed..]);
            fed = upload.prefix().len();
            let is_read = nesting.is_closed() && matches!(shape, Shape::Other);
            if is_read || fed >= MAX_PREFIX_BYTES {
                break false;
            }
            if !upload.read_ahead().await? {
                break true;
            }
        };
        let bytes = upload.prefix()[..fed.min(MAX_PREFIX_BYTES)].to_vec();
        Ok(Prefix { bytes, whole, shape })
    }

    /// The value of a field; the last one of its name in JSON, as nearly every server has it.
    pub fn field(&self, source: Source, name: &str) -> Option<String> {
        match source {
            Source::Json => json_field(&self.bytes, name),
            Source::Form => self.form_field(name),
            _ => None,
        }
    }

    /// The first one of its name.
    fn form_field(&self, name: &str) -> Option<String> {
        if let Shape::Multipart { boundary } = &self.shape {
            return multipart::field(&self.bytes, boundary, name);
        }
        let text = String::from_utf8_lossy(&self.bytes);
        // A pair that was cut off has no value yet.
        let text = if self.whole { &text } else { text.rsplit_once('&').map_or("", |(whole, _)| whole) };
        fields::query(text.trim(), name).map(Cow::into_owned)
    }
}

/// How deep in brackets the bytes so far have led.
#[derive(Default)]
struct Nesting {
    depth: usize,
    opened: bool,
    quoted: bool,
    escaped: bool,
}

impl Nesting {
    fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match (self.quoted, byte) {
                (true, _) if self.escaped => self.escaped = false,
                (true, b'\\') => self.escaped = true,
                (_, b'"') => self.quoted = !self.quoted,
                (false, b'{' | b'[') => (self.depth, self.opened) = (self.depth + 1, true),
                (false, b'}' | b']') => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    fn is_closed(&self) -> bool {
        self.opened && self.depth == 0 && !self.quoted
    }
}

/// The text or number at a dotted path in an object that may be cut off.
fn json_field(bytes: &[u8], path: &str) -> Option<String> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut scan = Scan { rest: bytes };
    let mut found = None;
    scan.object(path, &mut found, 0);
    found
}

/// Reads JSON from the left, as far as it goes.
struct Scan<'j> {
    rest: &'j [u8],
}

/// Deeper objects are not looked into.
const MAX_DEPTH: usize = 64;

impl<'j> Scan<'j> {
    /// Looks for `path` in the object that follows; `None` where the text ends or is no JSON.
    fn object(&mut self, path: &str, found: &mut Option<String>, depth: usize) -> Option<()> {
        self.expect(b'{')?;
        loop {
            match self.next()? {
                b'}' => return self.skip(1),
                b',' => self.skip(1)?,
                _ => {}
            }
            let key: String = serde_json::from_slice(self.text()?).ok()?;
            self.expect(b':')?;
            let (here, deeper) = path.split_once('.').unwrap_or((path, ""));
            if key == path {
                *found = self.scalar_or_skip()?;
            } else if key == here && !deeper.is_empty() && self.next()? == b'{' && depth < MAX_DEPTH {
                *found = None;
                self.object(deeper, found, depth + 1)?;
            } else {
                self.value()?;
            }
        }
    }

    fn next(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.first().copied()
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.rest = self.rest.get(count..)?;
        Some(())
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        if self.next()? == byte { self.skip(1) } else { None }
    }

    /// A quoted text, with its quotes.
    fn text(&mut self) -> Option<&'j [u8]> {
        if self.next()? != b'"' {
            return None;
        }
        let mut escaped = false;
        let end = self.rest.iter().skip(1).position(|byte| {
            let closes = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            closes
        })?;
        let (text, rest) = self.rest.split_at(end + 2);
        self.rest = rest;
        Some(text)
    }

    /// A text, number or truth value; what is none of them has no value.
    fn scalar_or_skip(&mut self) -> Option<Option<String>> {
        match self.next()? {
            b'"' => Some(serde_json::from_slice(self.text()?).ok()),
            b'{' | b'[' => self.value().map(|()| None),
            _ => {
                let end = self.rest.iter().position(|byte| b",}] \t\r\n".contains(byte))?;
                let word = std::str::from_utf8(&self.rest[..end]).ok()?;
                let word = Some(word.to_owned()).filter(|word| word != "null");
                self.skip(end)?;
                Some(word)
            }
        }
    }

    /// Any value, passed over.
    fn value(&mut self) -> Option<()> {
        match self.next()? {
            b'"' => self.text().map(drop),
            b'{' | b'[' => {
                let mut nesting = Nesting::default();
                let end = self.rest.iter().position(|byte| {
                    nesting.feed(&[*byte]);
                    nesting.is_closed()
                })?;
                self.skip(end + 1)
            }
            _ => self.skip(self.rest.iter().position(|byte| b",}]".contains(byte))?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, path: &str, expected: Option<&str>) {
        assert_eq!(json_field(json.as_bytes(), path).as_deref(), expected, "{json}");
    }

    #[test]
    fn a_field_is_found_wherever_it_stands() {
        check(r#"{"email":"ann@example.com"}"#, "email", Some("ann@example.com"));
        check(r#" { "a" : [1,{"email":"x"}] , "email" : "ann" , "b":{} } "#, "email", Some("ann"));
        check("\u{feff}{\"email\":\"ann\"}", "email", Some("ann"));
        check(r#"{"em\u0061il":"\u0061nn \"x\""}"#, "email", Some("ann \"x\""));
        check(r#"{"id": 42, "x": 1}"#, "id", Some("42"));
        check(r#"{"id": true}"#, "id", Some("true"));
        check(r#"{"user":{"x":{"email":"no"},"email":"ann"}}"#, "user.email", Some("ann"));
        check(r#"{"user.email":"ann"}"#, "user.email", Some("ann"));
    }

    #[test]
    fn the_last_of_a_name_counts() {
        check(r#"{"email":"decoy","email":"ann"}"#, "email", Some("ann"));
        check(r#"{"user":{"email":"decoy"},"user":{"email":"ann"}}"#, "user.email", Some("ann"));
        check(r#"{"user":{"email":"decoy"},"user":{}}"#, "user.email", None);
        check(r#"{"email":"decoy","email":{}}"#, "email", None);
    }

    #[test]
    fn what_is_cut_off_or_no_json_has_no_value() {
        for json in [
            "",
            "{",
            "[]",
            "nonsense",
            "{\"email\"",
            "{\"email\":",
            "{\"email\":\"an",
            "{\"email\":4",
            "{\"email\":null}",
            "{email:\"x\"}",
            "[{\"email\":\"x\"}]",
            "{\"email\":\"\\ud800\"}",
        ] {
            check(json, "email", None);
        }
        check(r#"{"email":"ann","rest":"and so on and on"#, "email", Some("ann"));
        check(&"{\"a\":".repeat(100_000), "a.a.a.a", None);
        check(&"[".repeat(100_000), "a", None);
    }

    #[test]
    fn a_form_is_read_up_to_its_last_whole_pair() {
        let field = |text: &str, whole| {
            Prefix { bytes: text.as_bytes().to_vec(), whole, shape: Shape::Pairs }
                .field(Source::Form, "email")
        };
        assert_eq!(field("a=1&email=ann%40example.com", true).as_deref(), Some("ann@example.com"));
        assert_eq!(field("a=1&email=ann%40exam", false), None);
        assert_eq!(field("email=ann&a=1", false).as_deref(), Some("ann"));
    }
}
