//! The pattern of a rule: a method, a host and a path, each optional.
//!
//! Patterns are canonical in the same way as the targets they are compared with.

use std::borrow::Cow;
use std::fmt;

use crate::collections::SharedStr;
use crate::document::did_you_mean;
use crate::request::host;
use crate::request::target::{Target, segments};

/// A path's segment in a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Segment<'p> {
    Literal(&'p str),
    /// `{name}`: exactly one segment, whatever it is.
    Param,
}

/// `api.example.com`, or `*.example.com`: any subdomain, not the domain itself. Stored as it is written.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct HostPattern(SharedStr);

/// There may be a million of them: a pattern is its text, which many may share, and is split where needed. The method
/// is one of the rule's [`RuleSettings`](crate::rule::RuleSettings), so that rules share paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    /// The path, or nothing.
    text: SharedStr,
    pub host: Option<HostPattern>,
}

/// The method that a rule matches, if it matches only one; in upper case.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct RuleMethod(Option<Box<str>>);

impl RuleMethod {
    pub fn name(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

/// The prefix of a host that matches all subdomains.
const WILDCARD_PREFIX: &str = "*.";
/// The suffix of a path that matches itself and everything below.
const OPEN_END: &str = "/**";

impl Default for Pattern {
    fn default() -> Self {
        Pattern { text: "".into(), host: None }
    }
}

impl Pattern {
    /// Deeper patterns are rejected.
    pub const MAX_SEGMENTS: usize = 64;
    /// In bytes. A longer path of a request is rejected before it is matched.
    pub const MAX_LEN: usize = 16 << 10;

    /// Reads `[METHOD ]PATH`.
    pub fn parse(text: &str) -> Result<(RuleMethod, Pattern), String> {
        let mut words = text.split_whitespace();
        let (method, path) = match (words.next(), words.next(), words.next()) {
            (Some(path), None, _) if path.starts_with('/') => (None, path),
            (Some(method), Some(path), None) => (Some(method), path),
            (Some(word), None, _) => return Err(format!("'{word}' is not a valid path: begin it with /")),
            _ => return Err(format!("'{text}' is not [METHOD ]PATH, such as POST /login")),
        };
        let path = parse_path(path)?;
        let method = method.map(parse_method).transpose()?;
        Ok((RuleMethod(method.map(Into::into)), Pattern { text: path.as_str().into(), host: None }))
    }

    /// The path; `None` matches every request, with a path or without.
    pub fn path(&self) -> Option<&str> {
        Some(&*self.text).filter(|path| !path.is_empty())
    }

    /// Whether everything below the path matches as well.
    pub(crate) fn is_open_ended(&self) -> bool {
        self.text.ends_with(OPEN_END)
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = Segment<'_>> {
        let path = &*self.text;
        segments(path.strip_suffix(OPEN_END).unwrap_or(path)).map(|text| match text.starts_with('{') {
            true => Segment::Param,
            false => Segment::Literal(text),
        })
    }

    /// Whether a request matches, whatever its method.
    #[inline(always)]
    pub(crate) fn matches(&self, host: &str, path: &str, case: PathCase) -> bool {
        self.host.as_ref().is_none_or(|own| own.matches(host))
            && (self.text.is_empty() || *self.text == *path || self.matches_segments(path, case))
    }

    /// The address of the path's text, for a prefetch.
    pub(crate) fn address(&self) -> usize {
        self.text.address()
    }

    /// Both are canonical: segments have one slash before them, and none is empty. A request without a path matches no
    /// pattern with one.
    fn matches_segments(&self, path: &str, case: PathCase) -> bool {
        if path.is_empty() {
            return false;
        }
        let own = case.fold(&self.text);
        let (mut own, is_open_ended) = match own.strip_suffix(OPEN_END) {
            Some(own) => (own.as_bytes(), true),
            None => (own.as_bytes(), false),
        };
        let mut path = path.as_bytes();
        // One by one: most patterns differ from the path in their first segment.
        loop {
            match (own, path) {
                ([b'{', ..], [first, ..]) if *first != b'/' => {
                    own = behind_segment(own);
                    path = behind_segment(path);
                }
                ([b, own_rest @ ..], [other, path_rest @ ..]) if b == other && *b != b'{' => {
                    own = own_rest;
                    path = path_rest;
                }
                ([], []) => return true,
                ([], [b'/', ..]) => return is_open_ended,
                _ => return false,
            }
        }
    }

    /// The text itself, to be shared with other patterns.
    pub(crate) fn text_mut(&mut self) -> &mut SharedStr {
        &mut self.text
    }
}

/// What follows the segment that a path begins with.
fn behind_segment(path: &[u8]) -> &[u8] {
    let end = path.iter().position(|byte| *byte == b'/').unwrap_or(path.len());
    &path[end..]
}

/// Whether a rule for one method matches requests with another: `HEAD` is a `GET` without the body of its response.
pub(crate) fn covers(own: &str, method: &str) -> bool {
    own == method || (own == "GET" && method == "HEAD")
}

/// Whether paths are case-sensitive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PathCase {
    #[default]
    Sensitive,
    /// `/Login` is `/login`.
    Insensitive,
}

impl PathCase {
    /// The text as it is compared.
    pub(crate) fn fold(self, text: &str) -> Cow<'_, str> {
        match self {
            PathCase::Sensitive => Cow::Borrowed(text),
            PathCase::Insensitive => Cow::Owned(text.to_lowercase()),
        }
    }
}

