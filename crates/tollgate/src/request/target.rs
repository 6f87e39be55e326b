//! The canonical target of a request: method, host and path as rules match them.
//!
//! Invariant: the spellings of a target that servers treat as one resource become one text, otherwise a limit is
//! bypassed by spelling. Where servers disagree (`%2F`, `\`, `;x=y`) there is one canonical reading, and a rule that
//! matches [another one](Target::other_readings) matches the request, too. In `/a;x=%2F../b` decoding comes first. Any input has a target; a canonical one is borrowed, never copied.
//! Time and space are linear. This module must not know rules or patterns, and it bounds no length: the listener does.

use std::borrow::Cow;

use super::{
    host,
    percent::{self, Plus},
};

/// The target of a request, in canonical form.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target<'a> {
    method: Cow<'a, str>,
    host: Cow<'a, str>,
    path: Cow<'a, str>,
    query: Option<&'a str>,
    other_readings: Option<Box<OtherReadings>>,
}

/// The path as servers read it for which an encoded slash, a backslash and `;` are data, where that differs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct OtherReadings {
    /// With dot segments resolved.
    pub(crate) resolved: Option<String>,
    /// With dot segments as they are.
    pub(crate) literal: Option<String>,
}

impl<'a> Target<'a> {
    /// No method, host or path.
    pub(crate) const NONE: Target<'a> = Target {
        method: Cow::Borrowed(""),
        host: Cow::Borrowed(""),
        path: Cow::Borrowed(""),
        query: None,
        other_readings: None,
    };

    /// Canonicalises a request's method, `Host` and request target.
    ///
    /// `raw_path` may carry a query and a fragment, and may be an absolute URI;
    /// its authority is the host where `host` is empty. An empty `raw_path`
    /// means that no path was given, and stays empty.
    pub fn new(method: &'a str, host: &'a str, raw_path: &'a str) -> Self {
        if let Some(end) = plain_end(raw_path.as_bytes()) {
            let host = host::canonical(host);
            let path = Cow::Borrowed(&raw_path[..end]);
            let query = raw_path.get(end + 1..).map(without_fragment);
            return Self { method: upper(method), host, path, query, other_readings: None };
        }
        let whole = raw_path.split_once('#').map_or(raw_path, |(before, _)| before);
        let (authority, local) = split_authority(whole).unwrap_or(("", whole));
        let (path, query) = match local.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (local, None),
        };
        let mut host = host::canonical(host);
        if host.is_empty() {
            host = host::canonical(authority);
        }
        let raw = path;
        let path = canonical_path(raw);
        let other_readings = match path {
            Cow::Borrowed(_) => None,
            Cow::Owned(_) => OtherReadings::of(raw, &path),
        };
        Self { method: upper(method), host, path, query, other_readings }
    }

    /// A target of parts that are canonical already.
    pub(crate) fn canonical(
        method: &'a str,
        host: &'a str,
        path: &'a str,
        query: Option<&'a str>,
        other_readings: OtherReadings,
    ) -> Self {
        let [method, host, path] = [method, host, path].map(Cow::Borrowed);
        Target { method, host, path, query, other_readings: other_readings.boxed() }
    }

    /// In ASCII upper case.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// In ASCII lower case, without userinfo, port and trailing dot; an IPv6
    /// address is in brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Decoded once; starts with a slash and, except for the root, ends without one. Empty if no path was given.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Other readings of the path. A slash within a segment is written `%2F`.
    pub(crate) fn other_readings(&self) -> Option<&OtherReadings> {
        self.other_readings.as_deref()
    }

    /// The target in another reading of its path.
    pub(crate) fn read_as<'p>(&'p self, path: &'p str) -> Target<'p> {
        let [method, host] = [&*self.method, &*self.host].map(Cow::Borrowed);
        Target { method, host, path: Cow::Borrowed(path), query: self.query, other_readings: None }
    }

    /// The same target with its path in lower case.
    pub(crate) fn with_lower_path(mut self) -> Self {
        self.path = Cow::Owned(self.path.to_lowercase());
        self
    }

    /// Everything after the first `?`, as it was written.
    pub fn query(&self) -> Option<&'a str> {
        self.query
    }
}

