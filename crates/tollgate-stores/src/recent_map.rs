//! A bounded map that forgets the keys not used for the longest time, in two generations.
//!
//! When the current generation is full it replaces the previous one, whose keys are forgotten. A key that is read or
//! written moves to the current generation, so keys in use stay, and a flood of keys costs each insertion the same. The
//! exact order of an LRU crate would cost two links per key and their update at each read; no caller needs it.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::mem;

#[derive(Debug)]
pub struct RecentMap<K, V> {
    current: HashMap<K, V>,
    previous: HashMap<K, V>,
    /// Keys of one generation.
    max_keys: usize,
}

impl<K: Eq + Hash, V> RecentMap<K, V> {
    /// A map of at most twice as many keys as fit one generation.
    pub fn new(max_keys: usize) -> RecentMap<K, V> {
        RecentMap { current: HashMap::new(), previous: HashMap::new(), max_keys }
    }

    pub fn get_mut<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        // If the current generation is full, the key stays until the next insertion.
        if self.current.len() < self.max_keys
            && !self.current.contains_key(key)
            && let Some((key, value)) = self.previous.remove_entry(key)
        {
            self.current.insert(key, value);
        }
        self.current.get_mut(key).or_else(|| self.previous.get_mut(key))
    }

    pub fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        self.current.remove(key);
        self.previous.remove(key);
    }

    /// Returns the generation that is forgotten, if any: it is large, and may be dropped without the caller's lock.
    pub fn insert(&mut self, key: K, value: V) -> Option<HashMap<K, V>> {
        let is_full = self.current.len() >= self.max_keys && !self.current.contains_key(&key);
        let forgotten = is_full.then(|| mem::replace(&mut self.previous, mem::take(&mut self.current)));
        self.current.insert(key, value);
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_KEYS: usize = 1_000;

    #[test]
    fn a_flood_of_keys_displaces_keys_that_are_not_used_and_no_others() {
        let mut map = RecentMap::new(MAX_KEYS);
        for key in ["written", "read", "neither"] {
            map.insert(key.to_owned(), 0);
        }
        for n in 0..4 * MAX_KEYS {
            map.insert(n.to_string(), n);
            if n.is_multiple_of(MAX_KEYS / 2) {
                map.insert("written".to_owned(), n);
                assert_eq!(map.get_mut("read"), Some(&mut 0));
            }
            assert!(map.current.len() <= MAX_KEYS && map.previous.len() <= MAX_KEYS);
        }
        assert!(map.get_mut("written").is_some_and(|written| *written > 0));
        assert!(map.get_mut("neither").is_none());
    }

    #[test]
    fn the_last_value_of_a_key_counts() {
        let mut map = RecentMap::new(1);
        map.insert("a", 1);
        map.insert("b", 1);
        map.insert("a", 2);
        assert_eq!(map.get_mut("a"), Some(&mut 2));
        assert_eq!(map.get_mut("b"), Some(&mut 1));
        assert_eq!(map.insert("c", 3), Some(HashMap::from([("b", 1)])));
    }
}
