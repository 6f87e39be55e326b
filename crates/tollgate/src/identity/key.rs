//! A key: what one client is counted, allowed or banned under, in text form.
//!
//! `name:value`, several joined by `+` in the order of their names; each value percent-encoded where
//! it must be. Values are in normal form, so that two spellings of one client are one key.

use std::fmt::{self, Write};
use std::net::IpAddr;

use ipnet::IpNet;
use thiserror::Error;

use crate::identity::address::{self, client_address, client_network, parse_ip};
use crate::identity::attribute::Attribute;
use crate::identity::normal;
use crate::identity::sensitive::is_sensitive;
use crate::request::percent::{self, Plus};

/// The empty key is one counter for all clients.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Key {
    parts: Vec<(Attribute, String)>,
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum KeyError {
    #[error("key '{part}' has no value: write name:value, such as ip:203.0.113.9 or ip:203.0.113.9+user:42")]
    NoValue { part: String },
    #[error("{0}")]
    Attribute(String),
    #[error("'{value}' is not {expected}")]
    Value { value: String, expected: &'static str },
    #[error(
        "{0} is a range, which cannot be combined with other attributes: write one address, or the range alone"
    )]
    Range(String),
    #[error("key names {0} twice")]
    Twice(Attribute),
    #[error("key is longer than {max} bytes", max = Key::MAX_LEN)]
    TooLong,
}

impl Key {
    /// Longer keys are rejected by the parser.
    pub const MAX_LEN: usize = 4096;

    /// Reads `ip:1.2.3.4+user:42`.
    pub fn parse(text: &str) -> Result<Key, KeyError> {
        if text.len() > Self::MAX_LEN {
            return Err(KeyError::TooLong);
        }
        let parts: Vec<_> = text.split('+').map(parse_part).collect::<Result<_, _>>()?;
        match parts.iter().find(|(attribute, value)| *attribute == Attribute::Ip && is_v4_range(value)) {
            Some((_, range)) if parts.len() > 1 => Err(KeyError::Range(range.clone())),
            // As it is written it may be longer, and must be readable again.
            _ => Key::new(parts).and_then(|key| match key.to_string().len() > Self::MAX_LEN {
                true => Err(KeyError::TooLong),
                false => Ok(key),
            }),
        }
    }

    /// A key of normalised values, which are sorted by attribute.
    pub fn new(mut parts: Vec<(Attribute, String)>) -> Result<Key, KeyError> {
        parts.sort_by_cached_key(|(attribute, _)| attribute.to_string());
        match parts.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(KeyError::Twice(pair[0].0.clone())),
            None => Ok(Key { parts }),
        }
    }

    pub fn parts(&self) -> &[(Attribute, String)] {
        &self.parts
    }

    /// The network of a key that consists of one address or one range.
    pub fn network(&self) -> Option<IpNet> {
        match self.parts.as_slice() {
            [(Attribute::Ip, value)] => network(value),
            _ => None,
        }
    }

    /// The key in the form that requests are looked up by: an address alone is unchanged, in a combination it becomes
    /// its group.
    pub fn grouped_in_combination(self, ipv6_prefix: u8) -> Key {
        if self.parts.len() > 1 { self.grouped(ipv6_prefix) } else { self }
    }

    /// The key in the form that rules count by: IPv6 addresses become their group.
    pub fn grouped(mut self, ipv6_prefix: u8) -> Key {
        for (attribute, value) in &mut self.parts {
            if let (Attribute::Ip, Some(ip)) = (attribute, parse_ip(value)) {
                *value = address::group(ip, ipv6_prefix).to_string();
            }
        }
        self
    }

    /// The same key with other values, which are normalised.
    pub(super) fn map_values(mut self, of: impl Fn(String) -> String) -> Key {
        for (_, value) in &mut self.parts {
            *value = of(std::mem::take(value));
        }
        self
    }
}

fn parse_part(text: &str) -> Result<(Attribute, String), KeyError> {
    let no_value = || KeyError::NoValue { part: text.to_owned() };
    let (name, rest) = text.split_once(':').ok_or_else(no_value)?;
    let (name, value) = match crate::identity::FieldSource::parse(name) {
        Some(_) => {
            let (field, value) = rest.split_once(':').ok_or_else(no_value)?;
            (format!("{name}:{}", decoded(field)), value)
        }
        None => (name.to_owned(), rest),
    };
    let attribute = Attribute::parse(&name).map_err(KeyError::Attribute)?;
    let value = normal_value(&attribute, &decoded(value))?;
    if value.is_empty() {
        return Err(no_value());
    }
    Ok((attribute, value))
}

fn decoded(text: &str) -> String {
    percent::text(percent::decode(text, Plus::Literal).collect())
}

/// The normal form of a value.
fn normal_value(attribute: &Attribute, value: &str) -> Result<String, KeyError> {
    let expected = |expected| KeyError::Value { value: value.to_owned(), expected };
    Ok(match attribute {
        Attribute::Ip => match (parse_ip(value), network(value)) {
            (Some(ip), _) => client_address(ip).to_string(),
            (None, Some(network)) => network.trunc().to_string(),
            _ => return Err(expected("an IP address or a range such as 203.0.113.0/24")),
        },
        Attribute::Mac => normal::mac(value).ok_or_else(|| expected("a MAC address"))?.into_owned(),
        Attribute::Email => email(value),
        Attribute::Field(source, name) => {
            normal::field(*source, name, value.into()).unwrap_or_default().into_owned()
        }
        _ => value.trim_ascii().to_owned(),
    })
}

