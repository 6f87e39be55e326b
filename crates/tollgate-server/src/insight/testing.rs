//! Decisions with their live data: for tests that need a release build or an allocator of their own.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;
use tollgate::internal::engine::LogKeys;
use tollgate::internal::{EngineCore, PolicySnapshot};
use tollgate::{Hit, Time};

use super::{Decided, Insight, SecondSummary, TopList, TopOutcome, TopWindow};

/// An engine, and live data of its decisions once they are switched on.
pub struct CountedNode {
    engine: EngineCore,
    insight: Option<Insight>,
}

impl CountedNode {
    pub const MAX_BYTES: usize = super::MAX_BYTES;

    pub fn new(rules: &str) -> CountedNode {
        let policy = PolicySnapshot::from_yaml(rules).expect("the rules are valid");
        CountedNode { engine: EngineCore::new(policy), insight: None }
    }

    pub fn switch_on(&mut self, now: Time) {
        self.insight = Some(Insight::new(LogKeys::Redacted, now));
    }

    pub fn check(&self, hit: &Hit<'_>, now: Time) -> bool {
        let verdict = self.engine.check(hit, now);
        if let Some(insight) = &self.insight {
            let policy = self.engine.policy();
            let latency = Some(Duration::from_micros(2));
            insight.record(&Decided { policy: &policy, hit, verdict: &verdict, at: now, latency });
        }
        verdict.allowed
    }

    fn insight(&self) -> &Insight {
        self.insight.as_ref().expect("it was switched on")
    }

    pub fn tick(&self, now: Time) {
        self.insight().tick(now);
    }

    /// A reader of the stream. What it has not read is kept.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<SecondSummary>> {
        self.insight().subscribe()
    }

    pub fn top(&self, outcome: TopOutcome, window: TopWindow, limit: usize) -> TopList {
        self.insight().data().top.top(outcome, window, None, limit)
    }

    /// The different requests of the sample, and one client in how many is sampled.
    pub fn sample(&self) -> (usize, u64) {
        let sampled = self.insight().sample();
        (sampled.requests.len(), sampled.one_in)
    }
}