impl OtherReadings {
    #[cold]
    fn of(raw: &str, canonical: &str) -> Option<Box<OtherReadings>> {
        let mut literal = String::with_capacity(raw.len() + 1);
        let mut resolved = String::with_capacity(raw.len() + 1);
        for segment in raw.split('/').filter(|segment| !segment.is_empty()) {
            let segment =
                percent::text(percent::decode(segment, Plus::Literal).collect()).replace('/', "%2F");
            literal.push('/');
            literal.push_str(&segment);
            match &*segment {
                "." => {}
                ".." => resolved.truncate(resolved.rfind('/').unwrap_or(0)),
                name => {
                    resolved.push('/');
                    resolved.push_str(name);
                }
            }
        }
        for path in [&mut literal, &mut resolved] {
            if path.is_empty() {
                path.push('/');
            }
        }
        let literal = Some(literal).filter(|path| path != canonical && *path != resolved);
        let resolved = Some(resolved).filter(|path| path != canonical);
        OtherReadings { resolved, literal }.boxed()
    }

    fn boxed(self) -> Option<Box<OtherReadings>> {
        Some(self).filter(|readings| *readings != OtherReadings::default()).map(Box::new)
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        [&self.resolved, &self.literal].into_iter().flatten().map(String::as_str)
    }
}

/// The segments of a canonical path; the root has none.
pub fn segments(path: &str) -> impl Iterator<Item = &str> + Clone {
    let mut rest = path;
    std::iter::from_fn(move || {
        loop {
            // Segments are short: a byte loop is faster than a search made for long texts.
            let end = rest.bytes().position(|byte| byte == b'/').unwrap_or(rest.len());
            let segment = &rest[..end];
            rest = rest.get(end + 1..).unwrap_or_default();
            if !segment.is_empty() || rest.is_empty() {
                return Some(segment).filter(|segment| !segment.is_empty());
            }
        }
    })
}

/// Splits an absolute URI into authority and the rest (RFC 9112, 3.2.2).
fn split_authority(raw: &str) -> Option<(&str, &str)> {
    if raw.starts_with('/') {
        return None; // the common case, decided without a scan
    }
    let (scheme, rest) = raw.split_once("://")?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    let end = rest.find(['/', '\\', '?']).unwrap_or(rest.len());
    is_scheme.then(|| rest.split_at(end))
}

fn upper(method: &str) -> Cow<'_, str> {
    if method.bytes().any(|b| b.is_ascii_lowercase()) {
        Cow::Owned(method.to_ascii_uppercase())
    } else {
        Cow::Borrowed(method)
    }
}

/// The end of a path, if it is canonical, of plain characters and followed by nothing or a query: the common case, in
/// one pass. Also of no path.
fn plain_end(path: &[u8]) -> Option<usize> {
    let [b'/', rest @ ..] = path else { return path.is_empty().then_some(0) };
    let mut before = b'/';
    let mut end = path.len();
    for (at, byte) in rest.iter().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => {}
            b'/' | b'.' if before != b'/' => {}
            b'?' => {
                end = 1 + at;
                break;
            }
            _ => return None,
        }
        before = *byte;
    }
    (before != b'/' || end == 1).then_some(end)
}

/// The part of a query before a fragment.
fn without_fragment(query: &str) -> &str {
    // Queries are short: a byte loop is faster than a search made for long texts.
    let end = query.bytes().position(|byte| byte == b'#').unwrap_or(query.len());
    &query[..end]
}

fn canonical_path(raw: &str) -> Cow<'_, str> {
    if raw.is_empty() {
        Cow::Borrowed("/")
    } else if is_canonical(raw.as_bytes()) {
        Cow::Borrowed(raw)
    } else {
        Cow::Owned(resolve(&percent::text(percent::decode(raw, Plus::Literal).collect())))
    }
}

fn is_canonical(path: &[u8]) -> bool {
    if path == b"/" {
        return true;
    }
    path.starts_with(b"/")
        && path.iter().enumerate().all(|(at, byte)| match byte {
            b'/' => starts_a_name(&path[at + 1..]),
            b'%' => !percent::starts_with_escape(&path[at..]),
            b';' | b'\\' => false,
            _ => true,
        })
}

fn starts_a_name(rest: &[u8]) -> bool {
    !matches!(rest, [] | [b'/', ..] | [b'.'] | [b'.', b'/', ..] | [b'.', b'.'] | [b'.', b'.', b'/', ..])
}

