//! Writes the records of tracked keys to the central store, off the decision path.
//!
//! The outbox determines what is due: each key at most once a second. A failed write is retried unchanged until the
//! store answers; the outbox bounds what is pending meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tollgate::Time;
use tollgate::internal::track::central::CentralTrackStore;
use tollgate::internal::track::{Delta, Outbox};

use crate::connection::{Shutdown, shutdown_requested};
use crate::gate::{CentralBackend, Gate};

/// Maximum delay of a key that was not seen recently.
const TICK: Duration = Duration::from_millis(50);
/// Bound on writes in flight.
const MAX_WRITES: usize = 128;
/// How long a stop waits for the store.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Writes of records, by result.
#[derive(Default)]
pub struct TrackWrites {
    written: AtomicU64,
    failed: AtomicU64,
}

impl TrackWrites {
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Failed writes. Each is retried, unless the node stops.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }
}

/// A delta, and whether it was applied to its record.
type TrackWrite = (Arc<Delta>, bool);
type Writes = JoinSet<TrackWrite>;

/// Writes what is due until the shutdown, then waits for the writes in flight.
pub async fn write_tracks(gate: Arc<Gate>, mut shutdown: Shutdown) {
    let Some(central) = gate.central.get() else { return };
    let outbox = gate.engine.outbox();
    let mut writes = Writes::new();
    loop {
        let now = gate.now();
        start_writes(&gate, central, &mut writes, now);
        let wait = outbox.due().map_or(TICK, |due| due.since(now).min(TICK));
        tokio::select! {
            () = shutdown_requested(&mut shutdown) => break,
            Some(ended) = writes.join_next() => record_result(&gate, central, ended, Outbox::retry),
            () = sleep(wait), if writes.len() < MAX_WRITES => {}
        }
    }
    while let Some(ended) = writes.join_next().await {
        record_result(&gate, central, ended, Outbox::retry);
    }
}

/// Writes all pending records, each key once: for a node that stops and accepts no more requests.
pub async fn flush(gate: &Gate) {
    let Some(central) = gate.central.get() else { return };
    let outbox = gate.engine.outbox();
    let dropped = outbox.dropped();
    let rest = async {
        let mut writes = Writes::new();
        loop {
            start_writes(gate, central, &mut writes, Time::MAX);
            let Some(ended) = writes.join_next().await else { return };
            record_result(gate, central, ended, Outbox::discard);
        }
    };
    if timeout(FLUSH_TIMEOUT, rest).await.is_err() {
        tracing::warn!(keys = outbox.keys(), "the store does not answer: tracked keys were not recorded");
    } else if outbox.dropped() > dropped {
        let tries = outbox.dropped() - dropped;
        tracing::warn!(tries, "the store does not answer: tries of tracked keys were not recorded");
    }
}

fn start_writes(gate: &Gate, central: &CentralBackend, writes: &mut Writes, now: Time) {
    while writes.len() < MAX_WRITES
        && let Some(delta) = gate.engine.outbox().take(now)
    {
        let store = central.store.clone();
        writes.spawn(async move {
            let written = store.add_track(&delta).await;
            if let Err(error) = &written {
                tracing::debug!(%error, "a tracked key could not be recorded");
            }
            (delta, written.is_ok())
        });
    }
}

/// Reports the result of a write to the outbox.
fn record_result(
    gate: &Gate,
    central: &CentralBackend,
    ended: Result<TrackWrite, JoinError>,
    failed: fn(&Outbox, &Delta),
) {
    let outbox = gate.engine.outbox();
    let counts = &central.track_writes;
    let Ok((delta, is_written)) = ended else { return };
    if is_written {
        counts.written.fetch_add(1, Ordering::Relaxed);
        outbox.acknowledge(&delta);
    } else {
        counts.failed.fetch_add(1, Ordering::Relaxed);
        failed(outbox, &delta);
    }
}
