//! The charges of one request over a store that cannot apply all of them atomically.
//!
//! Charges of one partition are applied all or none by the store. Partitions of the owner are charged first and in
//! parallel; shared ones only if those allow. If one denies, applied charges are rolled back: until then they can deny
//! other requests, never admit one (I3). Shadow charges come last, each on its own.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{join, join_all};
use tokio::time::{Instant, timeout, timeout_at};
use tollgate::store::{Enforcement, LimitOutcome};

use super::decide::{ChargeMode, ChargeResult};
use super::transactions::CallTiming;
use super::{CentralCharge, CentralOutcome, CentralReceipt, CentralReceiptItem, StoreError};

/// The operations that a backend provides for one request.
pub trait PartitionedStore: Send + Sync + 'static {
    /// Charges with the same partition key are applied atomically.
    fn partition_key(&self, charge: &CentralCharge) -> String;

    /// Applies the charges of one partition, all or none; one result per charge.
    fn run_charges(
        self: &Arc<Self>,
        charges: Vec<CentralCharge>,
        mode: ChargeMode,
        timing: CallTiming,
    ) -> impl Future<Output = Vec<Result<ChargeResult, StoreError>>> + Send;

    /// Corrects the cost of one charge.
    fn settle_item(
        self: &Arc<Self>,
        item: &CentralReceiptItem,
        real_cost: u64,
        timing: CallTiming,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Decides all charges of a request and applies all or none.
pub(crate) async fn charge<S: PartitionedStore>(
    store: &Arc<S>,
    charges: &[CentralCharge],
    timing: CallTiming,
) -> CentralOutcome {
    let mut request = PartitionedRequest::new(store, charges, timing);
    let enforced = |n: &usize| charges[*n].enforcement == Enforcement::Enforced;
    let (owned, shared): (Vec<_>, Vec<_>) =
        (0..charges.len()).filter(enforced).partition(|n| charges[*n].counter.key.owner().is_some());
    request.charge_in_order(&owned, &shared).await;
    if request.denied() {
        request.roll_back().await;
    }
    let shadows = (0..charges.len()).filter(|n| !enforced(n)).map(|n| vec![n]).collect();
    request.run_and_record(shadows, request.mode()).await;
    request.outcome()
}

/// Decides as [`charge`] would, and changes nothing.
pub(crate) async fn peek<S: PartitionedStore>(
    store: &Arc<S>,
    charges: &[CentralCharge],
    timing: CallTiming,
) -> CentralOutcome {
    let mut request = PartitionedRequest::new(store, charges, timing);
    let all: Vec<_> = (0..charges.len()).collect();
    request.run_grouped(&all, ChargeMode::Peek).await;
    request.outcome()
}

/// Settles all items of a receipt; returns the first error.
pub(crate) async fn settle<S: PartitionedStore>(
    store: &Arc<S>,
    receipt: CentralReceipt,
    real_cost: u64,
    timing: CallTiming,
) -> Result<(), StoreError> {
    let settled = receipt.items.iter().map(|item| store.settle_item(item, real_cost, timing));
    join_all(settled).await.into_iter().collect()
}

/// Runs groups of charges in parallel; one result per charge, in order.
async fn run_groups<S: PartitionedStore>(
    store: &Arc<S>,
    charges: &[CentralCharge],
    groups: Vec<Vec<usize>>,
    mode: ChargeMode,
    timing: CallTiming,
) -> Vec<Result<ChargeResult, StoreError>> {
    let ran = groups.iter().map(|group| {
        let charges = group.iter().map(|n| charges[*n].clone()).collect();
        store.run_charges(charges, mode, timing)
    });
    join_all(ran).await.into_iter().flatten().collect()
}

struct PartitionedRequest<'r, S> {
    store: &'r Arc<S>,
    charges: &'r [CentralCharge],
    timing: CallTiming,
    /// By charge; `None` if it was not sent.
    results: Vec<Option<Result<ChargeResult, StoreError>>>,
}

