//! Addresses: one spelling, the group one client is counted under, and the
//! proxies whose word is taken.
//!
//! Invariant: every address that leaves this module is canonical, so that
//! `::ffff:1.2.3.4` and `1.2.3.4` are one client, one group and one proxy. It
//! must not know headers, requests or rules.

use std::{
    error::Error,
    fmt,
    net::{IpAddr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net};

/// How many trusted networks may be listed; each hop is compared with all.
pub const MAX_TRUSTED: usize = 1024;

/// What one client is counted under: an IPv4 address or an IPv6 network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    address: IpAddr,
    prefix: Option<u8>,
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix {
            Some(prefix) => write!(f, "{}/{prefix}", self.address),
            None => write!(f, "{}", self.address),
        }
    }
}

/// The networks whose forwarding headers are believed. By default, none.
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

    /// Whether `ip`, in whatever spelling, is a trusted proxy.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let ip = canonical_ip(ip);
        self.0.iter().any(|network| network.contains(&ip))
    }
}

/// `::ffff:1.2.3.4` is `1.2.3.4`.
pub fn canonical_ip(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// Reads an address and nothing else: no port, brackets, zone or spaces.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    text.parse().ok().map(canonical_ip)
}

/// Whom `ip` is counted with. A prefix of 128 or more keeps IPv6 addresses apart.
pub fn group(ip: IpAddr, ipv6_prefix: u8) -> Group {
    match canonical_ip(ip) {
        IpAddr::V6(v6) if ipv6_prefix < 128 => {
            let mask = u128::MAX.checked_shl(128 - u32::from(ipv6_prefix)).unwrap_or(0);
            let network = Ipv6Addr::from_bits(v6.to_bits() & mask);
            Group { address: network.into(), prefix: Some(ipv6_prefix) }
        }
        address => Group { address, prefix: None },
    }
}

/// Reads a network; one of mapped addresses becomes the IPv4 network it means.
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
}
