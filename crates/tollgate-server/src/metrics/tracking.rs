//! Metrics of the records of tracked keys in the central store.

use std::fmt;

use tollgate::internal::track::Outbox;

use crate::gate::tracking::TrackWrites;
use crate::metrics::writer::MetricsWriter;

impl MetricsWriter<'_> {
    pub(super) fn tracking(&mut self, outbox: &Outbox, writes: &TrackWrites) -> fmt::Result {
        let mut results =
            self.counters("tollgate_tracking_writes_total", "Writes of tracked keys, by result.")?;
        results.sample(&[("result", "written")], writes.written())?;
        results.sample(&[("result", "failed")], writes.failed())?;
        self.counter(
            "tollgate_tracking_dropped_total",
            "Tries of tracked keys that were not recorded: too many keys wait for the store.",
            outbox.dropped(),
        )?;
        self.gauge(
            "tollgate_tracking_pending_keys",
            "Tracked keys that wait for the store, or were written less than a second ago.",
            outbox.keys() as u64,
        )
    }
}
