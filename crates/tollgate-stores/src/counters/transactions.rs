//! Read-decide-write transactions by compare-and-swap.
//!
//! Counters that the backend can change atomically share a *partition*. A node runs one transaction per partition at a
//! time; charges that arrive meanwhile are queued and go into the next one together (group commit). A conflict is
//! retried a bounded number of times; a transaction whose outcome is unknown is not.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tollgate::internal::lock;
use tollgate::internal::store::{Charge, ReceiptItem};

use self::working_set::WorkingSet;
use super::StoreError;
pub(crate) use super::cas::{CasOutcome, CasStore, CasValue, CasWrite};
use super::cas::{MAX_ATTEMPTS, back_off};
use super::request::{CallTiming, ChargeMode, ChargeResult};

mod working_set;

/// Jobs queued for one partition.
const MAX_QUEUED: usize = 1024;
/// Jobs in one transaction.
const MAX_TRANSACTION_JOBS: usize = 128;

#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Charges that are applied all or none, each with the name of its value.
    Charge {
        charges: Vec<Charge>,
        names: Vec<String>,
        mode: ChargeMode,
    },
    Settle {
        item: ReceiptItem,
        name: String,
        real_cost: u64,
    },
}

impl Work {
    fn names(&self) -> &[String] {
        match self {
            Work::Charge { names, .. } => names,
            Work::Settle { name, .. } => std::slice::from_ref(name),
        }
    }
}

struct TransactionJob {
    work: Work,
    timing: CallTiming,
    answer: oneshot::Sender<Result<Vec<ChargeResult>, StoreError>>,
}

/// Runs transactions on a [`CasStore`], one at a time per partition.
pub(crate) struct PartitionExecutor<C> {
    pub(crate) store: C,
    /// Has an entry for each partition whose queue is being run.
    queues: Mutex<HashMap<String, VecDeque<TransactionJob>>>,
    contended: AtomicU64,
}

impl<C: CasStore + 'static> PartitionExecutor<C> {
    pub(crate) fn new(store: C) -> Arc<PartitionExecutor<C>> {
        Arc::new(PartitionExecutor { store, queues: Mutex::default(), contended: AtomicU64::new(0) })
    }

    /// Jobs that failed because every attempt ended in a conflict.
    pub(crate) fn contended(&self) -> u64 {
        self.contended.load(Ordering::Relaxed)
    }

    /// Runs the work in its partition; returns one result per charge, none for a settlement.
    pub(crate) async fn run(
        self: &Arc<Self>,
        partition: String,
        work: Work,
        timing: CallTiming,
    ) -> Result<Vec<ChargeResult>, StoreError> {
        let server = self.store.server(&partition);
        let (answer, answered) = oneshot::channel();
        let job = TransactionJob { work, timing, answer };
        match self.lock().entry(partition) {
            Entry::Occupied(queue) if queue.get().len() >= MAX_QUEUED => {
                return Err(StoreError::Busy { server });
            }
            Entry::Occupied(mut queue) => queue.get_mut().push_back(job),
            Entry::Vacant(vacant) => {
                tokio::spawn(self.clone().run_queue(vacant.key().clone()));
                vacant.insert(VecDeque::from([job]));
            }
        }
        match timeout_at(timing.deadline, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(StoreError::Deadline { server }),
        }
    }

    /// Runs queued jobs of a partition until the queue is empty.
    async fn run_queue(self: Arc<Self>, partition: String) {
        let queue_guard = QueueGuard { executor: &self, partition: &partition };
        while let Some(mut jobs) = self.next_batch(&partition) {
            self.run_transaction(&partition, &mut jobs).await;
        }
        std::mem::forget(queue_guard); // `next_batch` has removed the empty queue; another task may own a new one
    }

    fn next_batch(&self, partition: &str) -> Option<Vec<TransactionJob>> {
        let mut queues = self.lock();
        let queue = queues.get_mut(partition)?;
        if queue.is_empty() {
            queues.remove(partition);
            return None;
        }
        let count = queue.len().min(MAX_TRANSACTION_JOBS);
        Some(queue.drain(..count).collect())
    }

    async fn run_transaction(&self, partition: &str, jobs: &mut Vec<TransactionJob>) {
        for attempt in 1..=MAX_ATTEMPTS {
            // Drop jobs whose caller has given up or whose deadline has passed: they must not be charged.
            jobs.retain(|job| !job.answer.is_closed() && Instant::now() < job.timing.deadline);
            let Some(deadline) = jobs.iter().map(|job| job.timing.deadline).max() else { return };
            match self.try_transaction(partition, jobs, deadline).await {
                Ok(Some(answers)) => {
                    let answered = jobs.drain(..).zip(answers);
                    return answered.for_each(|(job, answer)| drop(job.answer.send(answer)));
                }
                Ok(None) => back_off::<C>(attempt).await,
                Err(error) => {
                    return jobs.drain(..).for_each(|job| drop(job.answer.send(Err(error.clone()))));
                }
            }
        }
        self.contended.fetch_add(jobs.len() as u64, Ordering::Relaxed);
        let server = self.store.server(partition);
        for job in jobs.drain(..) {
            let _ = job.answer.send(Err(StoreError::Contended { server: server.clone() }));
        }
    }

    /// One attempt at all jobs; `None` on a CAS conflict.
    async fn try_transaction(
        &self,
        partition: &str,
        jobs: &[TransactionJob],
        deadline: Instant,
    ) -> Result<Option<Vec<WorkResult>>, StoreError> {
        let mut names: Vec<_> = jobs.iter().flat_map(|job| job.work.names()).cloned().collect();
        names.sort_unstable();
        names.dedup();
        let loaded = self.store.load(partition, &names, deadline).await?;
        let mut working_set = WorkingSet::new(names, loaded);
        let foreign = || self.foreign_value(partition);
        let run = |job: &TransactionJob| working_set.run(&job.work, job.timing.now).ok_or_else(foreign);
        let answers = jobs.iter().map(run).collect();
        let writes = working_set.writes();
        if writes.is_empty() {
            return Ok(Some(answers));
        }
        Ok(match self.store.swap(partition, &writes, deadline).await? {
            CasOutcome::Applied => Some(answers),
            CasOutcome::Conflict => None,
        })
    }

    fn foreign_value(&self, partition: &str) -> StoreError {
        let reason = "the value under this counter's name has an unexpected format".to_owned();
        StoreError::Refused { server: self.store.server(partition), reason }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, VecDeque<TransactionJob>>> {
        lock(&self.queues)
    }
}

/// Removes the queue if its task panics or is cancelled: queued jobs fail, and the next job starts a new task.
struct QueueGuard<'k, C: CasStore + 'static> {
    executor: &'k PartitionExecutor<C>,
    partition: &'k str,
}

impl<C: CasStore + 'static> Drop for QueueGuard<'_, C> {
    fn drop(&mut self) {
        self.executor.lock().remove(self.partition);
    }
}

type WorkResult = Result<Vec<ChargeResult>, StoreError>;