impl<'r, S: PartitionedStore> PartitionedRequest<'r, S> {
    fn new(store: &'r Arc<S>, charges: &'r [CentralCharge], timing: CallTiming) -> PartitionedRequest<'r, S> {
        PartitionedRequest { store, charges, timing, results: charges.iter().map(|_| None).collect() }
    }

    /// Charges `shared` once `owned` are decided. If `owned` take more than half of the time left, `shared` are
    /// charged anyway, and rolled back if a late result denies.
    async fn charge_in_order(&mut self, owned: &[usize], shared: &[usize]) {
        let store = self.store;
        let charges = self.charges;
        let timing = self.timing;
        let half = timing.deadline.duration_since(Instant::now()) / 2;
        let groups = self.group_by_partition(owned);
        let mut answers = pin!(run_groups(store, charges, groups.clone(), ChargeMode::Charge, timing));
        let in_time = match shared {
            [] => Ok(answers.as_mut().await),
            _ => timeout(half, answers.as_mut()).await,
        };
        match in_time {
            Ok(answers) => {
                self.record(groups, answers);
                self.run_grouped(shared, self.mode()).await;
            }
            Err(_) => {
                let others = self.group_by_partition(shared);
                let asked = run_groups(store, charges, others.clone(), ChargeMode::Charge, timing);
                let (late, answers) = join(answers, asked).await;
                self.record(groups, late);
                self.record(others, answers);
            }
        }
    }

    /// Runs the charges with these indexes, grouped by partition.
    async fn run_grouped(&mut self, numbers: &[usize], mode: ChargeMode) {
        self.run_and_record(self.group_by_partition(numbers), mode).await;
    }

    fn group_by_partition(&self, numbers: &[usize]) -> Vec<Vec<usize>> {
        let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
        for &n in numbers {
            let partition = self.store.partition_key(&self.charges[n]);
            match groups.iter_mut().find(|(known, _)| *known == partition) {
                Some((_, group)) => group.push(n),
                None => groups.push((partition, vec![n])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    async fn run_and_record(&mut self, groups: Vec<Vec<usize>>, mode: ChargeMode) {
        let answers = run_groups(self.store, self.charges, groups.clone(), mode, self.timing).await;
        self.record(groups, answers);
    }

    fn record(&mut self, groups: Vec<Vec<usize>>, answers: Vec<Result<ChargeResult, StoreError>>) {
        for (n, result) in groups.into_iter().flatten().zip(answers) {
            self.results[n] = Some(result);
        }
    }

    /// Whether an enforced limit has denied. Charges that failed do not deny.
    fn denied(&self) -> bool {
        self.charges.iter().zip(&self.results).any(|(charge, result)| match result {
            Some(Ok(ran)) => charge.enforcement == Enforcement::Enforced && !ran.part.decision.is_allowed(),
            _ => false,
        })
    }

    fn mode(&self) -> ChargeMode {
        if self.denied() { ChargeMode::CountDenied } else { ChargeMode::Charge }
    }

    /// Refunds applied charges; continues in the background if the caller stops waiting.
    async fn roll_back(&mut self) {
        let mut items = Vec::new();
        let mut unknown = Vec::new();
        for (n, (charge, result)) in self.charges.iter().zip(&mut self.results).enumerate() {
            let Some(Ok(ran)) = result else { continue };
            let Some(grant) = ran.part.grant.take() else { continue };
            let CentralCharge { counter, limit, unit_cost, .. } = charge.clone();
            items.push(CentralReceiptItem { counter, limit, unit_cost, grant });
            match ran.before {
                Some(before) => ran.part = before,
                None => unknown.push(n),
            }
        }
        if items.is_empty() {
            return;
        }
        let store = self.store.clone();
        let timing = self.timing.restarted();
        let given_back =
            tokio::spawn(async move { settle(&store, CentralReceipt { items }, 0, timing).await });
        // What is not rolled back by the deadline stays charged: this can deny other requests, never admit one (I3).
        let _ = timeout_at(self.timing.deadline, given_back).await;
        self.run_grouped(&unknown, ChargeMode::Peek).await;
    }

    fn outcome(self) -> CentralOutcome {
        let admitted = !self.denied();
        let parts: Vec<Result<LimitOutcome, StoreError>> = self
            .results
            .into_iter()
            .map(|result| result.expect("every charge was asked").map(|ran| ran.part))
            .collect();
        CentralOutcome::of(self.charges, admitted, parts)
    }
}
