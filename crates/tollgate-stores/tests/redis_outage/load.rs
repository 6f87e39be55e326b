//! Callers that ask a store all the time, and what they saw.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tollgate_stores::counters::redis::RedisStore;
use tollgate_stores::counters::{CentralCharge, StoreError};

use crate::hits::hit;

/// Between two requests of one caller.
const PAUSE: Duration = Duration::from_millis(1);

pub struct Load {
    over: Arc<AtomicBool>,
    callers: Vec<JoinHandle<Vec<Seen>>>,
}

/// One request as its caller saw it.
#[derive(Debug)]
pub struct Seen {
    pub asked: Instant,
    pub took: Duration,
    /// Whether the server's breaker was open when it was asked, and when it was answered.
    pub open: (bool, bool),
    /// When it was let through, in microseconds of the server; `None` if it was denied.
    pub answer: Result<Option<u64>, StoreError>,
}

impl Load {
    pub fn start(store: &RedisStore, charge: &CentralCharge, callers: usize) -> Load {
        let over = Arc::new(AtomicBool::new(false));
        let callers = (0..callers)
            .map(|_| tokio::spawn(call(store.clone(), charge.clone(), Arc::clone(&over))))
            .collect();
        Load { over, callers }
    }

    /// Ends it; all that was seen, in order.
    pub async fn stop(self) -> Vec<Seen> {
        self.over.store(true, Ordering::Relaxed);
        let mut seen = Vec::new();
        for caller in self.callers {
            seen.extend(caller.await.expect("a caller ends"));
        }
        seen.sort_by_key(|seen| seen.asked);
        seen
    }
}

async fn call(store: RedisStore, charge: CentralCharge, over: Arc<AtomicBool>) -> Vec<Seen> {
    let mut all = Vec::new();
    let is_open = || store.health()[0].trouble.is_some();
    while !over.load(Ordering::Relaxed) {
        let (asked, open_before) = (Instant::now(), is_open());
        let answer = hit(&store, &charge).await.map(|part| part.grant.map(|grant| grant.at.nanos() / 1000));
        all.push(Seen { asked, took: asked.elapsed(), open: (open_before, is_open()), answer });
        tokio::time::sleep(PAUSE).await;
    }
    all
}

/// 99 % are answered within the deadline and 20 ms, all within the deadline and 250 ms.
pub fn check_answered_in_time(seen: &[Seen], deadline: Duration) {
    let late = seen.iter().filter(|seen| seen.took > deadline + Duration::from_millis(20)).count();
    assert!(late * 100 <= seen.len(), "{late} of {} are late", seen.len());
    let latest = seen.iter().map(|seen| seen.took).max().expect("some were asked");
    assert!(latest <= deadline + Duration::from_millis(250), "one took {latest:?}");
}