fn parse_method(word: &str) -> Result<String, String> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if !word.bytes().all(token) || word == "*" {
        return Err(format!("'{word}' is not a valid method: leave it out for any method"));
    }
    let method = word.to_ascii_uppercase();
    if let Some(meant) = misspelled_method(&method) {
        return Err(format!("'{word}' is not a known method: did you mean {meant}?"));
    }
    Ok(method)
}

/// Methods that may be misspelled.
const COMMON_METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
/// Methods of other protocols that look like one of them.
const SIMILAR_METHODS: [&str; 1] = ["READ"];

/// The common method that was probably meant. Other methods are valid: a rule may be for one of its own protocol.
fn misspelled_method(method: &str) -> Option<&'static str> {
    if COMMON_METHODS.contains(&method) || SIMILAR_METHODS.contains(&method) {
        return None;
    }
    let meant = did_you_mean(method, &COMMON_METHODS)?;
    let sorted = |word: &str| {
        let mut letters: Vec<u8> = word.bytes().collect();
        letters.sort_unstable();
        letters
    };
    // SET is not a misspelled GET: of three letters none may be replaced.
    let is_likely = method.len() != meant.len() || method.len() > 3 || sorted(method) == sorted(meant);
    is_likely.then_some(meant)
}

/// The path in canonical form.
fn parse_path(path: &str) -> Result<String, String> {
    if !path.starts_with('/') {
        return Err(format!("'{path}' is not a valid path: begin it with /"));
    }
    if path.contains(['?', '#']) {
        return Err(format!("'{path}' has a query: match the path, and use query:NAME as a key"));
    }
    if path.len() > Pattern::MAX_LEN {
        return Err(format!("path of {} bytes is too long: at most {}", path.len(), Pattern::MAX_LEN));
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
    /// In bytes, as DNS has it.
    pub const MAX_LEN: usize = 253;

    pub fn parse(text: &str) -> Result<HostPattern, String> {
        if let Some((_, rest)) = text.split_once("://") {
            let host = rest.split('/').next().unwrap_or_default();
            return Err(format!("'{text}' is a URL: write only its host, {host}"));
        }
        let (below, name) = match text.strip_prefix(WILDCARD_PREFIX) {
            Some(name) => (true, name),
            None => (false, text),
        };
        let name = host::canonical(name);
        if name.len() > HostPattern::MAX_LEN {
            return Err(format!(
                "host of {} bytes is too long: at most {}",
                name.len(),
                HostPattern::MAX_LEN
            ));
        }
        if name.is_empty() || name.contains(['*', '/', ' ', '{']) {
            return Err(format!("'{text}' is not a valid host: write api.example.com or *.example.com"));
        }
        Ok(HostPattern(if below {
            format!("{WILDCARD_PREFIX}{name}").as_str().into()
        } else {
            name.as_ref().into()
        }))
    }

    /// The domain, if the pattern matches its subdomains; `None` if it is a single host.
    pub(crate) fn wildcard_domain(&self) -> Option<&str> {
        self.0.strip_prefix(WILDCARD_PREFIX)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The address of the text, for a prefetch.
    pub(crate) fn address(&self) -> usize {
        self.0.address()
    }

    #[inline]
    fn matches(&self, host: &str) -> bool {
        match self.wildcard_domain() {
            None => *self.0 == *host,
            Some(domain) => host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')),
        }
    }

    /// The text itself, to be shared with other patterns.
    pub(crate) fn text_mut(&mut self) -> &mut SharedStr {
        &mut self.0
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The path of the pattern; empty if it matches every request.
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
            ("purge /cache/**", "PURGE /cache/**"),
        ] {
            let (method, pattern) = Pattern::parse(text).expect(text);
            let read = method.name().map_or_else(|| pattern.to_string(), |name| format!("{name} {pattern}"));
            assert_eq!(read, written, "{text}");
        }
    }

    #[test]
    fn a_parameter_is_one_segment_and_an_open_end_is_any_number() {
        let case = PathCase::Sensitive;
        for (pattern, matching, others) in [
            ("/", "/", "/a /{x}"),
            ("/**", "/ /a /a/b", ""),
            ("/login", "/login", "/ /log /login2 /login/x /Login"),
            ("/users/{id}", "/users/7 /users/{id} /users/{", "/ /users /users/7/x /user/7 /usersx/7"),
            ("/{a}/b/{c}", "/1/b/2 /b/b/b", "/1/b /1/c/2 /1/b/2/3 /1/bb/2"),
            ("/a/**", "/a /a/b /a/b/c", "/ /ab /b/a"),
            ("/{x}/**", "/a /a/b", "/"),
        ] {
            let (_, parsed) = Pattern::parse(pattern).expect(pattern);
            let matches = |path: &str| parsed.matches("", path, case);
            matching.split_whitespace().for_each(|path| assert!(matches(path), "{pattern} {path}"));
            others.split_whitespace().for_each(|path| assert!(!matches(path), "{pattern} {path}"));
            assert!(!matches(""), "{pattern} without a path");
        }
        let (_, pattern) = Pattern::parse("/Items/{Id}/**").expect("a pattern");
        assert!(pattern.matches("", "/items/7/x", PathCase::Insensitive));
        assert!(!pattern.matches("", "/items", PathCase::Insensitive));
    }

    #[test]
    fn misspelled_methods_and_urls_as_hosts_are_caught() {
        for (text, meant) in
            [("GTE /x", "GET"), ("PSOT /x", "POST"), ("DELET /x", "DELETE"), ("pots /x", "POST")]
        {
            let message = Pattern::parse(text).expect_err(text);
            assert!(message.ends_with(&format!("did you mean {meant}?")), "{message}");
        }
        for method in
            ["PURGE", "SET", "READ", "MKCOL", "PROPFIND", "LOCK", "COPY", "MOVE", "QUERY", "BAN", "SUBSCRIBE"]
        {
            assert!(Pattern::parse(&format!("{method} /x")).is_ok(), "{method}");
        }
        let message = HostPattern::parse("https://api.example.com/v1").expect_err("a URL");
        assert_eq!(message, "'https://api.example.com/v1' is a URL: write only its host, api.example.com");
    }

    #[test]
    fn bad_patterns_say_what_is_wrong() {
        for (text, part) in [
            ("", "is not [METHOD ]PATH"),
            ("login", "begin it with /"),
            ("POST login", "begin it with /"),
            ("POST /a b", "is not [METHOD ]PATH"),
            ("/a?x=1", "has a query"),
            ("/a/*", "'*' in '/a/*'"),
            ("/a/{id", "'{id' in"),
            ("/a/**/b", "'**' in"),
            ("P@ST /a", "is not a valid method"),
        ] {
            let message = Pattern::parse(text).expect_err(text);
            assert!(message.contains(part), "{text}: {message}");
        }
        assert!(HostPattern::parse("*").is_err());
        assert_eq!(
            HostPattern::parse("API.Example.com:443").map(|host| host.to_string()),
            Ok("api.example.com".to_owned())
        );
    }

    #[test]
    fn paths_and_hosts_have_a_longest_length() {
        let path = |len: usize| format!("/{}", "x".repeat(len - 1));
        assert!(Pattern::parse(&path(Pattern::MAX_LEN)).is_ok());
        assert!(Pattern::parse(&path(Pattern::MAX_LEN + 1)).is_err_and(|why| why.contains("16385 bytes")));
        assert!(HostPattern::parse(&"x".repeat(HostPattern::MAX_LEN)).is_ok());
        assert!(HostPattern::parse(&"x".repeat(HostPattern::MAX_LEN + 1)).is_err());
    }
}
