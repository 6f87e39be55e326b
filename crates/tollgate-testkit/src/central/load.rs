//! Callers that charge a store continuously, and their results.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tollgate::internal::store::Charge;
use tollgate_stores::counters::StoreError;

use super::{Store, answer_of, now};

/// Between two requests of one caller, if nothing else is said.
const PAUSE: Duration = Duration::from_millis(1);

pub struct Load {
    over: Arc<AtomicBool>,
    callers: Vec<JoinHandle<Vec<ObservedCharge>>>,
    pulse: JoinHandle<Duration>,
}

/// One request as its caller saw it.
#[derive(Debug)]
pub struct ObservedCharge {
    pub sent_at: Instant,
    pub took: Duration,
    /// The longest stall of the machine, which is not the store's fault.
    pub stalled: Duration,
    pub error: Option<StoreError>,
    /// When it was let through by the store's clock, in microseconds.
    pub admitted: Option<u64>,
    /// Whether no request was sent to a server both when the charge began and when it ended.
    pub open: bool,
}

impl Load {
    pub fn start(store: &impl Store, charge: &Charge, callers: usize) -> Load {
        Load::steady(store, std::slice::from_ref(charge), callers, PAUSE)
    }

    /// Requests for all of `charges`, each caller with a pause between two of them. What is seen is the last charge.
    pub fn steady(store: &impl Store, charges: &[Charge], callers: usize, pause: Duration) -> Load {
        let over = Arc::new(AtomicBool::new(false));
        let call = |_| tokio::spawn(call(store.clone(), charges.to_vec(), pause, over.clone()));
        let pulse = tokio::spawn(pulse(over.clone()));
        Load { callers: (0..callers).map(call).collect(), pulse, over }
    }

    /// Ends it; all that was seen, in order.
    pub async fn stop(self) -> Vec<ObservedCharge> {
        self.over.store(true, Ordering::Relaxed);
        let mut seen = Vec::new();
        for caller in self.callers {
            seen.extend(caller.await.expect("a caller does not panic"));
        }
        let stalled = self.pulse.await.expect("it beats until the end");
        seen.iter_mut().for_each(|seen| seen.stalled = stalled);
        seen.sort_by_key(|seen| seen.sent_at);
        seen
    }
}

async fn call(
    store: impl Store,
    charges: Vec<Charge>,
    pause: Duration,
    over: Arc<AtomicBool>,
) -> Vec<ObservedCharge> {
    let mut seen = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let sent_at = Instant::now();
        let open = store.trouble().is_some();
        let answer = store.charge(&charges, now()).await.limits.pop().map(answer_of);
        let answer = answer.expect("a part for each charge");
        let took = sent_at.elapsed();
        let admitted = answer.as_ref().ok().and_then(|part| Some(part.grant?.at.nanos() / 1000));
        let open = open && store.trouble().is_some();
        let stalled = Duration::ZERO;
        seen.push(ObservedCharge { sent_at, took, stalled, error: answer.err(), admitted, open });
        tokio::time::sleep(pause).await;
    }
    seen
}

/// How much too long the longest of many short pauses was.
async fn pulse(over: Arc<AtomicBool>) -> Duration {
    let mut stalled = Duration::ZERO;
    while !over.load(Ordering::Relaxed) {
        let paused = Instant::now();
        tokio::time::sleep(PAUSE).await;
        stalled = stalled.max(paused.elapsed() - PAUSE);
    }
    stalled
}

/// 99 % within the deadline and 20 ms, none later than 250 ms after it; where the machine has stalled for
/// a while, that is added.
pub fn check_answered_in_time(seen: &[ObservedCharge], deadline: Duration) {
    let deadline = deadline + seen.iter().map(|seen| seen.stalled).max().unwrap_or_default();
    let late = seen.iter().filter(|seen| seen.took > deadline + Duration::from_millis(20)).count();
    assert!(late * 100 <= seen.len(), "{late} of {} are late", seen.len());
    let longest = seen.iter().map(|seen| seen.took).max().unwrap_or_default();
    assert!(longest <= deadline + Duration::from_millis(250), "one took {longest:?}");
}
