//! Addresses: one spelling, the group that one client is counted under, and trusted proxies.
//!
//! Invariant: every address that leaves this module is canonical, so that `::ffff:1.2.3.4` and `1.2.3.4` are one
//! client, one group and one proxy. It must not know headers, requests or rules.

use std::{
    error::Error,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::decimal::ipv4_text;

/// Maximum number of trusted networks; each hop is compared with all.
pub const MAX_TRUSTED: usize = 1024;

/// What one client is counted under: an IPv4 address or an IPv6 network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressGroup {
    address: IpAddr,
    prefix: Option<u8>,
}

impl AddressGroup {
    /// As it is displayed.
    pub(crate) fn text(&self) -> String {
        match (self.address, self.prefix) {
            (IpAddr::V4(ip), None) => ipv4_text(ip),
            _ => self.to_string(),
        }
    }
}

impl fmt::Display for AddressGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix {
            Some(prefix) => write!(f, "{}/{prefix}", self.address),
            None => write!(f, "{}", self.address),
        }
    }
}

/// The networks whose forwarding headers are trusted. By default, none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<IpNet>);

/// Why a list of trusted proxies was rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrustedProxiesError {
    /// The word is neither an address nor a network.
    Invalid { word: String },
    /// The list is longer than [`MAX_TRUSTED`].
    TooMany,
}

impl fmt::Display for TrustedProxiesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid { word } => {
                write!(
                    f,
                    "trusted proxy `{word}` is neither an address nor a network; write 10.0.0.7 or 10.0.0.0/8"
                )
            }
            Self::TooMany => {
                write!(f, "more than {MAX_TRUSTED} trusted proxies; write them as wider networks")
            }
        }
    }
}

impl Error for TrustedProxiesError {}

impl TrustedProxies {
    /// Reads addresses (`10.0.0.7`) and networks (`10.0.0.0/8`).
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, TrustedProxiesError> {
        let mut networks = Vec::new();
        for word in words {
            if networks.len() == MAX_TRUSTED {
                return Err(TrustedProxiesError::TooMany);
            }
            let network = network(word.trim());
            networks.push(network.ok_or_else(|| TrustedProxiesError::Invalid { word: word.to_owned() })?);
        }
        Ok(Self(networks))
    }

    /// Whether `ip`, in any spelling, is a trusted proxy.
    #[inline]
    pub fn contains(&self, ip: IpAddr) -> bool {
        !self.0.is_empty() && self.has_network_of(canonical_ip(ip))
    }

    #[inline(never)]
    fn has_network_of(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&ip))
    }
}

/// `::ffff:1.2.3.4` is `1.2.3.4`.
#[inline]
pub fn canonical_ip(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip, // the common case, without a copy
        IpAddr::V6(v6) => v6.to_canonical(),
    }
}

/// The address that a client is counted by: one that embeds an IPv4 address (mapped, 6to4, NAT64) is that address.
///
/// Never used to decide trust: a client may send such an address, with any IPv4 address in it.
#[inline]
pub fn client_address(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(v6) => client_address_of_v6(v6),
    }
}

#[inline(never)]
fn client_address_of_v6(ip: Ipv6Addr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) => embedded(v6).map_or(IpAddr::V6(v6), IpAddr::V4),
        v4 => v4,
    }
}

/// The IPv4 address in a 6to4 (RFC 3056, `2002::/16`) or NAT64 address (RFC 6052, `64:ff9b::/96`). One that is not
/// globally routed is ignored: it is not legitimate there, and could be on an allow list.
fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = ip.segments();
    let (high, low) = match [a, b, c, d, e, f] {
        [0x2002, high, low, ..] => (high, low),
        [0x64, 0xff9b, 0, 0, 0, 0] => (g, h),
        _ => return None,
    };
    let inside = Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    let [first, second, ..] = inside.octets();
    let is_shared = first == 100 && (64..128).contains(&second);
    let is_local = inside.is_private() || inside.is_loopback() || inside.is_link_local() || first == 0;
    let is_public = !is_local && !is_shared && !inside.is_multicast() && first < 240;
    is_public.then_some(inside)
}

