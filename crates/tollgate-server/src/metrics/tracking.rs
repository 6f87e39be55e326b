//! Metrics of the records of tracked keys in the central store.

use tollgate::track::Outbox;

use crate::gate::tracking::TrackWrites;
use crate::metrics::MetricsWriter;

impl MetricsWriter {
    pub(super) fn tracking(&mut self, outbox: &Outbox, writes: &TrackWrites) {
        self.describe("tollgate_tracking_writes_total", "counter", "Writes of tracked keys, by result.");
        self.sample("tollgate_tracking_writes_total", &[("result", "written")], writes.written());
        self.sample("tollgate_tracking_writes_total", &[("result", "failed")], writes.failed());
        self.one(
            "tollgate_tracking_dropped_total",
            "counter",
            "Tries of tracked keys that were not recorded: too many keys wait for the store.",
            outbox.dropped(),
        );
        self.one(
            "tollgate_tracking_pending_keys",
            "gauge",
            "Tracked keys that wait for the store, or were written less than a second ago.",
            outbox.keys() as u64,
        );
    }
}
