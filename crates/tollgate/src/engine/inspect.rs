//! Inspection of one key under one rule, for operators.

use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::sliding_counter::SlidingCounterState;
use crate::algorithm::{Algorithm, Quota, QuotaState};
use crate::engine::EngineCore;
use crate::engine::central::counter_id;
use crate::fingerprint::Fingerprint;
use crate::identity::{Attribute, Key};
use crate::limit::Limit;
use crate::plan::check_key_parts;
use crate::policy::PolicySnapshot;
use crate::rule::{RuleInForce, RuleLimit};
use crate::store::Charge;
use crate::store::central::{
    CentralCounter, CentralCounterStore, CentralOutcome, CounterId, LimitResult, StoreError,
};
use crate::time::Time;
use crate::track::Track;
use crate::track::central::CentralTrackStore;

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

/// What an inspection changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InspectMode {
    /// Changes nothing.
    Read,
    /// Removes the state and the tracking data, and returns what they were.
    Reset,
}

/// A key under a rule of one policy, with its counters.
struct InspectedKey<'p> {
    rule: &'p RuleInForce,
    key: Key,
    fingerprint: Fingerprint,
    id: CounterId,
    charges: Vec<Charge>,
}

/// What was read about a key.
struct InspectedState {
    limits: Vec<CounterReport>,
    track: Option<Track>,
    scope: TrackScope,
    store_error: Option<StoreError>,
}

impl EngineCore {
    /// The state of a key; `Err` if rule and key do not fit.
    pub fn key(&self, rule: &str, key: Key, now: Time) -> Result<KeyReport, InspectError> {
        self.inspect(rule, key, now, InspectMode::Read)
    }

    /// Removes the state and tracking data of a key; returns what was removed.
    pub fn reset_key(&self, rule: &str, key: Key, now: Time) -> Result<KeyReport, InspectError> {
        self.inspect(rule, key, now, InspectMode::Reset)
    }

    /// Inspects a key whose counters are in memory.
    pub fn inspect(
        &self,
        rule: &str,
        key: Key,
        now: Time,
        mode: InspectMode,
    ) -> Result<KeyReport, InspectError> {
        let policy = self.policy.load();
        let found = self.find_key(&policy, rule, key, now)?;
        let state = self.read_in_memory(&found, now);
        if mode == InspectMode::Reset {
            self.reset_in_memory(&found, now);
        }
        Ok(found.into_report(state))
    }

    /// Inspects a key whose counters are in a central store. If that cannot be read, tracking data comes from this node
    /// only.
    pub async fn inspect_central(
        &self,
        rule: &str,
        key: Key,
        now: Time,
        mode: InspectMode,
        store: &(impl CentralCounterStore + CentralTrackStore),
    ) -> Result<KeyReport, InspectError> {
        let policy = self.policy.load_full();
        let found = self.find_key(&policy, rule, key, now)?;
        let state = self.read_central(&found, now, store).await.map_err(InspectError::Store)?;
        if mode == InspectMode::Reset {
            self.reset_central(&found, now, store).await.map_err(InspectError::Store)?;
        }
        Ok(found.into_report(state))
    }

    fn read_in_memory(&self, found: &InspectedKey<'_>, now: Time) -> InspectedState {
        let report_of = |charge: &Charge| {
            report(charge.counter().limit, &charge.quota, &self.store.state_of(charge, now), now)
        };
        InspectedState {
            limits: found.charges.iter().map(report_of).collect(),
            track: found.rule.track.map(|_| self.local_track(found.rule, found.fingerprint, now)),
            scope: TrackScope::Node,
            store_error: None,
        }
    }

    fn reset_in_memory(&self, found: &InspectedKey<'_>, now: Time) {
        for charge in &found.charges {
            self.store.reset(charge.fingerprint);
            charge.predecessors.iter().for_each(|previous| _ = self.store.reset(previous.fingerprint));
        }
        self.forget_local_track(found.rule, found.fingerprint, now);
    }

