//! What became of spans and metrics, for the metrics.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::metrics::MetricsWriter;

#[derive(Default)]
pub struct OtlpCounts {
    pub spans_exported: AtomicU64,
    /// The queue was full, or the collector did not accept them.
    pub spans_dropped: AtomicU64,
    pub metrics_exported: AtomicU64,
    pub metrics_failed: AtomicU64,
}

impl OtlpCounts {
    pub fn write(&self, page: &mut MetricsWriter<'_>) -> fmt::Result {
        let mut spans = page.counters("tollgate_otlp_spans_total", "Spans for the collector, by result.")?;
        spans.sample(&[("result", "exported")], self.spans_exported.load(Ordering::Relaxed))?;
        spans.sample(&[("result", "dropped")], self.spans_dropped.load(Ordering::Relaxed))?;
        let mut exports =
            page.counters("tollgate_otlp_metrics_total", "Exports of metrics to the collector, by result.")?;
        exports.sample(&[("result", "exported")], self.metrics_exported.load(Ordering::Relaxed))?;
        exports.sample(&[("result", "failed")], self.metrics_failed.load(Ordering::Relaxed))
    }
}
