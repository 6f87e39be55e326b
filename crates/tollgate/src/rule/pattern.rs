//! What a rule is about: a method, a host and a path, each optional.
//!
//! Patterns are canonical in the same way as the targets they are compared with.

use std::borrow::Cow;
use std::fmt;

use crate::request::host;
use crate::request::target::{Target, segments};

/// A path's segment in a pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Segment {
    Literal(Box<str>),
    /// `{name}`: exactly one segment, whatever it is.
    Param(Box<str>),
}

/// The path of a pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathPattern {
    pub segments: Vec<Segment>,
    /// `/**` at the end: this path and everything below.
    pub open_ended: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum HostPattern {
    Exact(Box<str>),
    /// `*.example.com`: any host below, not the domain itself.
    Below(Box<str>),
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pattern {
    pub method: Option<Box<str>>,
    pub host: Option<HostPattern>,
    pub path: Option<PathPattern>,
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
        let method = method.map(parse_method).transpose()?;
        Ok(Pattern { method, host: None, path: Some(PathPattern::parse(path)?) })
    }
}

fn parse_method(word: &str) -> Result<Box<str>, String> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if !word.bytes().all(token) || word == "*" {
        return Err(format!("'{word}' is no method: leave it out for any method"));
    }
    Ok(word.to_ascii_uppercase().into())
}

impl PathPattern {
    fn parse(path: &str) -> Result<PathPattern, String> {
        if !path.starts_with('/') {
            return Err(format!("'{path}' is no path: a path begins with /"));
        }
        if path.contains(['?', '#']) {
            return Err(format!("'{path}' has a query: match the path, and use query:NAME as a key"));
        }
        let (path, open_ended) = match path.strip_suffix("/**") {
            Some(path) => (path, true),
            None => (path, false),
        };
        let target = Target::new("", "", if path.is_empty() { "/" } else { path });
        let segments: Result<Vec<_>, _> = segments(target.path()).map(Segment::parse).collect();
        let segments = segments.map_err(|segment| {
            format!("'{segment}' in '{path}': write a whole segment, {{name}}, or /** at the end")
        })?;
        if segments.len() > Pattern::MAX_SEGMENTS {
            return Err(format!("more than {} segments", Pattern::MAX_SEGMENTS));
        }
        Ok(PathPattern { segments, open_ended })
    }
}

impl Segment {
    fn parse(text: &str) -> Result<Segment, String> {
        let inner = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        match inner {
            Some(name) if !name.is_empty() && !name.contains(['{', '}']) => Ok(Segment::Param(name.into())),
            _ if text.contains(['{', '}', '*']) => Err(text.to_owned()),
            _ => Ok(Segment::Literal(text.into())),
        }
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

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.segments {
            match segment {
                Segment::Literal(text) => write!(f, "/{text}")?,
                Segment::Param(name) => write!(f, "/{{{name}}}")?,
            }
        }
        match (self.open_ended, self.segments.is_empty()) {
            (true, _) => f.write_str("/**"),
            (false, true) => f.write_str("/"),
            (false, false) => Ok(()),
        }
    }
}

/// The `match:` of the pattern; empty where it matches every request.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(method) = &self.method {
            write!(f, "{method} ")?;
        }
        self.path.iter().try_for_each(|path| path.fmt(f))
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
