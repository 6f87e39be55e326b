//! The client behind trusted proxies: `Forwarded` and `X-Forwarded-For`.
//!
//! Invariant: an address is taken from a header only if a trusted proxy wrote it. Headers are therefore read from the
//! right, where the nearest proxy wrote, and only as far as the proxies are trusted; everything further left is the
//! client's own text and cannot change the result. This module must not know requests or rules.

use std::{
    iter,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::address::{TrustedProxies, canonical_ip, parse_ip};

/// Maximum number of entries of a forwarding header that are read.
pub const MAX_HOPS: usize = 64;

/// The header that trusted proxies write. The other one is the client's own text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ForwardingHeader {
    /// The one that nearly every proxy appends to.
    #[default]
    XForwardedFor,
    /// RFC 7239.
    Forwarded,
}

/// The client behind `peer`: the first address, from the right, that is not a
/// trusted proxy's, or the leftmost if all are. An entry without a readable
/// address ends the walk at the last known one.
///
/// `lines` are those of the header that trusted proxies write, in order of appearance.
pub fn client_ip(peer: IpAddr, header: ForwardingHeader, lines: &[&str], trusted: &TrustedProxies) -> IpAddr {
    match header {
        ForwardingHeader::XForwardedFor => {
            walk(peer, lines.iter().rev().flat_map(|line| line.rsplit(',')).map(parse_node), trusted)
        }
        ForwardingHeader::Forwarded => walk(peer, elements_from_right(lines).map(forwarded_for), trusted),
    }
}

/// A parameter of the last element of `Forwarded`, which the nearest proxy wrote.
pub fn last_parameter<'a>(lines: &[&'a str], name: &str) -> Option<&'a str> {
    let mut rest = elements_from_right(lines).map(str::trim_ascii).find(|element| !element.is_empty())?;
    while !rest.is_empty() {
        let (found, value, after) = parameter(rest)?;
        if found.eq_ignore_ascii_case(name) {
            return Some(value);
        }
        rest = after;
    }
    None
}

fn walk(peer: IpAddr, hops: impl Iterator<Item = Hop>, trusted: &TrustedProxies) -> IpAddr {
    let mut client = canonical_ip(peer);
    let mut hops = hops.take(MAX_HOPS);
    while trusted.contains(client) {
        match hops.next() {
            Some(Hop::Known(address)) => client = address,
            Some(Hop::Blank) => {} // an empty list element is not a hop (RFC 9110, 5.6.1)
            Some(Hop::Unknown) | None => break,
        }
    }
    client
}

/// One entry of a forwarding header.
enum Hop {
    Known(IpAddr),
    Unknown,
    Blank,
}

/// The elements of `Forwarded`, last first. Quotes are matched from the right, too: an unclosed quote of the client
/// cannot swallow what a proxy appended.
fn elements_from_right<'a>(lines: &[&'a str]) -> impl Iterator<Item = &'a str> {
    lines.iter().rev().flat_map(|line| {
        let mut rest = Some(*line);
        iter::from_fn(move || {
            let line = rest?;
            let comma = last_bare_comma(line.as_bytes());
            rest = comma.map(|at| &line[..at]);
            Some(comma.map_or(line, |at| &line[at + 1..]))
        })
    })
}

fn last_bare_comma(line: &[u8]) -> Option<usize> {
    let mut quoted = false;
    for (at, byte) in line.iter().enumerate().rev() {
        match byte {
            b',' if !quoted => return Some(at),
            b'"' => {
                let backslashes = line[..at].iter().rev().take_while(|b| **b == b'\\').count();
                quoted ^= backslashes % 2 == 0;
            }
            _ => {}
        }
    }
    None
}

/// The `for` of one element (RFC 7239, 4); unknown if anything is malformed.
fn forwarded_for(element: &str) -> Hop {
    let mut rest = element.trim_ascii();
    if rest.is_empty() {
        return Hop::Blank;
    }
    let mut found = None;
    while !rest.is_empty() {
        let Some((name, value, after)) = parameter(rest) else {
            return Hop::Unknown;
        };
        if name.eq_ignore_ascii_case("for") && found.replace(value).is_some() {
            return Hop::Unknown; // a parameter occurs once
        }
        rest = after;
    }
    match found.map(parse_node) {
        Some(Hop::Known(address)) => Hop::Known(address),
        _ => Hop::Unknown,
    }
}