/// An email in normal form; a value that is not a valid email is still counted, in lower case.
pub(crate) fn email(value: &str) -> String {
    normal::email(value).map_or_else(|| value.trim_ascii().to_lowercase(), |email| email.into_owned())
}

/// IPv4 clients are distinguished by address: a range is not a client.
fn is_v4_range(value: &str) -> bool {
    value.contains('/') && matches!(network(value), Some(IpNet::V4(_)))
}

fn network(text: &str) -> Option<IpNet> {
    if let Some(ip) = parse_ip(text) {
        return Some(IpNet::from(client_address(ip)));
    }
    let network: IpNet = text.parse().ok()?;
    let network = client_network(network);
    match network.addr() {
        // A range of mapped addresses is an IPv4 range.
        IpAddr::V6(ip) if network.prefix_len() >= 96 => match ip.to_ipv4_mapped() {
            Some(v4) => IpNet::new(IpAddr::V4(v4), network.prefix_len() - 96).ok(),
            None => Some(network.trunc()),
        },
        _ => Some(network.trunc()),
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (attribute, value)) in self.parts.iter().enumerate() {
            if n > 0 {
                f.write_char('+')?;
            }
            write_name(f, attribute)?;
            f.write_char(':')?;
            write_encoded(f, value, false)?;
        }
        Ok(())
    }
}

/// A part of a key in text form, percent-encoded.
pub struct EncodedKeyPart {
    /// `user`, `header:x-tenant`.
    pub name: String,
    pub value: String,
    pub is_sensitive: bool,
}

impl Key {
    pub fn encoded_parts(&self) -> impl Iterator<Item = EncodedKeyPart> + '_ {
        self.parts().iter().map(|(attribute, value)| encoded_part(attribute, value))
    }
}

fn encoded_part(attribute: &Attribute, value: &str) -> EncodedKeyPart {
    let mut name = String::new();
    let mut encoded = String::with_capacity(value.len());
    write_name(&mut name, attribute)
        .and_then(|()| write_encoded(&mut encoded, value, false))
        .expect("writing to a string cannot fail");
    EncodedKeyPart { name, value: encoded, is_sensitive: is_sensitive(attribute, value) }
}

fn write_name(f: &mut impl Write, attribute: &Attribute) -> fmt::Result {
    match attribute {
        Attribute::Field(source, name) => {
            write!(f, "{}:", source.name())?;
            write_encoded(f, name, true)
        }
        plain => write!(f, "{plain}"),
    }
}

/// Escapes separators, and characters that terminals or URLs do not preserve.
fn write_encoded(f: &mut impl Write, text: &str, in_name: bool) -> fmt::Result {
    for char in text.chars() {
        let special = matches!(char, '+' | '%') || char.is_control() || char.is_whitespace();
        if special || (in_name && char == ':') {
            let mut bytes = [0; 4];
            char.encode_utf8(&mut bytes).bytes().try_for_each(|byte| write!(f, "%{byte:02X}"))?;
        } else {
            f.write_char(char)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, written: &str) {
        let key = Key::parse(text).expect(text);
        assert_eq!(key.to_string(), written);
        assert_eq!(Key::parse(written), Ok(key), "{written} reads back");
    }

    #[test]
    fn keys_are_sorted_normalised_and_escaped() {
        check("user:42+ip:1.2.3.4", "ip:1.2.3.4+user:42");
        check("ip:::ffff:1.2.3.4", "ip:1.2.3.4");
        check("ip:2001:DB8::1", "ip:2001:db8::1");
        check("ip:10.1.2.3/8", "ip:10.0.0.0/8");
        check("mac:AA-BB-CC-DD-EE-FF", "mac:aa:bb:cc:dd:ee:ff");
        check("email: Ann@Example.COM ", "email:ann@example.com");
        check("email:a%2Bb@example.com", "email:a%2Bb@example.com");
        check("header:X-Tenant:a:b%20c", "header:x-tenant:a:b%20c");
        check("attr:a%3Ab:c", "attr:a%3Ab:c");
    }

    #[test]
    fn bad_keys_are_rejected_by_name() {
        for (text, part) in [
            ("user", "'user' has no value"),
            ("user:", "'user:' has no value"),
            ("ip:1.2.3", "'1.2.3' is not an IP address"),
            ("ip:1.2.3.4/33", "is not an IP address"),
            ("mac:zz", "'zz' is not a MAC address"),
            ("user:1+user:2", "names user twice"),
            ("user:1+ip:10.0.0.0/8", "10.0.0.0/8 is a range"),
            ("colour:red", "unknown attribute 'colour'"),
            ("header:x", "has no value"),
            ("", "has no value"),
        ] {
            let message = Key::parse(text).expect_err(text).to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
        assert_eq!(Key::parse(&format!("user:{}", "x".repeat(5000))), Err(KeyError::TooLong));
        // It was read, written with escapes, and could not be read again.
        assert_eq!(Key::parse(&format!("user:{}", "\u{1}".repeat(2000))), Err(KeyError::TooLong));
    }

    #[test]
    fn only_a_lone_address_is_a_network() {
        let network = |text: &str| Key::parse(text).expect(text).network().map(|net| net.to_string());
        assert_eq!(network("ip:203.0.113.9"), Some("203.0.113.9/32".into()));
        assert_eq!(network("ip:::ffff:10.0.0.0/104"), Some("10.0.0.0/8".into()));
        assert_eq!(network("ip:203.0.113.9+user:1"), None);
        let grouped = Key::parse("ip:2001:db8:1:2:3::4+user:1").expect("valid").grouped(64);
        assert_eq!(grouped.to_string(), "ip:2001:db8:1:2::/64+user:1");
    }
}
