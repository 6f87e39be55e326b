//! The client's address behind trusted proxies.

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
        client_ip(peer, self.header, &lines(headers, self.name()), self.proxies)
    }

    fn name(self) -> HeaderName {
        match self.header {
            ForwardingHeader::XForwardedFor => HeaderName::from_static("x-forwarded-for"),
            ForwardingHeader::Forwarded => FORWARDED,
        }
    }
}

/// The values of a header. One that is not text becomes `unknown`, which ends the walk, as any value without an address
/// does.
pub fn lines(headers: &HeaderMap, name: HeaderName) -> Vec<&str> {
    headers.get_all(name).iter().map(|line| line.to_str().unwrap_or("unknown")).collect()
}
