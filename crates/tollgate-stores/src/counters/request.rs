//! The charges of one request, over the partitions of a store.
//!
//! A backend applies the charges of one partition all or none. Partitions of the owner are charged first and in
//! parallel; those with a counter that many clients share only if the owner's allow, so that a denied flood does not
//! drain a shared limit. If one denies, applied charges are rolled back: until then they can deny other requests, never
//! admit one (I3). Partitions with only shadow charges come last.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::time::{Instant, timeout, timeout_at};
use tollgate::Time;
use tollgate::internal::store::{Charge, ChargeReceipt, Enforcement, LimitOutcome, ReceiptItem};

use super::breaker::ServerHealth;
use super::{CentralCounter, CentralOutcome, LimitResult, StoreError};

/// The operations of a backend on the counters of one partition.
pub trait CounterBackend: Send + Sync + 'static {
    /// Identifies a partition: the counters that change in one step.
    type Partition: PartialEq + Send + Sync;

    /// The name of a counter.
    fn name(&self, counter: &CentralCounter) -> String;

    /// The partition of the counter with this name.
    fn partition(&self, name: &str) -> Self::Partition;

    /// Decides the charges of one partition and applies all or none, as far as `mode` permits; one result per charge.
    fn charge(
        &self,
        batch: &Batch<'_, Self::Partition, Charge>,
        mode: ChargeMode,
        timing: CallTiming,
    ) -> impl Future<Output = Vec<Result<ChargeResult, StoreError>>> + Send;

    /// Corrects charges of one partition; one result per item, with its limit's outcome if the store replies with it.
    fn settle(
        &self,
        batch: &Batch<'_, Self::Partition, ReceiptItem>,
        real_cost: u64,
        timing: CallTiming,
    ) -> impl Future<Output = Vec<Result<Option<LimitOutcome>, StoreError>>> + Send;

    /// Deletes a counter; returns whether it existed.
    fn reset(
        &self,
        counter: &CentralCounter,
        timing: CallTiming,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Returns once the servers reply, or the error at the end of `within`.
    fn ready(&self, within: Duration) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The state of every server.
    fn health(&self) -> Vec<ServerHealth>;

    /// Charges that failed because every attempt ended in a CAS conflict.
    fn contended(&self) -> u64 {
        0
    }
}

/// What a charge may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChargeMode {
    /// Apply the cost if it is allowed; count a denied cost if the charge says so.
    Charge,
    /// The request is already denied: apply nothing, but count a denied cost if the charge says so.
    CountDenied,
    /// Change nothing.
    Peek,
}

/// The result of a charge on one counter.
#[derive(Clone, Copy, Debug)]
pub struct ChargeResult {
    pub outcome: LimitOutcome,
    /// The result of a peek at the same time, if it is known without another call.
    pub before: Option<LimitOutcome>,
}

/// The node's time, and the deadline of the call.
#[derive(Clone, Copy, Debug)]
pub struct CallTiming {
    pub now: Time,
    pub deadline: Instant,
    timeout: Duration,
}

impl CallTiming {
    pub(crate) fn new(now: Time, timeout: Duration) -> CallTiming {
        CallTiming { now, deadline: Instant::now() + timeout, timeout }
    }

    /// The same timestamp with a new deadline, the full timeout from now.
    fn restarted(self) -> CallTiming {
        CallTiming::new(self.now, self.timeout)
    }
}

/// The charges or receipt items of one partition.
pub struct Batch<'r, P, T> {
    pub(super) partition: P,
    pub(super) items: Vec<&'r T>,
    /// The name of the counter of each item.
    pub(super) names: Vec<String>,
    /// The position of each item in the request.
    indices: Vec<usize>,
}

impl<P, T> Batch<'_, P, T> {
    /// Every item with the name of its counter.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&T, &str)> {
        self.items.iter().copied().zip(self.names.iter().map(String::as_str))
    }
}

/// Groups items by partition.
fn batches<'r, B: CounterBackend, T>(
    backend: &B,
    items: impl IntoIterator<Item = (usize, &'r T)>,
    counter_of: impl Fn(&T) -> &CentralCounter,
) -> Vec<Batch<'r, B::Partition, T>> {
    let mut batches: Vec<Batch<'r, B::Partition, T>> = Vec::with_capacity(1);
    for (index, item) in items {
        let name = backend.name(counter_of(item));
        let partition = backend.partition(&name);
        match batches.iter_mut().find(|batch| batch.partition == partition) {
            Some(batch) => {
                batch.items.push(item);
                batch.names.push(name);
                batch.indices.push(index);
            }
            None => {
                let items = vec![item];
                let names = vec![name];
                let indices = vec![index];
                batches.push(Batch { partition, items, names, indices });
            }
        }
    }
    batches
}

