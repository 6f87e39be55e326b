//! A list of keys, looked up by the attributes of a request: addresses by their longest prefix, all others exactly.
//!
//! A clone shares everything, and a change to it costs only what has changed.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use crate::collections::{Hamt, PersistentVec};
use crate::fingerprint::Secret;
use crate::identity::{Attribute, Key};
use crate::rule::IndexEntry;

mod kinds;

pub(crate) use kinds::{KeyKinds, TooManyCombinations};

#[derive(Clone)]
pub(crate) struct KeyList<V> {
    kinds: KeyKinds,
    entries: PersistentVec<Arc<(Key, V)>>,
    numbers: Hamt<IndexEntry>,
    /// Shared by this list and its clones: they use the same hashes.
    secret: Secret,
}

impl<V> Default for KeyList<V> {
    fn default() -> Self {
        KeyList {
            kinds: KeyKinds::default(),
            entries: PersistentVec::default(),
            numbers: Hamt::default(),
            secret: Secret::random(),
        }
    }
}

impl<V> KeyList<V> {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&V> {
        self.number(key).map(|number| &self.entries[number].1)
    }

    /// The entry for a request that `accept` accepts: the longest prefix of its address first. An error if none is
    /// found, but there are more combinations of values than are looked up.
    pub(crate) fn find<'h, W: IntoIterator<Item = Cow<'h, str>>>(
        &self,
        ip: Option<IpAddr>,
        values: impl Fn(&Attribute) -> W,
        accept: impl Fn(&V) -> bool,
    ) -> Result<Option<&(Key, V)>, TooManyCombinations> {
        if self.is_empty() {
            return Ok(None);
        }
        self.kinds.find(&self.secret, ip, values, |fingerprint, is| {
            let found =
                self.numbers.find(fingerprint.0 as u32).map(|found| &*self.entries[found.number as usize]);
            found.into_iter().find(|(key, value)| is(key) && accept(value))
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Key, V)> {
        self.entries.iter().map(|entry| &**entry)
    }

    /// The attributes that the list needs of a request.
    pub(crate) fn attributes(&self) -> impl Iterator<Item = &Attribute> {
        self.kinds.attributes()
    }

    fn number(&self, key: &Key) -> Option<usize> {
        let mut same = self.numbers.find(self.hash(key)).map(|found| found.number as usize);
        same.find(|number| self.entries[*number].0 == *key)
    }

    fn hash(&self, key: &Key) -> u32 {
        KeyKinds::fingerprint(&self.secret, key).0 as u32
    }

    /// Adds a key, or replaces its value.
    pub(crate) fn insert(&mut self, key: Key, value: V) {
        match self.number(&key) {
            Some(number) => self.entries.replace(number, Arc::new((key, value))),
            None => {
                let hash = self.hash(&key);
                let number = self.entries.len() as u32;
                self.numbers.insert(IndexEntry { hash, number });
                self.kinds.add(&key);
                self.entries.push(Arc::new((key, value)));
            }
        }
    }

    /// Removes a key; `false` if it was not there. The last entry gets its number, so that numbers have no gaps.
    pub(crate) fn remove(&mut self, key: &Key) -> bool {
        let Some(number) = self.number(key) else { return false };
        self.numbers.remove(self.hash(key), |each| each.number == number as u32);
        self.kinds.remove(key);
        let last = self.entries.len() - 1;
        if number != last {
            let moved = Arc::clone(&self.entries[last]);
            let is_last = |each: &IndexEntry| each.number == last as u32;
            if let Some(found) = self.numbers.find_mut(self.hash(&moved.0), is_last) {
                found.number = number as u32;
            }
            self.entries.replace(number, moved);
        }
        self.entries.pop();
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

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
        list.find(ip.parse().ok(), value, |_| true).ok().flatten().map(|(_, n)| *n)
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
    fn prefixes_of_one_length_in_both_families_are_distinct() {
        let list = list(&["ip:10.0.0.0/32", "ip:2001:db8::/32"]);
        assert_eq!(find(&list, "10.0.0.0", ""), Some(0));
        assert_eq!(find(&list, "2001:db8::1", ""), Some(1));
        assert_eq!(find(&list, "::", ""), None);
    }

    const KEYS: [&str; 9] = [
        "user:1",
        "user:2",
        "ip:10.0.0.0/8",
        "ip:10.1.0.0/16",
        "ip:10.1.2.3",
        "ip:2001:db8::/32",
        "ip:192.0.2.1+user:7",
        "email:a@example.com",
        "header:x-y:1",
    ];

    proptest! {
        #[test]
        fn a_list_holds_what_was_put_in_and_a_copy_what_was_there(
            steps in prop::collection::vec((prop::sample::select(&KEYS[..]), any::<bool>()), 0..60),
        ) {
            let mut list = KeyList::default();
            let mut model = BTreeMap::new();
            let mut before = (list.clone(), model.clone());
            for (n, (text, put)) in steps.into_iter().enumerate() {
                if n % 7 == 0 {
                    before = (list.clone(), model.clone());
                }
                let key = Key::parse(text).expect(text);
                if put {
                    list.insert(key, n);
                    model.insert(text.to_owned(), n);
                } else {
                    prop_assert_eq!(list.remove(&key), model.remove(text).is_some());
                }
                for (list, model) in [(&list, &model), (&before.0, &before.1)] {
                    let listed: BTreeMap<_, _> = list.iter().map(|(key, n)| (key.to_string(), *n)).collect();
                    prop_assert_eq!(&listed, model);
                    prop_assert_eq!(list.is_empty(), model.is_empty());
                    for text in KEYS {
                        prop_assert_eq!(list.get(&Key::parse(text).expect(text)), model.get(text));
                    }
                    let named = model.keys().any(|text| text.starts_with("header"));
                    let header = Attribute::parse("header:x-y").expect("valid");
                    prop_assert_eq!(list.attributes().any(|attribute| *attribute == header), named);
                }
            }
        }
    }
}
