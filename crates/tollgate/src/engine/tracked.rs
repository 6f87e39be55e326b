//! Tracked keys: data of this node, updates for the central store, and both combined.

use crate::engine::central::counter_of;
use crate::engine::{DecisionContext, EngineCore};
use crate::fingerprint::Fingerprint;
use crate::plan::Plan;
use crate::rule::{RuleInForce, Tracking};
use crate::store::central::{CounterId, StoreError};
use crate::time::Time;
use crate::track::central::CentralTrackStore;
use crate::track::{Outbox, Track};
use crate::verdict::LimitVerdict;

impl EngineCore {
    /// Updates of tracked keys for the central store, consumed by the task that writes them.
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// Counts an attempt of a key that is tracked: of the one that the first limit is for.
    #[inline(never)]
    pub(super) fn track(&self, limits: &[LimitVerdict], tracking: Tracking, now: Time) {
        let Some((first, others)) = limits.split_first() else { return };
        let mut of_key = others.iter().take_while(|limit| !limit.starts_key);
        let denied = !first.is_allowed() || of_key.any(|limit| !limit.is_allowed());
        let saved = || self.saved_tracks.take(first.rule.id.as_str());
        let tracks = &first.rule.stats().tracks;
        let change = tracks.count(first.key, now, u64::from(denied), tracking, saved);
        self.changed_tracks.note(change, &first.rule);
    }

    /// Adds the attempts of tracked keys to the outbox; for a rule that does not track this is one field check.
    pub(super) fn record_tracked(&self, context: &DecisionContext<'_, '_>, plan: &Plan<'_>) {
        let DecisionContext { policy, hit, now, .. } = *context;
        for limits in plan.verdict.keys() {
            let Some(first) = limits.first() else { continue };
            let Some(tracking) = first.rule.track else { continue };
            let denials = u64::from(limits.iter().any(|limit| !limit.is_allowed()));
            self.outbox.count(first.key, now, denials, tracking, || counter_of(policy, plan, first, hit));
        }
    }

    /// Tracking data of this node for a key.
    pub(super) fn local_track(&self, rule: &RuleInForce, key: Fingerprint, now: Time) -> Track {
        let Some(tracking) = rule.track else { return Track::default() };
        let saved = || self.saved_tracks.take(rule.id.as_str());
        rule.stats().tracks.get(key, now, tracking, saved).unwrap_or_default()
    }

    /// Removes this node's tracking data of a key, also from a restored saved state.
    pub(super) fn forget_local_track(&self, rule: &RuleInForce, key: Fingerprint, now: Time) {
        self.local_track(rule, key, now); // moves restored data to the rule first
        let first = rule.stats().tracks.forget(key);
        self.changed_tracks.note(first, rule);
    }

    /// Tracking data of all nodes for a key: its record, and what this node has not written yet.
    pub(super) async fn shared_track(
        &self,
        counter: &CounterId,
        key: Fingerprint,
        tracking: Tracking,
        central: &impl CentralTrackStore,
    ) -> Result<Track, StoreError> {
        // Loaded before the record is read: a delta acknowledged by then is part of the record, or was removed with
        // it.
        let acknowledged = self.outbox.acknowledged(key);
        let shared = central.read_track(counter, self.outbox.writer()).await?;
        let mut track = shared.track;
        let times = tracking.times();
        self.outbox.add_unwritten(key, shared.applied.max(acknowledged), times, &mut track);
        Ok(track)
    }
}