/// A central store. Clones share the connections.
pub struct CounterStore<B> {
    pub(super) backend: Arc<B>,
    /// Per decision, over all its calls.
    pub(super) deadline: Duration,
}

impl<B> Clone for CounterStore<B> {
    fn clone(&self) -> CounterStore<B> {
        CounterStore { backend: self.backend.clone(), deadline: self.deadline }
    }
}

impl<B: CounterBackend> CounterStore<B> {
    pub(super) fn new(backend: B, deadline: Duration) -> CounterStore<B> {
        CounterStore { backend: Arc::new(backend), deadline }
    }

    /// Decides all charges of one request and applies all or none.
    pub async fn charge(&self, charges: &[Charge], now: Time) -> CentralOutcome {
        let mut request = PartitionedRequest::new(&self.backend, charges, self.timing(now));
        let mut owned = Vec::new();
        let mut shared = Vec::new();
        let mut shadow = Vec::new();
        for batch in batches(&*self.backend, charges.iter().enumerate(), Charge::counter) {
            let is_owned = |charge: &&Charge| charge.counter().id.key.owner().is_some();
            if !batch.items.iter().any(|charge| charge.enforcement == Enforcement::Enforced) {
                shadow.push(batch);
            } else if batch.items.iter().all(is_owned) {
                owned.push(batch);
            } else {
                shared.push(batch);
            }
        }
        request.charge_in_order(&owned, &shared).await;
        if request.is_denied() {
            request.roll_back().await;
        }
        request.run(&shadow, request.mode()).await;
        request.into_outcome()
    }

    /// Decides as [`charge`](Self::charge) would, and changes nothing.
    pub async fn peek(&self, charges: &[Charge], now: Time) -> CentralOutcome {
        let mut request = PartitionedRequest::new(&self.backend, charges, self.timing(now));
        let all = batches(&*self.backend, charges.iter().enumerate(), Charge::counter);
        request.run(&all, ChargeMode::Peek).await;
        request.into_outcome()
    }

    /// Refunds the charges of a receipt, as far as they have not expired.
    pub async fn refund(&self, receipt: ChargeReceipt, now: Time) -> Result<(), StoreError> {
        self.settle(receipt, 0, now).await
    }

    /// Corrects the hit's cost after the fact: the difference is refunded, or added as debt. Returns the first error.
    pub async fn settle(&self, receipt: ChargeReceipt, real_cost: u64, now: Time) -> Result<(), StoreError> {
        let settled = settle_all(&*self.backend, receipt.items(), real_cost, self.timing(now)).await;
        settled.into_iter().try_for_each(|settled| settled.map(drop))
    }

    /// Deletes a counter; returns whether it existed.
    pub async fn reset(&self, counter: &CentralCounter, now: Time) -> Result<bool, StoreError> {
        self.backend.reset(counter, self.timing(now)).await
    }

    /// Returns once the store is usable, or the error at the end of `within`.
    pub async fn ready(&self, within: Duration) -> Result<(), StoreError> {
        self.backend.ready(within).await
    }

    /// The state of every server.
    pub fn health(&self) -> Vec<ServerHealth> {
        self.backend.health()
    }

    /// Charges that failed because every attempt ended in a CAS conflict.
    pub fn contended(&self) -> u64 {
        self.backend.contended()
    }

    fn timing(&self, now: Time) -> CallTiming {
        CallTiming::new(now, self.deadline)
    }
}

/// Settles items in parallel; one result per item.
async fn settle_all<B: CounterBackend>(
    backend: &B,
    items: &[ReceiptItem],
    real_cost: u64,
    timing: CallTiming,
) -> Vec<Result<Option<LimitOutcome>, StoreError>> {
    let batches = batches(backend, items.iter().enumerate(), ReceiptItem::counter);
    let settled = join_all(batches.iter().map(|batch| backend.settle(batch, real_cost, timing))).await;
    let mut results: Vec<_> = items.iter().map(|_| Ok(None)).collect();
    for (batch, settled) in batches.iter().zip(settled) {
        batch.indices.iter().zip(settled).for_each(|(n, settled)| results[*n] = settled);
    }
    results
}

type BatchResults = Vec<Vec<Result<ChargeResult, StoreError>>>;

/// Charges batches in parallel.
async fn run_batches<B: CounterBackend>(
    backend: &B,
    batches: &[Batch<'_, B::Partition, Charge>],
    mode: ChargeMode,
    timing: CallTiming,
) -> BatchResults {
    match batches {
        [batch] => vec![backend.charge(batch, mode, timing).await],
        _ => join_all(batches.iter().map(|batch| backend.charge(batch, mode, timing))).await,
    }
}

/// A request in progress.
struct PartitionedRequest<'r, B> {
    backend: &'r Arc<B>,
    charges: &'r [Charge],
    timing: CallTiming,
    /// By charge; `None` if it was not sent.
    results: Vec<Option<Result<ChargeResult, StoreError>>>,
}

