//! Tracked keys: what this node has seen, what goes to the store that nodes share, and both together.

use crate::engine::Engine;
use crate::engine::central::counter_of;
use crate::fingerprint::Fingerprint;
use crate::hit::Hit;
use crate::plan::Plan;
use crate::policy::Policy;
use crate::rule::{RuleInForce, Tracking};
use crate::store::central::{CounterId, StoreError};
use crate::time::Time;
use crate::track::central::CentralTrackStore;
use crate::track::{Outbox, Track};
use crate::verdict::Verdict;

impl Engine {
    /// What the store that nodes share is to be told of tracked keys: for the task that writes it.
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// Puts the tries of tracked keys into the outbox; rules that do not track cost a look at a field.
    pub(super) fn record_tracked(
        &self,
        policy: &Policy,
        plan: &Plan<'_>,
        verdict: &Verdict,
        hit: &Hit<'_>,
        now: Time,
    ) {
        for (planned, limits) in plan.with_verdicts(verdict) {
            let Some(tracking) = planned.rule.track else { continue };
            let denials = u64::from(limits.iter().any(|limit| !limit.allowed));
            self.outbox.count(planned.key, now, denials, tracking, || counter_of(policy, planned, hit));
        }
    }

    /// What this node has seen of a key.
    pub(super) fn local_track(&self, rule: &RuleInForce, key: Fingerprint, now: Time) -> Track {
        let Some(tracking) = rule.track else { return Track::default() };
        let saved = || self.saved_tracks.take(rule.id.as_str());
        rule.stats().tracks.get(key, now, tracking, saved).unwrap_or_default()
    }

    /// Forgets what this node has seen of a key, in a snapshot too.
    pub(super) fn forget_local_track(&self, rule: &RuleInForce, key: Fingerprint, now: Time) {
        self.local_track(rule, key, now); // what was saved is the rule's from now on
        let first = rule.stats().tracks.forget(key);
        self.changed_tracks.note(first, rule);
    }

    /// What all nodes have seen of a key: its record, and what this node has not written yet.
    pub(super) async fn shared_track(
        &self,
        counter: &CounterId,
        key: Fingerprint,
        tracking: Tracking,
        central: &impl CentralTrackStore,
    ) -> Result<Track, StoreError> {
        // Known before the record is read: a delta acknowledged by then is part of it, or was forgotten with it.
        let acknowledged = self.outbox.acknowledged(key);
        let shared = central.read_track(counter, self.outbox.writer()).await?;
        let mut track = shared.track;
        let times = tracking.times();
        self.outbox.add_unwritten(key, shared.applied.max(acknowledged), times, &mut track);
        Ok(track)
    }
}
