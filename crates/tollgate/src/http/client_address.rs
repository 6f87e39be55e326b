//! The client's address behind trusted proxies.

use std::borrow::Cow;
use std::net::IpAddr;

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};

use crate::identity::address::{TrustedProxies, canonical_ip};
use crate::identity::forwarded::{ForwardingHeader, client_ip};

/// Which proxies may name the client's address, and in which header.
#[derive(Clone, Copy)]
pub struct ProxyTrust<'c> {
    pub proxies: &'c TrustedProxies,
    pub header: ForwardingHeader,
}

impl ProxyTrust<'_> {
    /// The client's address: the peer's, or the one that trusted proxies name.
    #[inline]
    pub fn client(self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        if !self.proxies.contains(peer) {
            return canonical_ip(peer);
        }
        let lines = lines(headers, self.name());
        let lines: Vec<&str> = lines.iter().map(|line| &**line).collect();
        client_ip(peer, self.header, &lines, self.proxies)
    }

    fn name(self) -> HeaderName {
        match self.header {
            ForwardingHeader::XForwardedFor => HeaderName::from_static("x-forwarded-for"),
            ForwardingHeader::Forwarded => FORWARDED,
        }
    }
}

/// The values of a header. Bytes that are not UTF-8 are replaced, and only the entry that has them is unreadable:
/// otherwise a client could hide what a proxy appended to its text.
pub fn lines(headers: &HeaderMap, name: HeaderName) -> Vec<Cow<'_, str>> {
    headers.get_all(name).iter().map(|line| String::from_utf8_lossy(line.as_bytes())).collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn bytes_that_are_not_text_do_not_hide_the_entry_of_a_proxy() {
        let proxies = TrustedProxies::parse(["10.0.0.0/8"]).expect("a network");
        let peer: IpAddr = "10.0.0.1".parse().expect("an address");
        for (header, name, line) in [
            (ForwardingHeader::XForwardedFor, "x-forwarded-for", &b"\xff\xe9, 203.0.113.9"[..]),
            (ForwardingHeader::Forwarded, "forwarded", b"for=\xff, for=203.0.113.9"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_bytes(line).expect("a value"));
            let client = ProxyTrust { proxies: &proxies, header }.client(peer, &headers);
            assert_eq!(client.to_string(), "203.0.113.9");
        }
    }
}