impl<'r, B: CounterBackend> PartitionedRequest<'r, B> {
    fn new(backend: &'r Arc<B>, charges: &'r [Charge], timing: CallTiming) -> PartitionedRequest<'r, B> {
        PartitionedRequest { backend, charges, timing, results: charges.iter().map(|_| None).collect() }
    }

    /// Charges `shared` once `owned` are decided. If `owned` take more than half of the time left, `shared` are
    /// charged anyway, and rolled back if a late result denies.
    async fn charge_in_order(
        &mut self,
        owned: &[Batch<'r, B::Partition, Charge>],
        shared: &[Batch<'r, B::Partition, Charge>],
    ) {
        let backend = &**self.backend;
        let timing = self.timing;
        let half = timing.deadline.duration_since(Instant::now()) / 2;
        let mut answers = pin!(run_batches(backend, owned, ChargeMode::Charge, timing));
        let in_time = match shared {
            [] => Ok(answers.as_mut().await),
            _ => timeout(half, answers.as_mut()).await,
        };
        match in_time {
            Ok(answers) => {
                self.record(owned, answers);
                self.run(shared, self.mode()).await;
            }
            Err(_) => {
                let others = run_batches(backend, shared, ChargeMode::Charge, timing);
                let (late, answers) = join(answers, others).await;
                self.record(owned, late);
                self.record(shared, answers);
            }
        }
    }

    async fn run(&mut self, batches: &[Batch<'r, B::Partition, Charge>], mode: ChargeMode) {
        let answers = run_batches(&**self.backend, batches, mode, self.timing).await;
        self.record(batches, answers);
    }

    fn record(&mut self, batches: &[Batch<'r, B::Partition, Charge>], answers: BatchResults) {
        for (batch, answers) in batches.iter().zip(answers) {
            batch.indices.iter().zip(answers).for_each(|(n, answer)| self.results[*n] = Some(answer));
        }
    }

    /// Whether an enforced limit has denied. Charges that failed do not deny.
    fn is_denied(&self) -> bool {
        self.charges.iter().zip(&self.results).any(|(charge, result)| match result {
            Some(Ok(result)) => {
                charge.enforcement == Enforcement::Enforced && !result.outcome.decision.is_allowed()
            }
            _ => false,
        })
    }

    fn mode(&self) -> ChargeMode {
        if self.is_denied() { ChargeMode::CountDenied } else { ChargeMode::Charge }
    }

    /// Refunds applied charges. Continues in the background after the deadline: what is not refunded by then can deny
    /// other requests, never admit one (I3).
    async fn roll_back(&mut self) {
        let mut indices = Vec::new();
        let mut items = Vec::new();
        for (n, (charge, result)) in self.charges.iter().zip(&mut self.results).enumerate() {
            let Some(Ok(result)) = result else { continue };
            let Some(grant) = result.outcome.grant.take() else { continue };
            match result.before {
                Some(before) => result.outcome = before,
                None => result.outcome.remaining += grant.cost,
            }
            indices.push(n);
            items.push(ReceiptItem::of(charge, grant));
        }
        if items.is_empty() {
            return;
        }
        let backend = self.backend.clone();
        let timing = self.timing.restarted();
        let refund = tokio::spawn(async move { settle_all(&*backend, &items, 0, timing).await });
        let Ok(Ok(refunded)) = timeout_at(self.timing.deadline, refund).await else { return };
        let mut unknown = Vec::new();
        for (n, refunded) in indices.into_iter().zip(refunded) {
            let Some(Ok(result)) = &mut self.results[n] else { continue };
            match refunded {
                Ok(Some(after)) => {
                    result.outcome.remaining = after.remaining;
                    result.outcome.reset_after = after.reset_after;
                }
                Ok(None) if result.before.is_none() => unknown.push((n, &self.charges[n])),
                Ok(None) | Err(_) => {}
            }
        }
        if !unknown.is_empty() {
            let unknown = batches(&**self.backend, unknown, Charge::counter);
            self.run(&unknown, ChargeMode::Peek).await;
        }
    }

    fn into_outcome(self) -> CentralOutcome {
        let admitted = !self.is_denied();
        let result = |result: Option<Result<ChargeResult, StoreError>>| match result {
            Some(result) => result.map(|result| result.outcome).into(),
            None => LimitResult::Skipped,
        };
        CentralOutcome { admitted, limits: self.results.into_iter().map(result).collect() }
    }
}
