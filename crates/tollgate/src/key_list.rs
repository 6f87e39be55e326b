//! A list of keys, looked up by what a request has: addresses by their longest prefix, all others
//! exactly.
//!
//! Keys that name the same attributes share a map, so a lookup costs one probe for each combination of
//! attributes (and each prefix length) in the list, however long the list is.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::identity::{Attribute, Key};

pub struct KeyList<V> {
    /// By prefix length, for either family.
    networks: BTreeMap<u8, HashMap<IpNet, (Key, V)>>,
    shapes: Vec<Shape<V>>,
    len: usize,
}

/// The keys that name the same attributes, by their values.
struct Shape<V> {
    attributes: Vec<Attribute>,
    values: HashMap<Vec<String>, (Key, V)>,
}

impl<V> Default for KeyList<V> {
    fn default() -> Self {
        KeyList { networks: BTreeMap::new(), shapes: Vec::new(), len: 0 }
    }
}

impl<V> KeyList<V> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a key, or replaces its value and returns the old one.
    pub fn insert(&mut self, key: Key, value: V) -> Option<V> {
        let old = if let Some(network) = key.network() {
            let lengths = self.networks.entry(network.prefix_len()).or_default();
            lengths.insert(network, (key, value))
        } else {
            let (attributes, values) = split(&key);
            let at =
                self.shapes.iter().position(|shape| shape.attributes == attributes).unwrap_or_else(|| {
                    self.shapes.push(Shape { attributes, values: HashMap::new() });
                    self.shapes.len() - 1
                });
            self.shapes[at].values.insert(values, (key, value))
        };
        self.len += usize::from(old.is_none());
        old.map(|(_, value)| value)
    }

    pub fn remove(&mut self, key: &Key) -> Option<V> {
        let removed = if let Some(network) = key.network() {
            let length = self.networks.get_mut(&network.prefix_len())?;
            let removed = length.remove(&network);
            self.networks.retain(|_, keys| !keys.is_empty());
            removed
        } else {
            let (attributes, values) = split(key);
            let shape = self.shapes.iter_mut().find(|shape| shape.attributes == attributes)?;
            let removed = shape.values.remove(&values);
            self.shapes.retain(|shape| !shape.values.is_empty());
            removed
        };
        self.len -= usize::from(removed.is_some());
        removed.map(|(_, value)| value)
    }

    pub fn get(&self, key: &Key) -> Option<&V> {
        let found = if let Some(network) = key.network() {
            self.networks.get(&network.prefix_len())?.get(&network)
        } else {
            let (attributes, values) = split(key);
            self.shapes.iter().find(|shape| shape.attributes == attributes)?.values.get(&values)
        };
        found.map(|(_, value)| value)
    }

    /// The entry for a request that `accept` takes: the longest prefix of its address first.
    pub fn find<'h>(
        &self,
        ip: Option<IpAddr>,
        value: impl Fn(&Attribute) -> Option<Cow<'h, str>>,
        accept: impl Fn(&V) -> bool,
    ) -> Option<&(Key, V)> {
        if self.is_empty() {
            return None;
        }
        let by_address = ip.and_then(|ip| {
            self.networks.iter().rev().find_map(|(length, keys)| {
                let network = IpNet::new(ip, *length).ok()?.trunc();
                keys.get(&network).filter(|(_, value)| accept(value))
            })
        });
        by_address.or_else(|| {
            self.shapes.iter().find_map(|shape| {
                let values: Option<Vec<_>> =
                    shape.attributes.iter().map(|attribute| value(attribute).map(Cow::into_owned)).collect();
                shape.values.get(&values?).filter(|(_, value)| accept(value))
            })
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = &(Key, V)> {
        let networks = self.networks.values().flat_map(HashMap::values);
        networks.chain(self.shapes.iter().flat_map(|shape| shape.values.values()))
    }

    pub fn retain(&mut self, keep: impl Fn(&Key, &V) -> bool) {
        for keys in self.networks.values_mut() {
            keys.retain(|_, (key, value)| keep(key, value));
        }
        for shape in &mut self.shapes {
            shape.values.retain(|_, (key, value)| keep(key, value));
        }
        self.networks.retain(|_, keys| !keys.is_empty());
        self.shapes.retain(|shape| !shape.values.is_empty());
        self.len = self.iter().count();
    }
}

fn split(key: &Key) -> (Vec<Attribute>, Vec<String>) {
    key.parts().iter().cloned().unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(keys: &[&str]) -> KeyList<usize> {
        let mut list = KeyList::default();
        for (n, key) in keys.iter().enumerate() {
            list.insert(Key::parse(key).expect(key), n);
        }
        list
    }

    fn find(list: &KeyList<usize>, ip: &str, user: &str) -> Option<usize> {
        let value = |attribute: &Attribute| match attribute {
            Attribute::User => Some(Cow::Owned(user.to_owned())),
            Attribute::Ip => Some(Cow::Owned(ip.to_owned())),
            _ => None,
        };
        list.find(ip.parse().ok(), value, |_| true).map(|(_, n)| *n)
    }

    #[test]
    fn the_longest_prefix_wins_and_other_keys_are_exact() {
        let list =
            list(&["ip:10.0.0.0/8", "ip:10.1.0.0/16", "ip:10.1.2.3", "user:evil", "ip:192.0.2.1+user:7"]);
        assert_eq!(find(&list, "10.1.2.3", ""), Some(2));
        assert_eq!(find(&list, "10.1.9.9", ""), Some(1));
        assert_eq!(find(&list, "10.9.9.9", "evil"), Some(0));
        assert_eq!(find(&list, "11.0.0.1", "evil"), Some(3));
        assert_eq!(find(&list, "192.0.2.1", "7"), Some(4));
        assert_eq!(find(&list, "192.0.2.1", "8"), None);
        assert_eq!(find(&list, "::1", "x"), None);
    }

    #[test]
    fn what_is_removed_is_gone_and_counted() {
        let mut list = list(&["ip:10.0.0.0/8", "user:evil"]);
        let key = Key::parse("user:evil").expect("valid");
        assert_eq!((list.remove(&key), list.remove(&key)), (Some(1), None));
        list.retain(|_, _| false);
        assert!(list.is_empty());
        assert_eq!(find(&list, "10.0.0.1", "evil"), None);
    }
}
