//! Which bans of the list a store that nodes share has told: a rules database that does not have them drops none.

use std::collections::HashMap;

use crate::fingerprint::Fingerprint;
use crate::sync::{Mutex, lock};
use crate::time::Time;

/// Fewer entries are not searched for bans that are over.
const MIN_PURGE: usize = 1_024;

#[derive(Default)]
pub(crate) struct FleetBanSet(Mutex<FleetBanDeadlines>);

#[derive(Default)]
struct FleetBanDeadlines {
    until: HashMap<Fingerprint, Time>,
    /// The length at which bans that are over are dropped: twice what the last time left.
    purge_len: usize,
}

impl FleetBanSet {
    pub(crate) fn add(&self, fingerprint: Fingerprint, until: Time, now: Time) {
        let known = &mut *lock(&self.0);
        known.until.insert(fingerprint, until);
        if known.until.len() >= known.purge_len.max(MIN_PURGE) {
            known.until.retain(|_, until| *until > now);
            known.purge_len = 2 * known.until.len();
        }
    }

    pub(crate) fn remove(&self, fingerprint: Fingerprint) {
        lock(&self.0).until.remove(&fingerprint);
    }

    /// Those that are in force.
    pub(crate) fn in_force(&self, now: Time) -> Vec<Fingerprint> {
        let known = lock(&self.0);
        known.until.iter().filter(|(_, until)| **until > now).map(|(fingerprint, _)| *fingerprint).collect()
    }
}
