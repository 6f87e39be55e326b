//! The charges of one request over a store that cannot take them all in one step.
//!
//! Charges that are kept together are taken all or none by the store itself. Of the others, the owner's
//! come first and in parallel, those that many share only if the owner's allow, and what was taken is given
//! back if one denies after all: others may be denied by a charge that does not last, never let through (I3).
//! Shadow charges come last, each for itself.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{join, join_all};
use tokio::time::{Instant, timeout, timeout_at};
use tollgate::store::{Part, Weight};

use super::cells::Moment;
use super::demand::{Intent, Ran};
use super::{CentralCharge, CentralOutcome, CentralReceipt, CentralReceiptItem, StoreError};

/// A store as one request sees it.
pub trait Charged: Send + Sync + 'static {
    /// Charges of the same place are kept together.
    fn place(&self, charge: &CentralCharge) -> String;

    /// Charges of one place, all or none; a result for each.
    fn run(
        self: &Arc<Self>,
        charges: Vec<CentralCharge>,
        intent: Intent,
        moment: Moment,
    ) -> impl Future<Output = Vec<Result<Ran, StoreError>>> + Send;

    /// Corrects the cost of a charge.
    fn settle_item(
        self: &Arc<Self>,
        item: &CentralReceiptItem,
        real_cost: u64,
        moment: Moment,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Decides all charges of a request and takes all or none.
pub(crate) async fn charge<S: Charged>(
    store: &Arc<S>,
    charges: &[CentralCharge],
    moment: Moment,
) -> CentralOutcome {
    let mut request = Request::new(store, charges, moment);
    let enforced = |n: &usize| charges[*n].weight == Weight::Enforced;
    let (owned, shared): (Vec<_>, Vec<_>) =
        (0..charges.len()).filter(enforced).partition(|n| charges[*n].counter.key.owner().is_some());
    request.ask_in_turn(&owned, &shared).await;
    if request.denied() {
        request.give_back().await;
    }
    let shadows = (0..charges.len()).filter(|n| !enforced(n)).map(|n| vec![n]).collect();
    request.ask_groups(shadows, request.intent()).await;
    request.outcome()
}

/// Decides as [`charge`] would, and changes nothing.
pub(crate) async fn peek<S: Charged>(
    store: &Arc<S>,
    charges: &[CentralCharge],
    moment: Moment,
) -> CentralOutcome {
    let mut request = Request::new(store, charges, moment);
    let all: Vec<_> = (0..charges.len()).collect();
    request.ask(&all, Intent::Peek).await;
    request.outcome()
}

/// Corrects the cost of everything on a receipt; the first error, if there is one.
pub(crate) async fn settle<S: Charged>(
    store: &Arc<S>,
    receipt: CentralReceipt,
    real_cost: u64,
    moment: Moment,
) -> Result<(), StoreError> {
    let settled = receipt.items.iter().map(|item| store.settle_item(item, real_cost, moment));
    join_all(settled).await.into_iter().collect()
}

/// Runs groups of charges in parallel; a result for each charge, in their order.
async fn run<S: Charged>(
    store: &Arc<S>,
    charges: &[CentralCharge],
    groups: Vec<Vec<usize>>,
    intent: Intent,
    moment: Moment,
) -> Vec<Result<Ran, StoreError>> {
    let ran = groups.iter().map(|group| {
        let charges = group.iter().map(|n| charges[*n].clone()).collect();
        store.run(charges, intent, moment)
    });
    join_all(ran).await.into_iter().flatten().collect()
}

struct Request<'r, S> {
    store: &'r Arc<S>,
    charges: &'r [CentralCharge],
    moment: Moment,
    /// What came of each charge that was asked.
    results: Vec<Option<Result<Ran, StoreError>>>,
}

impl<'r, S: Charged> Request<'r, S> {
    fn new(store: &'r Arc<S>, charges: &'r [CentralCharge], moment: Moment) -> Request<'r, S> {
        Request { store, charges, moment, results: charges.iter().map(|_| None).collect() }
    }

    /// Asks for `shared` once `owned` have answered. A server that keeps silent does not use up the time of the
    /// others: after half of it they are asked all the same, and give back what they took if a late answer denies.
    async fn ask_in_turn(&mut self, owned: &[usize], shared: &[usize]) {
        let (store, charges, moment) = (self.store, self.charges, self.moment);
        let half = moment.deadline.duration_since(Instant::now()) / 2;
        let groups = self.groups(owned);
        let mut answers = pin!(run(store, charges, groups.clone(), Intent::Take, moment));
        let in_time = match shared {
            [] => Ok(answers.as_mut().await),
            _ => timeout(half, answers.as_mut()).await,
        };
        match in_time {
            Ok(answers) => {
                self.note(groups, answers);
                self.ask(shared, self.intent()).await;
            }
            Err(_) => {
                let others = self.groups(shared);
                let asked = run(store, charges, others.clone(), Intent::Take, moment);
                let (late, answers) = join(answers, asked).await;
                self.note(groups, late);
                self.note(others, answers);
            }
        }
    }

    /// Asks for the charges with these numbers, those of one place together.
    async fn ask(&mut self, numbers: &[usize], intent: Intent) {
        self.ask_groups(self.groups(numbers), intent).await;
    }

    fn groups(&self, numbers: &[usize]) -> Vec<Vec<usize>> {
        let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
        for &n in numbers {
            let place = self.store.place(&self.charges[n]);
            match groups.iter_mut().find(|(known, _)| *known == place) {
                Some((_, group)) => group.push(n),
                None => groups.push((place, vec![n])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    async fn ask_groups(&mut self, groups: Vec<Vec<usize>>, intent: Intent) {
        let answers = run(self.store, self.charges, groups.clone(), intent, self.moment).await;
        self.note(groups, answers);
    }

    fn note(&mut self, groups: Vec<Vec<usize>>, answers: Vec<Result<Ran, StoreError>>) {
        for (n, result) in groups.into_iter().flatten().zip(answers) {
            self.results[n] = Some(result);
        }
    }

    /// Whether an enforced limit that could be asked has denied it.
    fn denied(&self) -> bool {
        self.charges.iter().zip(&self.results).any(|(charge, result)| match result {
            Some(Ok(ran)) => charge.weight == Weight::Enforced && !ran.part.decision.is_allowed(),
            _ => false,
        })
    }

    fn intent(&self) -> Intent {
        if self.denied() { Intent::Deny } else { Intent::Take }
    }

    /// Gives back what was taken, and goes on even if nobody waits for it.
    async fn give_back(&mut self) {
        let (mut items, mut unknown) = (Vec::new(), Vec::new());
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
        let (store, moment) = (self.store.clone(), self.moment.renewed());
        let given_back =
            tokio::spawn(async move { settle(&store, CentralReceipt { items }, 0, moment).await });
        // What is not given back in time stays charged: that denies others, and lets nobody through.
        let _ = timeout_at(self.moment.deadline, given_back).await;
        self.ask(&unknown, Intent::Peek).await;
    }

    fn outcome(self) -> CentralOutcome {
        let admitted = !self.denied();
        let parts: Vec<Result<Part, StoreError>> = self
            .results
            .into_iter()
            .map(|result| result.expect("every charge was asked").map(|ran| ran.part))
            .collect();
        CentralOutcome::of(self.charges, admitted, parts)
    }
}
