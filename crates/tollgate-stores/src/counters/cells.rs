//! Values that are read, decided on, and written back if nobody was faster.
//!
//! Counters that a store can change together share a *lane*. Of one lane a node has one transaction under
//! way; charges that come meanwhile wait, and go into the next one together. A transaction that lost the
//! race begins anew, a bounded number of times. One whose fate is unknown is not sent again.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};
use tollgate::Time;

use self::board::Board;
use super::demand::{Intent, Ran};
pub(crate) use super::value::{Cells, Loaded, Swap, Write};
use super::{CentralCharge, CentralReceiptItem, StoreError};

mod board;

/// How often a transaction is tried before others have won for good.
const MAX_TRIES: u32 = 12;
/// Charges that wait for one lane.
const MAX_WAITING: usize = 1024;
/// Charges that go into one transaction.
const MAX_COMBINED: usize = 128;

/// When something is asked, and until when it is of use.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub now: Time,
    pub deadline: Instant,
    patience: Duration,
}

impl Moment {
    pub(crate) fn new(now: Time, patience: Duration) -> Moment {
        Moment { now, deadline: Instant::now() + patience, patience }
    }

    /// The same, with all its time still to come.
    pub(crate) fn renewed(self) -> Moment {
        Moment::new(self.now, self.patience)
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Charges that are taken all or none, each with the name of its value.
    Charge {
        charges: Vec<CentralCharge>,
        names: Vec<String>,
        intent: Intent,
    },
    Settle {
        item: CentralReceiptItem,
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

struct Job {
    work: Work,
    moment: Moment,
    answer: oneshot::Sender<Result<Vec<Ran>, StoreError>>,
}

/// Runs transactions on cells, one at a time in each lane.
pub(crate) struct Keeper<C> {
    pub(crate) cells: C,
    /// A lane is here while somebody drives it.
    lanes: Mutex<HashMap<String, VecDeque<Job>>>,
    contended: AtomicU64,
}

impl<C: Cells + 'static> Keeper<C> {
    pub(crate) fn new(cells: C) -> Arc<Keeper<C>> {
        Arc::new(Keeper { cells, lanes: Mutex::default(), contended: AtomicU64::new(0) })
    }

    /// Transactions that were given up because others were faster each time.
    pub(crate) fn contended(&self) -> u64 {
        self.contended.load(Ordering::Relaxed)
    }

    /// Does the work in its lane; for charges, what came of each.
    pub(crate) async fn run(
        self: &Arc<Self>,
        lane: String,
        work: Work,
        moment: Moment,
    ) -> Result<Vec<Ran>, StoreError> {
        let server = self.cells.server(&lane);
        let (answer, answered) = oneshot::channel();
        let job = Job { work, moment, answer };
        match self.lock().entry(lane) {
            Entry::Occupied(driven) if driven.get().len() >= MAX_WAITING => {
                return Err(StoreError::Busy { server });
            }
            Entry::Occupied(mut driven) => driven.get_mut().push_back(job),
            Entry::Vacant(idle) => {
                tokio::spawn(self.clone().drive(idle.key().clone()));
                idle.insert(VecDeque::from([job]));
            }
        }
        match timeout_at(moment.deadline, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(StoreError::Deadline { server }),
        }
    }

    /// Runs what waits in a lane until nothing does.
    async fn drive(self: Arc<Self>, lane: String) {
        let driving = Driving { keeper: &self, lane: &lane };
        while let Some(mut jobs) = self.next(&lane) {
            self.transact(&lane, &mut jobs).await;
        }
        std::mem::forget(driving);
    }

    fn next(&self, lane: &str) -> Option<Vec<Job>> {
        let mut lanes = self.lock();
        let waiting = lanes.get_mut(lane)?;
        if waiting.is_empty() {
            lanes.remove(lane);
            return None;
        }
        let count = waiting.len().min(MAX_COMBINED);
        Some(waiting.drain(..count).collect())
    }

    async fn transact(&self, lane: &str, jobs: &mut Vec<Job>) {
        for tried in 0..MAX_TRIES {
            // Whoever does not wait any more is not charged.
            jobs.retain(|job| !job.answer.is_closed() && Instant::now() < job.moment.deadline);
            let Some(deadline) = jobs.iter().map(|job| job.moment.deadline).max() else { return };
            match self.attempt(lane, jobs, deadline).await {
                Ok(Some(answers)) => {
                    let answered = jobs.drain(..).zip(answers);
                    return answered.for_each(|(job, answer)| drop(job.answer.send(answer)));
                }
                Ok(None) => sleep(C::PAUSE.mul_f64(f64::from(tried + 1) * fastrand::f64())).await,
                Err(error) => {
                    return jobs.drain(..).for_each(|job| drop(job.answer.send(Err(error.clone()))));
                }
            }
        }
        self.contended.fetch_add(jobs.len() as u64, Ordering::Relaxed);
        let server = self.cells.server(lane);
        for job in jobs.drain(..) {
            let _ = job.answer.send(Err(StoreError::Contended { server: server.clone() }));
        }
    }

    /// Does all jobs on what is there now; `None` if somebody was faster.
    async fn attempt(
        &self,
        lane: &str,
        jobs: &[Job],
        deadline: Instant,
    ) -> Result<Option<Vec<Answer>>, StoreError> {
        let mut names: Vec<_> = jobs.iter().flat_map(|job| job.work.names()).cloned().collect();
        names.sort_unstable();
        names.dedup();
        let loaded = self.cells.load(lane, &names, deadline).await?;
        let mut board = Board::new(names, loaded);
        let foreign = || self.foreign(lane);
        let run = |job: &Job| board.run(&job.work, job.moment.now).ok_or_else(foreign);
        let answers = jobs.iter().map(run).collect();
        let writes = board.writes();
        if writes.is_empty() {
            return Ok(Some(answers));
        }
        Ok(match self.cells.swap(lane, &writes, deadline).await? {
            Swap::Done => Some(answers),
            Swap::Lost => None,
        })
    }

    fn foreign(&self, lane: &str) -> StoreError {
        let reason = "it holds a value under this counter's name that is none of ours".to_owned();
        StoreError::Refused { server: self.cells.server(lane), reason }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, VecDeque<Job>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lane whose driver came to grief is free again: who waits is told, who comes next drives it.
struct Driving<'k, C: Cells + 'static> {
    keeper: &'k Keeper<C>,
    lane: &'k str,
}

impl<C: Cells + 'static> Drop for Driving<'_, C> {
    fn drop(&mut self) {
        self.keeper.lock().remove(self.lane);
    }
}

type Answer = Result<Vec<Ran>, StoreError>;