/// The clients that `network` covers: 6to4 and NAT64 networks become the IPv4 network that they embed.
pub fn client_network(network: IpNet) -> IpNet {
    let inside = |network: Ipv6Net| {
        let inside = embedded(network.network())?;
        let prefix = match network.network().segments() {
            [0x2002, ..] if network.prefix_len() >= 48 => 32,
            [0x2002, ..] => network.prefix_len().checked_sub(16)?,
            _ => network.prefix_len().checked_sub(96)?,
        };
        // A shorter prefix would cover far more addresses than were written.
        Ipv4Net::new(inside, prefix).ok().filter(|_| prefix >= 8)
    };
    match network {
        IpNet::V6(v6) => inside(v6).map_or(network, IpNet::V4),
        v4 => v4,
    }
}

/// Reads an address and nothing else: no port, brackets, zone or spaces.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    text.parse().ok().map(canonical_ip)
}

/// The group of `ip`. A prefix of 128 or more keeps IPv6 addresses apart.
pub fn group(ip: IpAddr, ipv6_prefix: u8) -> AddressGroup {
    match client_address(ip) {
        IpAddr::V6(v6) if ipv6_prefix < 128 => {
            let mask = u128::MAX.checked_shl(128 - u32::from(ipv6_prefix)).unwrap_or(0);
            let network = Ipv6Addr::from_bits(v6.to_bits() & mask);
            AddressGroup { address: network.into(), prefix: Some(ipv6_prefix) }
        }
        address => AddressGroup { address, prefix: None },
    }
}

