//! Live insight: which clients are limited, by which rules and how often, from all decisions of this node.
//!
//! Each thread counts into a batch of its own (`batch`). Batches are merged once a second, when they are full, and
//! before the admin API reads (`data`). A full batch that cannot be merged at once is enqueued, so that decisions do not
//! wait for a reader. Everything is bounded, and the bounds are added up at compile time; what they take of the heap is
//! counted by `fuzz/tests/live_data_memory`.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

use tokio::sync::broadcast;
use tollgate::Time;
use tollgate::internal::engine::LogKeys;
use tollgate::internal::identity::Key;

use crate::connection::{Shutdown, shutdown_requested};
use crate::gate::Gate;

mod batch;
mod bounded_sum;
mod data;
mod history;
mod hyper_log_log;
mod key_text;
mod latencies;
mod point_ring;
mod rule_history;
mod sample;
mod space_saving;
#[cfg(feature = "testing")]
pub mod testing;
mod top_keys;
mod top_merge;

use batch::DecisionBatch;
pub use batch::{Decided, ListedDecision};
pub use data::{InsightData, ListedOutcome, SecondSummary, SeriesName};
use history::MinuteCounts;
pub use history::{FILE_NAME, HistoryFile, OTHER, TOTAL};
use key_text::KeyTexts;
pub use key_text::key_text;
pub use point_ring::Point;
pub use rule_history::{HOUR, MINUTE, RuleHistory, headroom};
use sample::ClientSample;
pub use sample::{Sampled, SampledRequest};
#[cfg(feature = "testing")]
pub use space_saving::{CAPACITY, SpaceSaving};
pub use top_keys::{TopList, TopOutcome, TopWindow};
pub use top_merge::merge_tops;

/// As many as the engine has: the stripe of a verdict is the one of its thread.
const STRIPES: usize = 32;
/// Full batches that wait to be merged.
const MAX_PENDING: usize = 4;
/// Empty batches that are kept for reuse.
const MAX_SPARE: usize = 4;
/// Seconds that a reader of the stream may fall behind.
const MAX_BEHIND: usize = 16;
/// How long a stop waits for the disk.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// When the clock is set back by more than this, counting starts anew.
const MAX_SET_BACK: u64 = 60;

/// Bytes of everything.
const MAX_BYTES: usize = ClientSample::MAX_BYTES
    + InsightData::MAX_BYTES
    + KeyTexts::MAX_BYTES
    + (STRIPES + MAX_PENDING + MAX_SPARE) * DecisionBatch::MAX_BYTES;

const _: () = assert!(MAX_BYTES <= 32 << 20, "insight takes at most 32 MiB");

pub struct Insight {
    texts: KeyTexts,
    stripes: Box<[Stripe; STRIPES]>,
    pending: Mutex<Vec<BoxedBatch>>,
    spare: Mutex<Vec<BoxedBatch>>,
    data: Mutex<InsightData>,
    sample: ClientSample,
    /// Past minutes on disk, if there is a state folder.
    pub history: OnceLock<HistoryFile>,
    seconds: broadcast::Sender<Arc<SecondSummary>>,
}

/// Boxed: batches are exchanged while a decision waits.
type BoxedBatch = Box<DecisionBatch>;

