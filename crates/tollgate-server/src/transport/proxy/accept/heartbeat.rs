//! Watchdog of the workers: a task on each worker's thread stores a timestamp every second; a blocked thread stops
//! storing it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use tollgate::Time;

const BEAT_EVERY: Duration = Duration::from_secs(1);
/// On a busy machine a beat may be a few seconds late.
const STALLED_AFTER: Duration = Duration::from_secs(10);

/// Time of a worker's last beat in nanoseconds; 0 before the first.
#[derive(Default)]
pub struct Heartbeat(AtomicU64);

impl Heartbeat {
    /// Stores a timestamp every second, for ever.
    pub async fn beat(&self, now: impl Fn() -> Time) {
        loop {
            self.0.store(now().nanos(), Ordering::Relaxed);
            sleep(BEAT_EVERY).await;
        }
    }

    pub fn is_stalled(&self, now: Time) -> bool {
        let last = self.0.load(Ordering::Relaxed);
        last != 0 && now.since(Time::from_nanos(last)) >= STALLED_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_stuck_after_some_missed_heartbeats() {
        let heartbeat = Heartbeat::default();
        let now = Time::from_secs(1_000);
        assert!(!heartbeat.is_stalled(now), "a worker that has not started is not stuck");
        heartbeat.0.store(now.nanos(), Ordering::Relaxed);
        assert!(!heartbeat.is_stalled(now + STALLED_AFTER - BEAT_EVERY));
        assert!(heartbeat.is_stalled(now + STALLED_AFTER));
    }
}
