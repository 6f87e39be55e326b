//! The bans of the list that the central store has published: a load from a rules database without them does not drop
//! them.

use std::collections::HashMap;

use crate::fingerprint::Fingerprint;
use crate::sync::{Mutex, lock};
use crate::time::Time;

/// With fewer entries, ended bans are not purged.
const MIN_PURGE: usize = 1_024;

#[derive(Default)]
pub(crate) struct FleetBanSet(Mutex<FleetBanDeadlines>);

#[derive(Default)]
struct FleetBanDeadlines {
    until: HashMap<Fingerprint, Time>,
    /// The length at which ended bans are purged: twice the length after the last purge.
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
