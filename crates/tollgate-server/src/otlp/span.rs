//! Decisions that wait to be exported as spans.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, SyncSender};

use tollgate::internal::rule::RuleId;
use tollgate::internal::verdict::{Reason, VerdictId};
use tollgate::internal::{EngineVerdict, hit};
use tollgate::{Hit, Time};

use super::OtlpCounts;
use crate::trace_id::TraceId;

/// Spans that wait to be exported; further ones are dropped.
pub const QUEUE: usize = 8_192;

/// Where the gate puts its spans.
pub struct SpanQueue {
    spans: SyncSender<SpanRecord>,
    counts: Arc<OtlpCounts>,
}

/// One decision. It has no key: the backend of the traces may be another party's.
pub struct SpanRecord {
    pub trace: TraceId,
    pub begun: Time,
    pub ended: Time,
    pub id: VerdictId,
    pub allowed: bool,
    pub reason: Reason,
    pub rule: Option<RuleId>,
    pub cost: u64,
    pub remaining: Option<u64>,
}

impl SpanQueue {
    pub fn new(counts: Arc<OtlpCounts>) -> (SpanQueue, Receiver<SpanRecord>) {
        let (spans, queue) = mpsc::sync_channel(QUEUE);
        (SpanQueue { spans, counts }, queue)
    }

    pub fn counts(&self) -> &OtlpCounts {
        &self.counts
    }

    /// Enqueues a span, or drops it.
    pub fn record(&self, trace: TraceId, hit: &Hit<'_>, verdict: &EngineVerdict, begun: Time, ended: Time) {
        let reported = verdict.reported();
        let span = SpanRecord {
            trace,
            begun,
            ended: ended.max(begun),
            id: verdict.id,
            allowed: verdict.allowed,
            reason: verdict.reason,
            rule: reported.map(|limit| limit.rule.id.clone()),
            cost: hit::cost(hit),
            remaining: reported.map(|limit| limit.remaining()),
        };
        if self.spans.try_send(span).is_err() {
            self.counts.spans_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
