//! Who the client is, and what upstreams are told about it.
//!
//! A trusted proxy's word is passed on and added to; anybody else's is replaced by what we see ourselves.

use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;

use bytes::Bytes;
use hyper::header::{FORWARDED, HeaderMap, HeaderName, HeaderValue};
use tollgate::identity::address::{TrustedProxies, canonical_ip};
use tollgate::identity::forwarded::client_ip;

pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// The other end of a client's connection.
pub struct Peer {
    ip: IpAddr,
    scheme: Scheme,
    address: HeaderValue,
    /// The last `Forwarded` element and the host that it was made for: a connection mostly asks one host.
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

    pub fn is_trusted(&self, trusted: &TrustedProxies) -> bool {
        trusted.contains(self.ip)
    }

    /// The address of the client: the peer's own, or what trusted proxies say.
    pub fn client(&self, headers: &HeaderMap, trusted: &TrustedProxies) -> IpAddr {
        if !self.is_trusted(trusted) {
            return self.ip;
        }
        let lines = |name: HeaderName| -> Vec<&str> {
            // A line that is no text ends the walk, as one without an address does.
            headers.get_all(name).iter().map(|line| line.to_str().unwrap_or("unknown")).collect()
        };
        client_ip(self.ip, &lines(FORWARDED), &lines(X_FORWARDED_FOR), trusted)
    }

    /// Writes what an upstream is told.
    pub fn announce(&self, headers: &mut HeaderMap, host: &HeaderValue, trusted: &TrustedProxies) {
        if self.is_trusted(trusted) {
            // Nothing is lost: what was there stays, and we add ourselves.
            add(headers, X_FORWARDED_FOR, &self.address);
            add(headers, FORWARDED, &self.element(host));
            headers.entry(X_FORWARDED_HOST).or_insert_with(|| host.clone());
            headers.entry(X_FORWARDED_PROTO).or_insert(HeaderValue::from_static(self.scheme.name()));
            return;
        }
        headers.insert(X_FORWARDED_FOR, self.address.clone());
        headers.insert(X_FORWARDED_HOST, host.clone());
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(self.scheme.name()));
        headers.insert(FORWARDED, self.element(host));
    }

    /// `for=203.0.113.9;host="api.example.com";proto=https`
    fn element(&self, host: &HeaderValue) -> HeaderValue {
        let mut last = self.element.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((_, element)) = last.as_ref().filter(|(known, _)| known == host) {
            return element.clone();
        }
        let by = match self.ip {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("\"[{ip}]\""),
        };
        let shown = host.to_str().unwrap_or_default();
        let element = value(format!("for={by};host=\"{shown}\";proto={}", self.scheme.name()));
        *last = Some((host.clone(), element.clone()));
        element
    }
}

/// Adds to a list, on one line.
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

    fn announced(given: &[(&'static str, &'static str)], trusted: &[&str]) -> Vec<(String, String)> {
        let peer = Peer::new("[::ffff:203.0.113.9]:4711".parse().unwrap(), Scheme::Https);
        let mut headers: HeaderMap = given
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        let trusted = TrustedProxies::parse(trusted.iter().copied()).unwrap();
        peer.announce(&mut headers, &HeaderValue::from_static("api.example.com:8000"), &trusted);
        let mut lines: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        lines.sort();
        lines
    }

    fn lines(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    const OWN: [(&str, &str); 4] = [
        ("forwarded", "for=203.0.113.9;host=\"api.example.com:8000\";proto=https"),
        ("x-forwarded-for", "203.0.113.9"),
        ("x-forwarded-host", "api.example.com:8000"),
        ("x-forwarded-proto", "https"),
    ];

    #[test]
    fn what_a_stranger_claims_is_replaced() {
        let claims = [
            ("x-forwarded-for", "1.1.1.1"),
            ("forwarded", "for=1.1.1.1"),
            ("x-forwarded-host", "evil"),
            ("x-forwarded-proto", "ftp"),
        ];
        assert_eq!(announced(&claims, &[]), lines(&OWN));
        assert_eq!(announced(&[], &[]), lines(&OWN));
    }

    #[test]
    fn a_trusted_proxy_is_added_to() {
        let given = [
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-for", "2.2.2.2"),
            ("forwarded", "for=1.1.1.1"),
            ("x-forwarded-host", "public.example.com"),
            ("x-forwarded-proto", "http"),
        ];
        let expected = [
            ("forwarded", "for=1.1.1.1, for=203.0.113.9;host=\"api.example.com:8000\";proto=https"),
            ("x-forwarded-for", "1.1.1.1, 2.2.2.2, 203.0.113.9"),
            ("x-forwarded-host", "public.example.com"),
            ("x-forwarded-proto", "http"),
        ];
        assert_eq!(announced(&given, &["203.0.113.0/24"]), lines(&expected));
    }
}
