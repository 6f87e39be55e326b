//! Metrics of saving the state while the server runs.

use std::fmt;
use std::sync::atomic::Ordering;

use tollgate::Time;

use crate::metrics::writer::MetricsWriter;
use crate::state::Saving;

impl MetricsWriter<'_> {
    pub(super) fn saving(&mut self, saving: &Saving, now: Time) -> fmt::Result {
        let status = saving.status();
        let written = &saving.written;
        let failed = &saving.failed;
        let mut writes =
            self.counters("tollgate_state_writes_total", "Writes of the saved state, by result.")?;
        for (result, count) in [("written", written), ("failed", failed)] {
            writes.sample(&[("result", result)], count.load(Ordering::Relaxed))?;
        }
        self.counter(
            "tollgate_state_written_bytes_total",
            "Bytes written to save the state.",
            saving.written_bytes.load(Ordering::Relaxed),
        )?;
        self.gauge(
            "tollgate_state_file_bytes",
            "Length of the file with the saved state.",
            saving.file_bytes.load(Ordering::Relaxed),
        )?;
        self.gauge(
            "tollgate_state_interval_milliseconds",
            "Time between two writes of the saved state: it grows if writes take longer.",
            status.interval.as_millis() as u64,
        )?;
        let age = status.saved_at.map_or(0, |at| now.since(at).as_millis() as u64);
        self.gauge(
            "tollgate_state_age_milliseconds",
            "Age of the saved state: a crash now loses what changed since.",
            age,
        )
    }
}