/// Reads a network; one of mapped addresses becomes its IPv4 network.
fn network(word: &str) -> Option<IpNet> {
    if let Some(address) = parse_ip(word) {
        return Some(address.into());
    }
    match word.parse().ok()? {
        IpNet::V6(v6) if v6.prefix_len() >= 96 => match v6.addr().to_ipv4_mapped() {
            Some(v4) => Some(Ipv4Net::new(v4, v6.prefix_len() - 96).ok()?.into()),
            None => Some(v6.into()),
        },
        other => Some(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn mapped_addresses_are_ipv4() {
        assert_eq!(parse_ip("::ffff:1.2.3.4"), Some(ip("1.2.3.4")));
        assert_eq!(parse_ip("::FFFF:102:304"), Some(ip("1.2.3.4")));
        assert_eq!(canonical_ip(ip("::1.2.3.4")), ip("::1.2.3.4"));
        assert_eq!(group(ip("::ffff:1.2.3.4"), 64).to_string(), "1.2.3.4");
    }

    #[test]
    fn only_a_plain_address_is_an_address() {
        let table = "1.2.3 01.2.3.4 1.2.3.256 0x7f.1 1.2.3.4:5 [::1] fe80::1%eth0 1.2.3.4/32 １.2.3.4";
        for text in table.split_whitespace().chain(["", " ", "1.2.3.4 "]) {
            assert_eq!(parse_ip(text), None, "{text:?}");
        }
    }

    #[test]
    fn ipv6_is_grouped_by_prefix_and_ipv4_never() {
        let shown = |text, prefix| group(ip(text), prefix).to_string();
        assert_eq!(shown("1.2.3.4", 64), "1.2.3.4");
        assert_eq!(shown("1.2.3.4", 0), "1.2.3.4");
        assert_eq!(shown("2001:db8:1:2:3:4:5:6", 64), "2001:db8:1:2::/64");
        assert_eq!(shown("2001:db8:1:2ff::", 56), "2001:db8:1:200::/56");
        assert_eq!(shown("2001:db8::1", 127), "2001:db8::/127");
        assert_eq!(shown("2001:db8::1", 128), "2001:db8::1");
        assert_eq!(shown("2001:db8::1", 255), "2001:db8::1");
        assert_eq!(shown("2001:db8::1", 0), "::/0");
        assert_eq!(group(ip("2001:db8::1"), 64), group(ip("2001:db8::ffff"), 64));
    }

    #[test]
    fn a_bad_trusted_proxy_is_named() {
        for word in ["10.0.0.0/33", "proxy.local", "", "10.0.0.0/8,1.2.3.4", "::1/129", "10.0.0/8"] {
            let error = TrustedProxies::parse(["::1", word]).unwrap_err();
            assert_eq!(error, TrustedProxiesError::Invalid { word: word.to_owned() });
            assert!(error.to_string().contains(&format!("`{word}`")));
        }
        assert!(TrustedProxies::parse(vec!["::1"; MAX_TRUSTED]).is_ok());
        assert_eq!(TrustedProxies::parse(vec!["::1"; MAX_TRUSTED + 1]), Err(TrustedProxiesError::TooMany));
    }

    #[test]
    fn trust_ignores_the_spelling_of_an_address() {
        let trusted =
            TrustedProxies::parse(["::ffff:10.0.0.0/104", "::ffff:1.2.3.4", "192.168.3.4/16", "::/120"])
                .unwrap();
        for text in ["10.9.9.9", "::ffff:10.9.9.9", "1.2.3.4", "::ffff:1.2.3.4", "192.168.0.1", "::1"] {
            assert!(trusted.contains(ip(text)), "{text}");
        }
        assert!(!trusted.contains(ip("11.0.0.0")) && !trusted.contains(ip("1.2.3.5")));
        assert!(!TrustedProxies::default().contains(ip("127.0.0.1")));
    }

    #[test]
    fn six_to_four_and_nat64_are_the_address_inside() {
        for (text, inside) in [
            ("2002:cb00:7109::1", "203.0.113.9"),
            ("2002:cb00:7109:ffff:1:2:3:4", "203.0.113.9"),
            ("64:ff9b::203.0.113.9", "203.0.113.9"),
            ("::ffff:203.0.113.9", "203.0.113.9"),
            ("2002:0a00:0001::1", "2002:a00:1::1"),
            ("64:ff9b::127.0.0.1", "64:ff9b::7f00:1"),
            ("64:ff9b::100.64.0.1", "64:ff9b::6440:1"),
            ("64:ff9b:1::203.0.113.9", "64:ff9b:1::cb00:7109"),
            ("2003:cb00:7109::1", "2003:cb00:7109::1"),
        ] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(client_address(address).to_string(), inside, "{text}");
        }
        assert_eq!(group("2002:cb00:7109::1".parse().unwrap(), 64).to_string(), "203.0.113.9");
    }

    #[test]
    fn no_proxy_is_trusted_by_an_embedded_address() {
        let trusted = TrustedProxies::parse(["203.0.113.9"]).unwrap();
        assert!(trusted.contains("::ffff:203.0.113.9".parse().unwrap()));
        assert!(!trusted.contains("2002:cb00:7109::1".parse().unwrap()));
        assert!(!trusted.contains("64:ff9b::203.0.113.9".parse().unwrap()));
    }

    #[test]
    fn networks_of_such_addresses_are_those_inside() {
        for (text, inside) in [
            ("2002:cb00:7109::/48", "203.0.113.9/32"),
            ("2002:cb00:7100::/40", "203.0.113.0/24"),
            ("64:ff9b::203.0.113.0/120", "203.0.113.0/24"),
            ("2002::/16", "2002::/16"),
            ("64:ff9b::/96", "64:ff9b::/96"),
            ("2001:db8::/32", "2001:db8::/32"),
        ] {
            assert_eq!(client_network(text.parse().unwrap()).to_string(), inside, "{text}");
        }
    }
}
