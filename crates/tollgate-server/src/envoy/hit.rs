//! Descriptors as hits.

use std::borrow::Cow;

use tollgate::Hit;
use tollgate::internal::identity::FieldSource;
use tollgate::internal::identity::address::parse_ip;

use super::request::{Descriptor, Entry};

/// The hit that the rules decide. Every entry is the attribute `attr:KEY`. Entries that are named like a field
/// of the decision API are that field, too, and so is the address that Envoy's action `remote_address` sends.
pub fn rules_hit<'h>(domain: &'h str, descriptor: &'h Descriptor<'_>, cost: u64) -> Hit<'h> {
    let last = |name: &str| {
        let named = descriptor.entries.iter().rev().find(|entry| entry.key == name);
        named.map_or("", |entry| &*entry.value)
    };
    let hit = Hit::on(last("method"), last("host"), last("path")).domain(domain).cost(cost);
    descriptor.entries.iter().fold(hit, |hit, Entry { key, value }| {
        let value = value.as_ref();
        let hit = hit.attribute(key.as_ref(), value);
        match key.as_ref() {
            "user" => hit.user(value),
            "email" => hit.email(value),
            "mac" => hit.mac(value),
            "api_key" => hit.api_key(value),
            "ip" | "remote_address" => match parse_ip(value) {
                Some(ip) => hit.ip(ip),
                None => hit,
            },
            key => match key.split_once(':') {
                Some(("header", name)) => hit.field(FieldSource::Header, name.to_ascii_lowercase(), value),
                _ => hit,
            },
        }
    })
}

/// The attribute that counters of limits beside the rules are kept by.
pub const COUNTED_BY: &str = "descriptor";

/// A hit on a limit beside the rules: one counter for each text.
pub fn counter_hit<'h>(domain: &'h str, path: &'h str, key: impl Into<Cow<'h, str>>, cost: u64) -> Hit<'h> {
    Hit::on("", "", path).domain(domain).cost(cost).attribute(COUNTED_BY, key)
}

/// The entries of a descriptor as one text, different for different entries.
pub fn counter_key<'e>(entries: impl Iterator<Item = (&'e str, &'e str)>) -> String {
    let mut text = String::new();
    for (key, value) in entries {
        if !text.is_empty() {
            text.push('|');
        }
        push_escaped(&mut text, key);
        text.push('=');
        push_escaped(&mut text, value);
    }
    text
}

fn push_escaped(text: &mut String, part: &str) {
    for char in part.chars() {
        match char {
            '|' => text.push_str("%7C"),
            '=' => text.push_str("%3D"),
            '%' => text.push_str("%25"),
            char => text.push(char),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_entries_have_different_keys() {
        let keys = [
            counter_key([("a", "b"), ("c", "d")].into_iter()),
            counter_key([("a", "b|c=d")].into_iter()),
            counter_key([("a=b|c", "d")].into_iter()),
            counter_key([("a", "b%7Cc%3Dd")].into_iter()),
        ];
        assert_eq!(keys[0], "a=b|c=d");
        for (n, key) in keys.iter().enumerate() {
            assert!(!keys[n + 1..].contains(key), "{key}");
        }
    }
}
