//! What a rule is about: a method, a host and a path, each optional.
//!
//! Patterns are canonical in the same way as the targets they are compared with.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::request::host;
use crate::request::target::{Target, segments};

/// A path's segment in a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Segment<'p> {
    Literal(&'p str),
    /// `{name}`: exactly one segment, whatever it is.
    Param,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum HostPattern {
    Exact(Box<str>),
    /// `*.example.com`: any host below, not the domain itself.
    Below(Box<str>),
}

/// There may be a million of them: a pattern is its text, which many may share, and is taken apart where
/// that is needed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    /// `[METHOD ]PATH`, or nothing.
    text: Arc<str>,
    pub host: Option<Arc<HostPattern>>,
}

/// A path that ends so stands for itself and everything below.
const OPEN_END: &str = "/**";

impl Default for Pattern {
    fn default() -> Self {
        Pattern { text: "".into(), host: None }
    }
}

impl Pattern {
    /// Deeper patterns are rejected.
    pub const MAX_SEGMENTS: usize = 64;

    /// Reads `[METHOD ]PATH`.
    pub fn parse(text: &str) -> Result<Pattern, String> {
        let mut words = text.split_whitespace();
        let (method, path) = match (words.next(), words.next(), words.next()) {
            (Some(path), None, _) if path.starts_with('/') => (None, path),
            (Some(method), Some(path), None) => (Some(method), path),
            (Some(word), None, _) => return Err(format!("'{word}' is no path: a path begins with /")),
            _ => return Err(format!("'{text}' is not [METHOD ]PATH, such as POST /login")),
        };
        let path = parse_path(path)?;
        let text = match method.map(parse_method).transpose()? {
            Some(method) => format!("{method} {path}").into(),
            None => path.into(),
        };
        Ok(Pattern { text, host: None })
    }

    pub fn method(&self) -> Option<&str> {
        self.parts().0
    }

    /// The path; `None` matches every request, with a path or without.
    pub fn path(&self) -> Option<&str> {
        Some(self.parts().1).filter(|path| !path.is_empty())
    }

    /// No method has a slash in it, and no path is without.
    #[inline]
    fn parts(&self) -> (Option<&str>, &str) {
        if self.text.is_empty() || self.text.starts_with('/') {
            return (None, &self.text);
        }
        self.text.split_once(' ').map_or((None, ""), |(method, path)| (Some(method), path))
    }

    /// Whether everything below the path is meant as well.
    pub(crate) fn is_open_ended(&self) -> bool {
        self.text.ends_with(OPEN_END)
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = Segment<'_>> {
        let path = self.parts().1;
        segments(path.strip_suffix(OPEN_END).unwrap_or(path)).map(|text| match text.starts_with('{') {
            true => Segment::Param,
            false => Segment::Literal(text),
        })
    }

    /// Whether a request with this method and path is meant, on whatever host.
    #[inline]
    pub(crate) fn meets(&self, method: &str, path: &str) -> bool {
        let (own_method, own_path) = self.parts();
        own_method.is_none_or(|own| own == method) && (own_path == path || self.meets_segments(path))
    }

    fn meets_segments(&self, path: &str) -> bool {
        let mut rest = segments(path);
        for own in self.segments() {
            match (own, rest.next()) {
                (_, None) => return false,
                (Segment::Param, Some(_)) => {}
                (Segment::Literal(text), Some(segment)) if text == segment => {}
                _ => return false,
            }
        }
        self.is_open_ended() || rest.next().is_none()
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The text itself, to be shared with other patterns.
    pub(crate) fn text_mut(&mut self) -> &mut Arc<str> {
        &mut self.text
    }
}

fn parse_method(word: &str) -> Result<String, String> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if !word.bytes().all(token) || word == "*" {
        return Err(format!("'{word}' is no method: leave it out for any method"));
    }
    Ok(word.to_ascii_uppercase())
}

/// The path in canonical form.
fn parse_path(path: &str) -> Result<String, String> {
    if !path.starts_with('/') {
        return Err(format!("'{path}' is no path: a path begins with /"));
    }
    if path.contains(['?', '#']) {
        return Err(format!("'{path}' has a query: match the path, and use query:NAME as a key"));
    }
    let (path, end) = match path.strip_suffix(OPEN_END) {
        Some(path) => (path, OPEN_END),
        None => (path, ""),
    };
    let target = Target::new("", "", if path.is_empty() { "/" } else { path });
    let mut written = String::with_capacity(path.len() + end.len());
    for (n, segment) in segments(target.path()).enumerate() {
        if n == Pattern::MAX_SEGMENTS {
            return Err(format!("more than {} segments", Pattern::MAX_SEGMENTS));
        }
        check_segment(segment).map_err(|segment| {
            format!("'{segment}' in '{path}': write a whole segment, {{name}}, or /** at the end")
        })?;
        written.push('/');
        written.push_str(segment);
    }
    written.push_str(end);
    Ok(if written.is_empty() { "/".to_owned() } else { written })
}

/// A literal, or the name of a parameter in braces.
fn check_segment(text: &str) -> Result<(), &str> {
    let inner = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    match inner {
        Some(name) if !name.is_empty() && !name.contains(['{', '}']) => Ok(()),
        _ if text.contains(['{', '}', '*']) => Err(text),
        _ => Ok(()),
    }
}

impl HostPattern {
    pub fn parse(text: &str) -> Result<HostPattern, String> {
        let (below, name) = match text.strip_prefix("*.") {
            Some(name) => (true, name),
            None => (false, text),
        };
        let name = host::canonical(name);
        if name.is_empty() || name.contains(['*', '/', ' ', '{']) {
            return Err(format!("'{text}' is no host: write api.example.com or *.example.com"));
        }
        let name = Cow::into_owned(name).into();
        Ok(if below { HostPattern::Below(name) } else { HostPattern::Exact(name) })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostPattern::Exact(name) => f.write_str(name),
            HostPattern::Below(name) => write!(f, "*.{name}"),
        }
    }
}

/// The `match:` of the pattern; empty where it matches every request.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_read_in_canonical_form() {
        for (text, written) in [
            ("POST /login", "POST /login"),
            ("post //login/", "POST /login"),
            ("/users/{id}/orders", "/users/{id}/orders"),
            ("/api/**", "/api/**"),
            ("/**", "/**"),
            ("/", "/"),
            ("GET /%6Cogin", "GET /login"),
        ] {
            assert_eq!(Pattern::parse(text).map(|pattern| pattern.to_string()), Ok(written.into()), "{text}");
        }
    }

    #[test]
    fn bad_patterns_say_what_is_wrong() {
        for (text, part) in [
            ("", "is not [METHOD ]PATH"),
            ("login", "begins with /"),
            ("POST login", "begins with /"),
            ("POST /a b", "is not [METHOD ]PATH"),
            ("/a?x=1", "has a query"),
            ("/a/*", "'*' in '/a/*'"),
            ("/a/{id", "'{id' in"),
            ("/a/**/b", "'**' in"),
            ("P@ST /a", "is no method"),
        ] {
            let message = Pattern::parse(text).expect_err(text);
            assert!(message.contains(part), "{text}: {message}");
        }
        assert!(HostPattern::parse("*").is_err());
        assert_eq!(
            HostPattern::parse("API.Example.com:443"),
            Ok(HostPattern::Exact("api.example.com".into()))
        );
    }
}
