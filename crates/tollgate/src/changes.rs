//! The keys that have changed since the state log was last written.

use std::collections::HashSet;
use std::mem;

use crate::fingerprint::Fingerprint;

/// Whether an engine records which keys change, for a log that is written while it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Changes {
    /// A saved state is a whole image.
    #[default]
    Ignored,
    Recorded,
}

/// Changed keys that were not taken yet, up to a bound: beyond it only an image is complete.
pub(crate) struct ChangedKeys {
    keys: HashSet<Fingerprint>,
    bound: usize,
    overflowed: bool,
}

impl ChangedKeys {
    pub(crate) fn recorded(changes: Changes, bound: usize) -> Option<ChangedKeys> {
        let new = || ChangedKeys { keys: HashSet::new(), bound, overflowed: false };
        (changes == Changes::Recorded).then(new)
    }

    pub(crate) fn add(&mut self, key: Fingerprint) {
        if self.keys.len() < self.bound {
            self.keys.insert(key);
        } else if !self.keys.contains(&key) {
            self.overflowed = true;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Takes all of them.
    pub(crate) fn take(&mut self) -> HashSet<Fingerprint> {
        mem::take(&mut self.keys)
    }

    /// Whether keys were lost since the last call.
    pub(crate) fn take_overflow(&mut self) -> bool {
        mem::take(&mut self.overflowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_beyond_the_bound_are_an_overflow() {
        let mut changed = ChangedKeys::recorded(Changes::Recorded, 2).expect("they are recorded");
        [1, 2, 1].into_iter().for_each(|key| changed.add(Fingerprint(key)));
        assert!(!changed.take_overflow());
        changed.add(Fingerprint(3));
        assert_eq!((changed.take_overflow(), changed.take_overflow()), (true, false));
        assert_eq!((changed.take().len(), changed.is_empty()), (2, true));
        assert!(ChangedKeys::recorded(Changes::Ignored, 2).is_none());
    }
}
