//! Inspection of one key under one rule, for operators.

use crate::algorithm::sliding_counter::SlidingCounterState;
use crate::algorithm::{Algorithm, Quota, QuotaState};
use crate::engine::Engine;
use crate::identity::{Attribute, Key};
use crate::limit::Limit;
use crate::plan::check_key_parts;
use crate::store::central::StoreError;
use crate::time::Time;
use crate::track::Track;

/// The state of a key under a rule.
#[derive(Clone, Debug)]
pub struct KeyReport {
    pub rule: String,
    pub key: Key,
    pub limits: Vec<CounterReport>,
    /// For rules that track.
    pub track: Option<Track>,
    pub scope: TrackScope,
    /// Why the central store could not be read for the limits, which are then missing, or for the tracking data.
    pub store_error: Option<StoreError>,
}

/// The nodes that a report's tracking data covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TrackScope {
    Node,
    Fleet,
}

impl TrackScope {
    pub const fn name(self) -> &'static str {
        match self {
            TrackScope::Node => "node",
            TrackScope::Fleet => "fleet",
        }
    }
}

/// The state of one limit for a key.
#[derive(Clone, Debug)]
pub struct CounterReport {
    pub limit: Limit,
    pub used: u64,
    pub remaining: u64,
    /// When the state is equivalent to a fresh one; `None` if it is so now.
    pub reset_at: Option<Time>,
    pub detail: CounterDetail,
}

/// Additional state of some algorithms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CounterDetail {
    Plain,
    Counts { previous: u64, current: u64 },
    Buckets { read: u64 },
}

impl Engine {
    /// The state of a key; `Err` if rule and key do not fit.
    pub fn key(&self, rule: &str, key: Key, now: Time) -> Result<KeyReport, InspectError> {
        let policy = self.policy.load();
        let found = policy.rule(rule).ok_or_else(|| InspectError::NoRule(rule.to_owned()))?;
        let key = key.grouped(policy.settings().ipv6_prefix);
        check_key_parts(found, &key).map_err(|wanted| InspectError::Key { rule: rule.to_owned(), wanted })?;
        let (print, counters) = policy.counters_of(found, DOMAIN, &key, &self.secret, now);
        let limits = counters
            .iter()
            .map(|(each, charge)| {
                let state = self.store.state_of(charge, now);
                report(each.limit, &charge.quota, &state, now)
            })
            .collect();
        let track = found.track.map(|_| self.local_track(found, print, now));
        let rule = rule.to_owned();
        let scope = TrackScope::Node;
        Ok(KeyReport { rule, key, limits, track, scope, store_error: None })
    }

    /// Removes the state and tracking data of a key; returns what was removed.
    pub fn reset_key(&self, rule: &str, key: Key, now: Time) -> Result<KeyReport, InspectError> {
        let report = self.key(rule, key, now)?;
        let policy = self.policy.load();
        if let Some(found) = policy.rule(rule) {
            let (print, counters) = policy.counters_of(found, DOMAIN, &report.key, &self.secret, now);
            for (_, charge) in counters {
                self.store.reset(charge.fingerprint);
                charge.predecessors.iter().for_each(|previous| _ = self.store.reset(previous.fingerprint));
            }
            self.forget_local_track(found, print, now);
        }
        Ok(report)
    }
}

/// Keys are looked up in the domain of requests that name none.
pub(super) const DOMAIN: &str = crate::hit::Hit::DEFAULT_DOMAIN;

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InspectError {
    #[error("no rule '{0}'")]
    NoRule(String),
    #[error("rule {rule} is not counted by that key: use {}", names(wanted))]
    Key { rule: String, wanted: Vec<Attribute> },
    #[error("{0}")]
    Store(StoreError),
}

fn names(wanted: &[Attribute]) -> String {
    match wanted {
        [] => "an empty key: the rule counts all clients together".to_owned(),
        names => names.iter().map(|name| format!("{name}:…")).collect::<Vec<_>>().join("+"),
    }
}

fn report(limit: Limit, quota: &Quota, state: &QuotaState, now: Time) -> CounterReport {
    let reading = match (quota, state) {
        (Quota::Counter(counter), QuotaState::Counts(counts)) => {
            let SlidingCounterState { previous, current, .. } = counter.roll(counts, now);
            CounterDetail::Counts { previous, current }
        }
        (Quota::Tiers(window), _) => CounterDetail::Buckets { read: window.buckets_read(now) },
        _ => CounterDetail::Plain,
    };
    CounterReport {
        limit,
        used: quota.used(state, now),
        remaining: quota.decide(state, now, 0).left,
        reset_at: Some(quota.expires_at(state)).filter(|at| *at > now),
        detail: reading,
    }
}
