//! The canonical spelling of a request's host.
//!
//! Invariant: `Example.COM.:443` and `example.com` are one host, and so are all spellings of an IPv6 literal. Any
//! input has a canonical spelling; a canonical one is borrowed, never copied. This module must not know rules, and it
//! resolves nothing.

use std::{
    borrow::Cow,
    fmt::{self, Write},
    net::Ipv6Addr,
};

use super::percent::{self, Plus};

/// `raw` decoded once and in ASCII lower case, without userinfo, port and trailing dots. An
/// IPv6 address is in brackets.
pub fn canonical(raw: &str) -> Cow<'_, str> {
    if is_plain(raw.as_bytes()) {
        return Cow::Borrowed(raw);
    }
    // A literal in brackets may have a zone behind its `%`.
    if raw.contains('%') && !raw.contains('[') {
        let decoded = percent::text(percent::decode(raw, Plus::Literal).collect());
        return Cow::Owned(bare(&decoded).into_owned());
    }
    bare(raw)
}

/// A host that is decoded, without its decoration and in lower case.
fn bare(raw: &str) -> Cow<'_, str> {
    let host = raw.rsplit_once('@').map_or(raw, |(_userinfo, host)| host);
    if let Some(literal) = canonical_ipv6(host) {
        return literal;
    }
    let end = if host.starts_with('[') { host.find(']').map(|at| at + 1) } else { host.find(':') };
    let host = host[..end.unwrap_or(host.len())].trim_end_matches('.');
    if host.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(host.to_ascii_lowercase())
    } else {
        Cow::Borrowed(host)
    }
}

/// A name in lower case and nothing else: the common case, in one pass.
fn is_plain(host: &[u8]) -> bool {
    let plain = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    host.iter().all(plain) && host.last() != Some(&b'.')
}

/// An IPv6 host in the spelling of RFC 5952: `[0:0::1]:80` is `[::1]`.
fn canonical_ipv6(host: &str) -> Option<Cow<'_, str>> {
    let (inner, bracketed) = match host.strip_prefix('[') {
        Some(rest) => (rest.split_once(']')?.0, true),
        None if host.contains(':') => (host, false),
        None => return None, // the common case
    };
    let address: Ipv6Addr = inner.parse().ok()?;
    if bracketed && is_written(inner, address) {
        return Some(Cow::Borrowed(&host[..inner.len() + 2]));
    }
    Some(Cow::Owned(format!("[{address}]")))
}

fn is_written(text: &str, address: Ipv6Addr) -> bool {
    let mut unmatched = Unmatched(text);
    write!(unmatched, "{address}").is_ok() && unmatched.0.is_empty()
}

/// Compares formatted output with a text, without allocating.
struct Unmatched<'a>(&'a str);

impl Write for Unmatched<'_> {
    fn write_str(&mut self, written: &str) -> fmt::Result {
        self.0 = self.0.strip_prefix(written).ok_or(fmt::Error)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(raw: &str, expected: &str) {
        assert_eq!(canonical(raw), expected, "{raw:?}");
    }

    #[test]
    fn every_spelling_of_a_name_is_one_host() {
        let table = "
            example.com EXAMPLE.com example.com:80 example.com: example.com. Example.Com.:443
            u:p@example.com:80 a@b@example.com example.com:80:90 example.com.. example.com...:80
            example%2ecom example%2Ecom%2e:80 EX%41MPLE.com %65xample.com example.com%3A80 u%40example.com
        ";
        for raw in table.split_whitespace() {
            check(raw, "example.com");
        }
    }

    #[test]
    fn every_spelling_of_an_ipv6_literal_is_one_host() {
        let table = "
            [2001:db8::1] [2001:DB8::1]:80 [2001:db8:0::1] [2001:0db8::0001] 2001:db8::1 u@[2001:db8::1]:8
        ";
        for raw in table.split_whitespace() {
            check(raw, "[2001:db8::1]");
        }
    }

    #[test]
    fn ipv4_hosts_lose_only_their_port() {
        check("192.0.2.1:80", "192.0.2.1");
        check("192.0.2.1", "192.0.2.1");
    }

    #[test]
    fn a_malformed_host_is_still_one_text() {
        let table = [("", ""), (":80", ""), (".", ""), ("@", ""), ("[::1", "[::1"), ("[]", "[]")];
        for (raw, expected) in table {
            check(raw, expected);
        }
        check("[V1.X]:8", "[v1.x]");
        check("[fe80::1%25ETH0]:8", "[fe80::1%25eth0]");
        check("]:", "]");
        check(&"@".repeat(1 << 20), "");
        check(&"[".repeat(1 << 20), &"[".repeat(1 << 20));
    }

    #[test]
    fn a_canonical_host_is_borrowed() {
        for host in
            ["", "example.com", "example.com.:80", "[2001:db8::1]", "[::ffff:1.2.3.4]:80", "192.0.2.1"]
        {
            assert!(matches!(canonical(host), Cow::Borrowed(_)), "{host:?}");
        }
    }
}