/// Resolves a decoded path. `..` removes one segment, so the whole is linear.
fn resolve(decoded: &str) -> String {
    let mut path = String::with_capacity(decoded.len() + 1);
    for segment in decoded.split(['/', '\\']) {
        // `..;x` is `..` on servers with matrix parameters
        match segment.split_once(';').map_or(segment, |(name, _)| name) {
            "" | "." => {}
            ".." => path.truncate(path.rfind('/').unwrap_or(0)),
            name => {
                path.push('/');
                path.push_str(name);
            }
        }
    }
    if path.is_empty() {
        path.push('/');
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_plain_is_canonical() {
        let alphabet = ["/", ".", "a", "%", "-", ";"];
        let words = (0..alphabet.len().pow(5)).map(|n| {
            let letter = |digit: usize| alphabet[n / alphabet.len().pow(digit as u32) % alphabet.len()];
            (0..5).map(letter).collect::<String>()
        });
        let mut plain = 0;
        for path in words.chain(["/".to_owned(), String::new()]) {
            let end = plain_end(path.as_bytes());
            if end.is_some_and(|_| !path.is_empty()) {
                plain += 1;
                assert_eq!(end, Some(path.len()));
                assert!(is_canonical(path.as_bytes()), "{path}");
            }
            assert_eq!(plain_end(format!("{path}?a//%#/").as_bytes()), end.filter(|end| *end > 0), "{path}");
        }
        assert!(plain > 20);
    }

    #[track_caller]
    fn check(raw_path: &str, expected: &str) {
        assert_eq!(Target::new("GET", "h", raw_path).path(), expected, "{raw_path:?}");
    }

    #[track_caller]
    fn check_borrowed(method: &str, host: &str, path: &str) {
        let target = Target::new(method, host, path);
        assert_eq!((target.method(), target.host(), target.path()), (method, host, path));
        for part in [&target.method, &target.host, &target.path] {
            assert!(matches!(part, Cow::Borrowed(_)), "{part:?} was copied");
        }
    }

    #[test]
    fn every_spelling_of_login_is_login() {
        let table = r"
            /login login //login ///login /./login /././login /%6Cogin /%6cogin /%6c%6f%67%69%6e /login/
            /login// /login/. /login/./ /a/../login /a/b/../../login /../login /../../login
            /a/%2e%2e/login /a/%2E./login /a/.%2e/login /%2e/login /%2flogin /%2Flogin %2Flogin
            /login%2F /a%2F..%2Flogin /login;x=1 /login; /login;x=1;y=2 /;x=1/login /login/;x
            /login%3Bx=1 /a/..;/login /a/..;x=1/login /a/%2e%2e;/login /.;/login /login#f /login/#/f
            /login#f?x /login?x /login?x#f /login? /login/?/../x \login /\login /a\..\login
            /a/..%5clogin /login\ http://EXAMPLE.com:80/login HTTPS://h//login http://h/a/../login?x
            http://u:p@h/login http://h\login /login/x/.. /login/x/../
        ";
        for raw in table.split_whitespace() {
            check(raw, "/login");
        }
    }

    #[test]
    fn an_encoded_slash_separates_like_a_raw_one() {
        let table = "/api/login /api%2Flogin /api%2flogin /api%2F%2flogin /api%5Clogin /api;v=1/login";
        for raw in table.split_whitespace() {
            check(raw, "/api/login");
        }
    }

    #[test]
    fn what_servers_disagree_on_has_other_readings() {
        let others = |raw: &'static str| {
            let target = Target::new("GET", "h", raw);
            target.other_readings().map(|others| others.paths().map(str::to_owned).collect::<Vec<_>>())
        };
        let check = |raw, expected: &[&str]| {
            assert_eq!(others(raw).unwrap_or_default(), expected, "{raw:?}");
        };
        for raw in ["/login", "//login/", "/%6Cogin", "/%c3%a9/", "/", "//", "", "/a?b=%2F;c", "http://h"] {
            check(raw, &[]);
        }
        check("/s/a%2fb", &["/s/a%2Fb"]);
        check("/s/a\\b", &["/s/a\\b"]);
        check("/s/a%5Cb", &["/s/a\\b"]);
        check("/s/;a", &["/s/;a"]);
        check("/s/a;b", &["/s/a;b"]);
        check("/x/../s/a%2Fb", &["/s/a%2Fb", "/x/../s/a%2Fb"]);
        check("/s/..", &["/s/.."]);
        check("/s/%2e%2E", &["/s/.."]);
        check("/s/.", &["/s/."]);
        check("/s/..;x", &["/s/..;x"]);
        check("/s/..%2fx", &["/s/..%2Fx"]);
        check("%2Fs", &["/%2Fs"]);
        check("/a%2Fb/..", &["/", "/a%2Fb/.."]);
    }

    #[test]
    fn a_double_encoding_is_decoded_once() {
        check("/api%252Flogin", "/api%2Flogin");
        check("/a/%252e%252e/login", "/a/%2e%2e/login");
        check("/%25252F", "/%252F");
        check("/%256Cogin", "/%6Cogin");
        check("/a%2%46b", "/a%2Fb");
    }

    #[test]
    fn other_resources_stay_apart() {
        for path in
            ["/Login", "/login.", "/...", "/.login", "/..login", "/login ", "/login\0", "/log/in", "/é"]
        {
            check(path, path);
        }
        check("/login%00", "/login\0");
        check("/%00/../login", "/login");
        check("/login%20", "/login ");
        check("/login%3Fx", "/login?x");
        check("/login%23x", "/login#x");
        check("/a+b", "/a+b");
    }

    #[test]
    fn malformed_escapes_and_invalid_utf8_stay_escaped() {
        check("/%", "/%");
        check("/%zz/%4", "/%zz/%4");
        check("/caf%c3%a9", "/café");
        check("/%ff%fe", "/%FF%FE");
        check("/a%c0%af..%c0%aflogin", "/a%C0%AF..%C0%AFlogin"); // overlong slashes
    }

    #[test]
    fn the_root_is_a_slash_and_no_path_is_empty() {
        let table = r"/ // . /. .. /../.. ?x #f ;x /;x %2F \ http://h http://h?x http://h#f";
        for raw in table.split_whitespace() {
            check(raw, "/");
        }
        check("", "");
        check("*", "/*");
        check("://h/p", "/:/h/p");
        check("1http://h/p", "/1http:/h/p");
    }

    #[test]
    fn the_query_is_kept_as_written() {
        let query = |raw| Target::new("GET", "h", raw).query();
        assert_eq!(query("/a"), None);
        assert_eq!(query("/a?"), Some(""));
        assert_eq!(query("/a?b=%2F+?c#d?e"), Some("b=%2F+?c"));
        assert_eq!(query("/a#b?c"), None);
        assert_eq!(query("/a%3Fb"), None);
        assert_eq!(query("http://h?to=http://i/j"), Some("to=http://i/j"));
    }

    #[test]
    fn an_absolute_uri_gives_the_host_only_where_none_was_given() {
        let host = |host, raw| Target::new("GET", host, raw).host().to_owned();
        assert_eq!(host("", "http://u@EXAMPLE.com.:80/login"), "example.com");
        assert_eq!(host("", "http://[::1]:80?x"), "[::1]");
        assert_eq!(host("a.example", "http://b.example/"), "a.example");
        assert_eq!(host("", "/login?to=http://b.example/"), "");
    }

    #[test]
    fn methods_are_upper_case() {
        assert_eq!(Target::new("post", "", "").method(), "POST");
        assert_eq!(Target::new("", "", "").method(), "");
    }

    #[test]
    fn a_canonical_target_is_borrowed() {
        for path in ["", "/", "/login", "/a/b.c/..d/e..", "/.well-known/x", "/100%", "/%zz", "/a b", "/é"] {
            check_borrowed("GET", "example.com", path);
        }
        check_borrowed("M-SEARCH", "[2001:db8::1]", "/x");
        check_borrowed("GET", "[::ffff:1.2.3.4]", "/x");
        assert!(matches!(Target::new("GET", "h:80", "http://h/a?b").path, Cow::Borrowed("/a")));
    }

    #[test]
    fn long_paths_are_resolved() {
        let many = |unit: &str| unit.repeat((64 << 10) / unit.len());
        check(&many("/"), "/");
        check(&many("/a/.."), "/");
        check(&many("%2e%2e%2f"), "/");
        check(&many(";"), "/");
        check(&(many("/a") + &many("/..").repeat(2) + "/login"), "/login");
        check(&format!("/{}/../login", many("a")), "/login");
        check(&format!("/{}", many("%ff")), &format!("/{}", many("%FF")));
    }

    #[test]
    fn segments_are_those_of_the_canonical_path() {
        assert_eq!(segments("/api/login").collect::<Vec<_>>(), ["api", "login"]);
        assert_eq!(segments("/api/login").last(), Some("login"));
        assert_eq!(segments("/").count(), 0);
        assert_eq!(segments("").count(), 0);
    }
}