/// Two cache lines: threads share none.
#[repr(align(128))]
#[derive(Default)]
struct Stripe(OnceLock<Mutex<BoxedBatch>>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Insight {
    pub fn new(log_keys: LogKeys, now: Time) -> Insight {
        Insight {
            texts: KeyTexts::new(log_keys),
            stripes: Box::default(),
            pending: Mutex::default(),
            spare: Mutex::default(),
            data: Mutex::new(InsightData::new(now.secs())),
            sample: ClientSample::new(now),
            history: OnceLock::new(),
            seconds: broadcast::channel(MAX_BEHIND).0,
        }
    }

    /// Counts a decision.
    pub fn record(&self, decided: &Decided<'_, '_>) {
        let sampled = self.sample.client(decided.hit);
        let stripe = &self.stripes[decided.verdict.id.stripe() % STRIPES].0;
        let mut batch = lock(stripe.get_or_init(Mutex::default));
        batch.record(decided, &self.texts);
        if let Some(client) = sampled {
            batch.sample.record(client, decided.hit, decided.at);
        }
        if batch.is_full() {
            let full = mem::replace(&mut *batch, self.empty_batch());
            drop(batch);
            self.merge_full(full);
        }
    }

    #[cold]
    fn empty_batch(&self) -> BoxedBatch {
        lock(&self.spare).pop().unwrap_or_default()
    }

    /// Merges a full batch, or enqueues it while another thread merges or reads.
    #[cold]
    fn merge_full(&self, mut full: BoxedBatch) {
        let mut data = match self.data.try_lock() {
            Ok(data) => data,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let mut pending = lock(&self.pending);
                if pending.len() < MAX_PENDING {
                    return pending.push(full);
                }
                drop(pending);
                lock(&self.data)
            }
        };
        self.merge(&mut data, &mut full);
        drop(data);
        self.keep_spare(full);
    }

    fn merge(&self, data: &mut InsightData, batch: &mut DecisionBatch) {
        self.sample.merge(&mut batch.sample);
        data.merge(batch);
    }

    fn keep_spare(&self, batch: BoxedBatch) {
        let mut spare = lock(&self.spare);
        if spare.len() < MAX_SPARE {
            spare.push(batch);
        }
    }

    /// Everything that was decided so far.
    pub fn data(&self) -> MutexGuard<'_, InsightData> {
        let mut data = lock(&self.data);
        let pending = mem::take(&mut *lock(&self.pending));
        for mut batch in pending {
            self.merge(&mut data, &mut batch);
            self.keep_spare(batch);
        }
        for stripe in self.stripes.iter().filter_map(|stripe| stripe.0.get()) {
            let mut batch = lock(stripe);
            if batch.is_empty() {
                continue;
            }
            let mut taken = mem::replace(&mut *batch, self.empty_batch());
            drop(batch);
            self.merge(&mut data, &mut taken);
            self.keep_spare(taken);
        }
        data
    }

    /// Completes the current second if it is over, and publishes it.
    pub fn tick(&self, now: Time) {
        self.texts.refill();
        let mut data = self.data();
        self.sample.tick(now);
        let now = now.secs();
        if now + MAX_SET_BACK < data.second() {
            tracing::warn!("the clock was set back: the counts of the admin API start anew");
            *data = InsightData::new(now);
        }
        if now <= data.second() {
            return;
        }
        let ended = data.end_second(now);
        let minute = (now / MINUTE != ended.at / MINUTE).then(|| data.minute_counts(ended.at / MINUTE));
        drop(data);
        self.save(minute);
        // Without a reader there is nothing to do.
        self.seconds.send(Arc::new(ended)).ok();
    }

    fn save(&self, minute: Option<MinuteCounts>) {
        if let (Some(history), Some(minute)) = (self.history.get(), minute) {
            history.write(minute);
        }
    }

    /// Saves the current minute, the last second included. Waits for the disk.
    fn close(&self, now: Time) {
        self.tick(now);
        let mut data = self.data();
        let next = data.second() + 1;
        let ended = data.end_second(next);
        let minute = data.minute_counts(ended.at / MINUTE);
        drop(data);
        self.save(Some(minute));
        if let Some(history) = self.history.get() {
            history.close();
        }
    }

    pub fn log_keys(&self) -> LogKeys {
        self.texts.log_keys()
    }

    /// The text of a key as the admin API shows it: of one that is written `name:value`.
    pub fn shown_key(&self, text: &str) -> String {
        let mark = self.sample.mark(text);
        match Key::parse(text) {
            Ok(key) => key_text(&key, mark, self.log_keys()).to_string(),
            Err(_) if text.is_empty() => String::new(),
            Err(_) => key_text::unknown_key(mark),
        }
    }

    /// The requests of a sample of clients.
    pub fn sample(&self) -> Sampled {
        drop(self.data());
        self.sample.copy()
    }

    /// All seconds that are completed from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<SecondSummary>> {
        self.seconds.subscribe()
    }
}

/// Completes each second, until the process is to stop.
pub async fn run(gate: Arc<Gate>, mut shutdown: Shutdown) {
    let Some(insight) = gate.insight.get() else { return };
    loop {
        let into_second = gate.now().nanos() % 1_000_000_000;
        let rest = Duration::from_nanos(1_000_000_000 - into_second);
        tokio::select! {
            () = tokio::time::sleep(rest) => insight.tick(gate.now()),
            () = shutdown_requested(&mut shutdown) => break,
        }
    }
    let closing = Arc::clone(&gate);
    let close = move || {
        if let Some(insight) = closing.insight.get() {
            insight.close(closing.now());
        }
    };
    // A disk that does not answer must not delay the stop.
    if tokio::time::timeout(CLOSE_TIMEOUT, tokio::task::spawn_blocking(close)).await.is_err() {
        tracing::warn!("the counts of the last minute could not be saved in time");
    }
}

#[cfg(test)]
mod tests;
