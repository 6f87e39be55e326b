//! Watchdog of the workers of every listener: a task on each worker's thread stores a timestamp every second; a blocked
//! thread stops storing it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::sleep;
use tollgate::Time;

use crate::gate::Gate;

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

/// The heartbeats of all workers of a node, with the names of their listeners.
#[derive(Default)]
pub struct WorkerHeartbeats(Mutex<Vec<(&'static str, Arc<Heartbeat>)>>);

impl WorkerHeartbeats {
    fn add(&self, listener: &'static str) -> Arc<Heartbeat> {
        let heartbeat = Arc::default();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((listener, Arc::clone(&heartbeat)));
        heartbeat
    }

    /// The listener of each worker whose heartbeat has stopped.
    pub fn stalled(&self, now: Time) -> Vec<&'static str> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|(_, heartbeat)| heartbeat.is_stalled(now)).map(|(listener, _)| *listener).collect()
    }
}

/// Starts the heartbeat of a worker, in the runtime of its thread.
pub fn start(gate: &Arc<Gate>, listener: &'static str) {
    let heartbeat = gate.worker_heartbeats.add(listener);
    let gate = Arc::clone(gate);
    tokio::spawn(async move { heartbeat.beat(|| gate.now()).await });
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

    #[test]
    fn the_listener_of_a_stuck_worker_is_named() {
        let all = WorkerHeartbeats::default();
        let now = Time::from_secs(1_000);
        let workers = ["http", "grpc", "resp", "proxy", "resp"].map(|listener| all.add(listener));
        workers.iter().for_each(|heartbeat| heartbeat.0.store(now.nanos(), Ordering::Relaxed));
        let later = now + STALLED_AFTER;
        [0, 1, 3].iter().for_each(|n| workers[*n].0.store(later.nanos(), Ordering::Relaxed));
        assert_eq!((all.stalled(now), all.stalled(later)), (vec![], vec!["resp", "resp"]));
    }
}
