//! Spans of decisions, for the feature `otlp`.

use tollgate::internal::EngineVerdict;
use tollgate::{Hit, Time};

use super::{Gate, GateSnapshot, LiveSettings};

impl Gate {
    /// Whether the traces of requests are of use.
    pub fn wants_traces(&self, live: &LiveSettings) -> bool {
        live.decision_log.is_some() || self.exports_spans()
    }

    #[cfg(feature = "otlp")]
    fn exports_spans(&self) -> bool {
        self.spans.get().is_some()
    }

    #[cfg(not(feature = "otlp"))]
    #[allow(clippy::unused_self)] // as with the feature
    fn exports_spans(&self) -> bool {
        false
    }

    /// Enqueues the span of a decision, begun at `at`, if its caller records the trace. Never blocks.
    #[cfg(feature = "otlp")]
    #[inline]
    pub fn record_span(&self, snapshot: &GateSnapshot, hit: &Hit<'_>, verdict: &EngineVerdict, at: Time) {
        let Some(trace) = snapshot.trace.filter(crate::trace_id::TraceId::is_sampled) else { return };
        if let Some(spans) = self.spans.get() {
            spans.record(trace, hit, verdict, at, self.now());
        }
    }

    #[cfg(not(feature = "otlp"))]
    #[allow(clippy::unused_self)] // as with the feature
    #[inline]
    pub fn record_span(&self, _: &GateSnapshot, _: &Hit<'_>, _: &EngineVerdict, _: Time) {}
}