/// Splits `name=value; rest`. An address needs no escape, so a quoted value is
/// returned as written, without its quotes.
fn parameter(text: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = text.split_once('=')?;
    let (value, after) = match rest.strip_prefix('"') {
        Some(quoted) => {
            let end = closing_quote(quoted.as_bytes())?;
            (&quoted[..end], &quoted[end + 1..])
        }
        None => rest.split_at(rest.find(';').unwrap_or(rest.len())),
    };
    let after = after.trim_ascii_start();
    let after = if after.is_empty() { after } else { after.strip_prefix(';')? };
    Some((name.trim_ascii(), value.trim_ascii(), after.trim_ascii_start()))
}

fn closing_quote(text: &[u8]) -> Option<usize> {
    let mut escaped = false;
    text.iter().position(|byte| {
        let closes = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        closes
    })
}

/// Reads `1.2.3.4`, `1.2.3.4:567`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`.
fn parse_node(text: &str) -> Hop {
    let text = text.trim_ascii();
    match parse_ip(text).or_else(|| parse_decorated(text)) {
        Some(address) => Hop::Known(address),
        None if text.is_empty() => Hop::Blank,
        None => Hop::Unknown, // `unknown`, `_hidden`, garbage
    }
}

fn parse_decorated(text: &str) -> Option<IpAddr> {
    let (address, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (inner, port) = rest.split_once(']')?;
            (inner.parse::<Ipv6Addr>().ok()?.into(), port)
        }
        None => {
            let (host, port) = text.split_at(text.find(':')?);
            (host.parse::<Ipv4Addr>().ok()?.into(), port)
        }
    };
    (port.is_empty() || is_port(port.strip_prefix(':')?)).then_some(canonical_ip(address))
}

