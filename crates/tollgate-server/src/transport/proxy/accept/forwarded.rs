//! The client's address, and the forwarding headers that upstreams get.
//!
//! Forwarding headers of a trusted proxy are extended; those of any other peer are replaced.

use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;

use bytes::Bytes;
use hyper::header::{FORWARDED, HeaderMap, HeaderName, HeaderValue};
use tollgate::internal::http::{ProxyTrust, lines};
use tollgate::internal::identity::address::{TrustedProxies, canonical_ip};
use tollgate::internal::identity::forwarded::{ForwardingHeader, last_parameter};

use crate::http1::push_header;

pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The remote end of a downstream connection.
pub struct Peer {
    ip: IpAddr,
    scheme: Scheme,
    address: HeaderValue,
    /// Cache of the last `Forwarded` element with its host: most connections use one host.
    element: Mutex<Option<(HeaderValue, HeaderValue)>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub const fn name(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }
}

impl Peer {
    pub fn new(peer: SocketAddr, scheme: Scheme) -> Peer {
        let ip = canonical_ip(peer.ip());
        Peer { ip, scheme, address: value(ip.to_string()), element: Mutex::new(None) }
    }

    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    pub fn is_trusted(&self, trusted: &TrustedProxies) -> bool {
        trusted.contains(self.ip)
    }

    /// The client's address: the peer's, or the one that trusted proxies name.
    pub fn client(&self, headers: &HeaderMap, trust: ProxyTrust<'_>) -> IpAddr {
        trust.client(self.ip, headers)
    }

    /// Writes the forwarding headers. Of `Forwarded` and `X-Forwarded-For`, trusted proxies write only one; the other
    /// one is client input and is replaced.
    pub fn write_forwarding_headers(
        &self,
        headers: &mut HeaderMap,
        host: &HeaderValue,
        trust: ProxyTrust<'_>,
    ) {
        if !self.is_trusted(trust.proxies) {
            headers.insert(X_FORWARDED_FOR, self.address.clone());
            headers.insert(X_FORWARDED_HOST, host.clone());
            headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(self.scheme.name()));
            headers.insert(FORWARDED, self.element(host));
            return;
        }
        let client = self.client(headers, trust);
        let before = Some(client).filter(|client| *client != self.ip);
        let own_proto = HeaderValue::from_static(self.scheme.name());
        match trust.header {
            ForwardingHeader::XForwardedFor => {
                add(headers, X_FORWARDED_FOR, &self.address);
                headers.remove(FORWARDED);
                headers.extend(before.map(|client| (FORWARDED, value(format!("for={}", node(client))))));
                add(headers, FORWARDED, &self.element(host));
                headers.entry(X_FORWARDED_HOST).or_insert_with(|| host.clone());
                headers.entry(X_FORWARDED_PROTO).or_insert(own_proto);
            }
            ForwardingHeader::Forwarded => {
                let lines = lines(headers, FORWARDED);
                let lines: Vec<&str> = lines.iter().map(|line| &**line).collect();
                let parameter = |name| last_parameter(&lines, name).and_then(as_header);
                let forwarded_host = parameter("host");
                let forwarded_proto = parameter("proto");
                add(headers, FORWARDED, &self.element(host));
                headers.remove(X_FORWARDED_FOR);
                headers.extend(before.map(|client| (X_FORWARDED_FOR, value(client.to_string()))));
                add(headers, X_FORWARDED_FOR, &self.address);
                headers.insert(X_FORWARDED_HOST, forwarded_host.unwrap_or_else(|| host.clone()));
                headers.insert(X_FORWARDED_PROTO, forwarded_proto.unwrap_or(own_proto));
            }
        }
    }

    /// Writes the forwarding headers of a peer that is not trusted.
    pub fn write_forwarding_lines(&self, out: &mut Vec<u8>, host: &str) {
        let address = self.address.as_bytes();
        let scheme = self.scheme.name().as_bytes();
        let (open, close): (&[u8], &[u8]) = if self.ip.is_ipv4() { (b"", b"") } else { (b"\"[", b"]\"") };
        let host = host.as_bytes();
        out.reserve(2 * (address.len() + host.len()) + 128);
        push_header(out, X_FORWARDED_FOR.as_str(), address);
        push_header(out, X_FORWARDED_HOST.as_str(), host);
        push_header(out, X_FORWARDED_PROTO.as_str(), scheme);
        for part in
            [b"forwarded: for=", open, address, close, b";host=\"", host, b"\";proto=", scheme, b"\r\n"]
        {
            out.extend_from_slice(part);
        }
    }

    /// `for=203.0.113.9;host="api.example.com";proto=https`
    fn element(&self, host: &HeaderValue) -> HeaderValue {
        let mut last = self.element.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((_, element)) = last.as_ref().filter(|(known, _)| known == host) {
            return element.clone();
        }
        let by = node(self.ip);
        let shown = host.to_str().unwrap_or_default();
        let element = value(format!("for={by};host=\"{shown}\";proto={}", self.scheme.name()));
        *last = Some((host.clone(), element.clone()));
        element
    }
}

/// An address in the syntax of `Forwarded` (RFC 7239, 6).
fn node(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("\"[{ip}]\""),
    }
}