    /// An error if nothing could be read.
    async fn read_central(
        &self,
        found: &InspectedKey<'_>,
        now: Time,
        store: &(impl CentralCounterStore + CentralTrackStore),
    ) -> Result<InspectedState, StoreError> {
        // Tracking data first. Its deadline is the longer one: on a store that is not connected yet, the read of the
        // limits, with the deadline of a decision, would fail where this one connects.
        let tracked = match found.rule.track {
            Some(tracking) => Some(self.shared_track(&found.id, found.fingerprint, tracking, store).await),
            None => None,
        };
        let limits = counter_reports(&found.charges, store.peek(&found.charges, now).await, now);
        let (track, scope, track_error) = match tracked {
            Some(Ok(track)) => (Some(track), TrackScope::Fleet, None),
            Some(Err(error)) => {
                let track = self.local_track(found.rule, found.fingerprint, now);
                (Some(track), TrackScope::Node, Some(error))
            }
            None => (None, TrackScope::Node, None),
        };
        match limits {
            Ok(limits) => Ok(InspectedState { limits, track, scope, store_error: track_error }),
            Err(error) if track.is_none() => Err(error),
            Err(error) => Ok(InspectedState { limits: Vec::new(), track, scope, store_error: Some(error) }),
        }
    }

    async fn reset_central(
        &self,
        found: &InspectedKey<'_>,
        now: Time,
        store: &(impl CentralCounterStore + CentralTrackStore),
    ) -> Result<(), StoreError> {
        for charge in &found.charges {
            store.reset(charge.counter(), now).await?;
        }
        self.deny_cache.clear();
        self.forget_local_track(found.rule, found.fingerprint, now);
        if found.rule.track.is_some() {
            self.outbox.forget(found.fingerprint);
            store.forget_track(&found.id).await?;
        }
        Ok(())
    }

    fn find_key<'p>(
        &self,
        policy: &'p PolicySnapshot,
        rule: &str,
        key: Key,
        now: Time,
    ) -> Result<InspectedKey<'p>, InspectError> {
        let found = policy.rule(rule).ok_or_else(|| InspectError::NoRule(rule.to_owned()))?;
        let key = key.grouped(policy.settings().ipv6_prefix);
        check_key_parts(found, &key).map_err(|wanted| InspectError::Key { rule: rule.to_owned(), wanted })?;
        let (fingerprint, counters) = policy.counters_of(found, DOMAIN, &key, &self.secret, now);
        let id = counter_id(DOMAIN, found, &key);
        let named = |(limit, charge): (&RuleLimit, Charge)| {
            let counter = CentralCounter { id: id.clone(), limit: limit.limit };
            Charge { counter: Some(Arc::new(counter)), ..charge }
        };
        let charges = counters.into_iter().map(named).collect();
        Ok(InspectedKey { rule: found, key, fingerprint, id, charges })
    }
}

impl InspectedKey<'_> {
    fn into_report(self, state: InspectedState) -> KeyReport {
        let InspectedState { limits, track, scope, store_error } = state;
        KeyReport { rule: self.rule.id.to_string(), key: self.key, limits, track, scope, store_error }
    }
}

/// The state of each limit; an error if one could not be read.
fn counter_reports(
    charges: &[Charge],
    outcome: CentralOutcome,
    now: Time,
) -> Result<Vec<CounterReport>, StoreError> {
    let report = |(charge, result): (&Charge, LimitResult)| match result {
        LimitResult::Answered(outcome) => {
            let limit = charge.counter().limit;
            Some(Ok(CounterReport {
                limit,
                used: limit.capacity().saturating_sub(outcome.decision.left),
                remaining: outcome.decision.left,
                reset_at: (outcome.reset_after > Duration::ZERO).then(|| now + outcome.reset_after),
                detail: CounterDetail::Plain,
            }))
        }
        LimitResult::Skipped => None,
        LimitResult::Failed(error) => Some(Err(error)),
    };
    charges.iter().zip(outcome.limits).filter_map(report).collect()
}

/// Keys are looked up in the domain of requests that name none.
const DOMAIN: &str = crate::hit::Hit::DEFAULT_DOMAIN;

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