/// `1*5DIGIT` or an obfuscated port (RFC 7239, 6).
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(name) => {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        }
        None => (1..=5).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: &str = "10.0.0.1";

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn proxies() -> TrustedProxies {
        TrustedProxies::parse(["10.0.0.0/8", "2001:db8:ff::/48"]).unwrap()
    }

    #[track_caller]
    fn check(forwarded: &[&str], x_forwarded_for: &[&str], expected: &str) {
        let client = match forwarded.is_empty() {
            true => client_ip(ip(PEER), ForwardingHeader::XForwardedFor, x_forwarded_for, &proxies()),
            false => client_ip(ip(PEER), ForwardingHeader::Forwarded, forwarded, &proxies()),
        };
        assert_eq!(client, ip(expected), "{forwarded:?} {x_forwarded_for:?}");
    }

    #[test]
    fn headers_of_an_untrusted_peer_are_ignored() {
        let peer = ip("::ffff:203.0.113.9");
        for (header, lines) in [
            (ForwardingHeader::Forwarded, ["for=10.0.0.2", "for=1.1.1.1"]),
            (ForwardingHeader::XForwardedFor, ["10.0.0.2", "2.2.2.2"]),
        ] {
            assert_eq!(client_ip(peer, header, &lines, &proxies()), ip("203.0.113.9"));
            assert_eq!(client_ip(ip(PEER), header, &lines, &TrustedProxies::default()), ip(PEER));
        }
    }

    #[test]
    fn the_first_untrusted_address_from_the_right_is_the_client() {
        check(&[], &["203.0.113.9"], "203.0.113.9");
        check(&[], &["203.0.113.9, 10.0.0.3 ,10.0.0.2"], "203.0.113.9");
        check(&[], &["203.0.113.9", "10.0.0.3", "10.0.0.2"], "203.0.113.9");
        check(&[], &["203.0.113.9:567, [2001:db8:ff::1]:80"], "203.0.113.9");
        check(&[], &["::ffff:203.0.113.9, ::ffff:10.0.0.2"], "203.0.113.9");
        check(&[], &["2001:db8::1"], "2001:db8::1");
        check(&[], &["[2001:db8::1]"], "2001:db8::1");
    }

    #[test]
    fn a_spoofed_entry_never_becomes_the_client() {
        let table = r#"1.1.1.1 10.0.0.9 unknown _x " for=" 1.1.1.1;x=" x="\ ,,, \ é"#;
        for spoofed in table.split_whitespace() {
            check(&[], &[&format!("{spoofed}, 203.0.113.9")], "203.0.113.9");
            check(&[], &[spoofed, "203.0.113.9, 10.0.0.2"], "203.0.113.9");
            check(&[&format!("for={spoofed}, for=203.0.113.9")], &[], "203.0.113.9");
            check(
                &[&format!("for={spoofed}, for=\"203.0.113.9:80\";by=\"_\\\",\", for=10.0.0.2")],
                &[],
                "203.0.113.9",
            );
            check(&[spoofed, "for=203.0.113.9"], &[], "203.0.113.9");
            check(&[], &[spoofed, "203.0.113.9"], "203.0.113.9");
        }
    }

    #[test]
    fn the_nearest_proxy_says_host_and_protocol() {
        let lines = ["for=1.1.1.1;proto=ftp", "for=2.2.2.2;host=\"a.example:80\";proto=https ,"];
        assert_eq!(last_parameter(&lines, "Proto"), Some("https"));
        assert_eq!(last_parameter(&lines, "host"), Some("a.example:80"));
        assert_eq!(last_parameter(&lines, "by"), None);
        assert_eq!(last_parameter(&[], "proto"), None);
    }

    #[test]
    fn forwarded_is_read_as_rfc_7239_writes_it() {
        for line in [
            "for=203.0.113.9",
            "For=\"203.0.113.9\"",
            "FOR=203.0.113.9:4711",
            "for=\"203.0.113.9:_port\"",
            "proto=http; by=10.0.0.2 ;for=203.0.113.9",
            "for=203.0.113.9;host=\"a,b;for=1.1.1.1\"",
            "for=203.0.113.9;",
            "for=203.0.113.9;ext=\"\\\",for=1.1.1.1\"",
            "for=1.1.1.1 , for=203.0.113.9 , ",
            "for=\"[::ffff:203.0.113.9]\"",
        ] {
            check(&[line], &[], "203.0.113.9");
        }
        check(&["for=\"[2001:db8::1]:4711\""], &[], "2001:db8::1");
        check(&["for=203.0.113.9", "for=\"[2001:db8:ff::1]\", for=10.0.0.2"], &[], "203.0.113.9");
    }

    #[test]
    fn an_entry_without_an_address_ends_the_walk() {
        let table = "
            unknown _hidden 1.2.3 1.2.3.4: 1.2.3.4:x 1.2.3.4:123456 [::1 [1.2.3.4] [::1]x ::1] a:80
            1.2.3.4:_
        ";
        for entry in table.split_whitespace() {
            check(&[], &[&format!("1.1.1.1, {entry}, 10.0.0.2")], "10.0.0.2");
            check(&[&format!("for=1.1.1.1, for=\"{entry}\", for=10.0.0.2")], &[], "10.0.0.2");
        }
        let table = r#"
            proto=http for for= for="" =1.2.3.4 for=2.2.2.2;for=3.3.3.3 for=2.2.2.2;x for="2.2.2.2"x
            for="2.2.2.2
        "#;
        for element in table.split_whitespace() {
            check(&["for=1.1.1.1", &format!("{element}, for=10.0.0.2")], &[], "10.0.0.2");
        }
    }

    #[test]
    fn where_all_are_trusted_the_leftmost_is_the_client() {
        check(&[], &["10.0.0.4, 10.0.0.3", "10.0.0.2"], "10.0.0.4");
        check(&[], &[], PEER);
        check(&[], &["", " , "], PEER);
    }

    #[test]
    fn the_walk_is_bounded() {
        let hops = |count: usize| ["10.0.0.2"].repeat(count).join(",");
        check(&[], &[&format!("203.0.113.9,{}", hops(MAX_HOPS - 1))], "203.0.113.9");
        check(&[], &[&format!("203.0.113.9,{}", hops(MAX_HOPS))], "10.0.0.2");
        check(&[], &[&format!("203.0.113.9{}", ",".repeat(MAX_HOPS))], PEER);
        check(&[&"\\\"".repeat(1 << 19)], &[], PEER);
        check(&[&("\\".repeat(1 << 20) + "\"")], &[], PEER);
    }
}
