//! Metrics of saving the state while the server runs.

use std::sync::atomic::Ordering;

use tollgate::Time;

use crate::metrics::MetricsWriter;
use crate::state::Saving;

impl MetricsWriter {
    pub(super) fn saving(&mut self, saving: &Saving, now: Time) {
        let standing = saving.standing();
        let written = &saving.written;
        let failed = &saving.failed;
        self.describe("tollgate_state_writes_total", "counter", "Writes of the saved state, by result.");
        for (result, count) in [("written", written), ("failed", failed)] {
            self.sample("tollgate_state_writes_total", &[("result", result)], count.load(Ordering::Relaxed));
        }
        self.one(
            "tollgate_state_written_bytes_total",
            "counter",
            "Bytes written to save the state.",
            saving.written_bytes.load(Ordering::Relaxed),
        );
        self.one(
            "tollgate_state_file_bytes",
            "gauge",
            "Length of the file with the saved state.",
            saving.file_bytes.load(Ordering::Relaxed),
        );
        self.one(
            "tollgate_state_interval_milliseconds",
            "gauge",
            "Time between two writes of the saved state: grows where the disk cannot keep up.",
            standing.interval.as_millis() as u64,
        );
        let age = standing.saved_at.map_or(0, |at| now.since(at).as_millis() as u64);
        self.one(
            "tollgate_state_age_milliseconds",
            "gauge",
            "What a crash would cost now: the time since everything was saved.",
            age,
        );
    }
}