/// A host or a scheme from a proxy's header; `None` if it has unexpected characters.
fn as_header(value: &str) -> Option<HeaderValue> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]+".contains(&byte);
    HeaderValue::from_str(value).ok().filter(|_| !value.is_empty() && value.bytes().all(plain))
}

/// Appends to a list, which becomes one header line.
fn add(headers: &mut HeaderMap, name: HeaderName, last: &HeaderValue) {
    let lines: Vec<_> = headers.get_all(&name).iter().collect();
    if lines.is_empty() {
        headers.insert(name, last.clone());
        return;
    }
    let whole =
        lines.into_iter().chain([last]).map(HeaderValue::as_bytes).collect::<Vec<_>>().join(&b", "[..]);
    if let Ok(whole) = HeaderValue::from_maybe_shared(Bytes::from(whole)) {
        headers.insert(name, whole);
    }
}

fn value(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(text)).expect("addresses and hosts fit a header")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(
        given: &[(&'static str, &'static str)],
        trusted: &[&str],
        header: ForwardingHeader,
    ) -> Vec<(String, String)> {
        let peer = Peer::new("[::ffff:203.0.113.9]:4711".parse().unwrap(), Scheme::Https);
        let mut headers: HeaderMap = given
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        let proxies = &TrustedProxies::parse(trusted.iter().copied()).unwrap();
        let host = HeaderValue::from_static("api.example.com:8000");
        peer.write_forwarding_headers(&mut headers, &host, ProxyTrust { proxies, header });
        let mut lines: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        lines.sort();
        lines
    }

    fn written(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    const OWN: [(&str, &str); 4] = [
        ("forwarded", "for=203.0.113.9;host=\"api.example.com:8000\";proto=https"),
        ("x-forwarded-for", "203.0.113.9"),
        ("x-forwarded-host", "api.example.com:8000"),
        ("x-forwarded-proto", "https"),
    ];

    #[test]
    fn headers_of_an_untrusted_client_are_replaced() {
        let claims = [
            ("x-forwarded-for", "1.1.1.1"),
            ("forwarded", "for=1.1.1.1"),
            ("x-forwarded-host", "evil"),
            ("x-forwarded-proto", "ftp"),
        ];
        for header in [ForwardingHeader::XForwardedFor, ForwardingHeader::Forwarded] {
            assert_eq!(announced(&claims, &[], header), written(&OWN));
            assert_eq!(announced(&[], &[], header), written(&OWN));
        }
    }

    const GIVEN: [(&str, &str); 5] = [
        ("x-forwarded-for", "1.1.1.1"),
        ("x-forwarded-for", "2.2.2.2"),
        ("forwarded", "for=3.3.3.3;host=\"public.example.org\";proto=http"),
        ("x-forwarded-host", "public.example.com"),
        ("x-forwarded-proto", "http"),
    ];

    #[test]
    fn a_trusted_proxy_is_added_to() {
        let expected = [
            ("forwarded", "for=2.2.2.2, for=203.0.113.9;host=\"api.example.com:8000\";proto=https"),
            ("x-forwarded-for", "1.1.1.1, 2.2.2.2, 203.0.113.9"),
            ("x-forwarded-host", "public.example.com"),
            ("x-forwarded-proto", "http"),
        ];
        let trusted = ["203.0.113.0/24"];
        assert_eq!(announced(&GIVEN, &trusted, ForwardingHeader::XForwardedFor), written(&expected));
        let own_way = [("forwarded", "for=3.3.3.3")];
        assert_eq!(announced(&own_way, &trusted, ForwardingHeader::XForwardedFor), written(&OWN));
    }

    #[test]
    fn lines_are_the_headers_of_a_peer_that_is_not_trusted() {
        for address in ["[::ffff:203.0.113.9]:1", "203.0.113.9:1", "[2001:db8::1]:1"] {
            let peer = Peer::new(address.parse().expect("an address"), Scheme::Https);
            let host = HeaderValue::from_static("h:80");
            let mut headers = HeaderMap::new();
            let proxies = &TrustedProxies::default();
            let trust = ProxyTrust { proxies, header: ForwardingHeader::XForwardedFor };
            peer.write_forwarding_headers(&mut headers, &host, trust);
            let mut lines = Vec::new();
            peer.write_forwarding_lines(&mut lines, "h:80");
            let mut expected = Vec::new();
            headers
                .iter()
                .for_each(|(name, value)| push_header(&mut expected, name.as_str(), value.as_bytes()));
            assert_eq!(String::from_utf8(lines), String::from_utf8(expected));
        }
    }

    #[test]
    fn a_trusted_proxy_that_writes_forwarded_is_added_to_there() {
        let expected = [
            (
                "forwarded",
                "for=3.3.3.3;host=\"public.example.org\";proto=http, \
                 for=203.0.113.9;host=\"api.example.com:8000\";proto=https",
            ),
            ("x-forwarded-for", "3.3.3.3, 203.0.113.9"),
            ("x-forwarded-host", "public.example.org"),
            ("x-forwarded-proto", "http"),
        ];
        let trusted = ["203.0.113.0/24"];
        assert_eq!(announced(&GIVEN, &trusted, ForwardingHeader::Forwarded), written(&expected));
        let own_way = [("x-forwarded-for", "3.3.3.3"), ("x-forwarded-host", "evil")];
        assert_eq!(announced(&own_way, &trusted, ForwardingHeader::Forwarded), written(&OWN));
    }
}
