//! A tiered window as numbers: a bucket of every level is added to, and the window's buckets are summed, in
//! one round trip; what was too much is taken off again.
//!
//! The coarsest bucket is added to first, and everything is added before anything is read, so of two nodes
//! that ask at the same instant at least one sees the other. A node whose clock is a moment ahead has
//! written into the next step: that is counted too.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tollgate::Time;
use tollgate::algorithm::Admission;
use tollgate::algorithm::tiered_window::TieredWindow;
use tollgate::limit::{Levels, Limit, Shape};
use tollgate::store::DeniedHits;

use super::buckets::{Bucket, Buckets};
use super::denied::DeniedCosts;
use super::fleet::Fleet;
use super::server::Server;
use super::windows::number;
use super::wire::{Command, Reply};
use crate::counters::cells::Moment;
use crate::counters::demand::{self, Intent, Ran};
use crate::counters::{CentralCharge, CentralReceiptItem, Counter, StoreError};

/// Buckets that are asked for at once when a counter is forgotten.
const MAX_ASKED: usize = 1024;

pub struct TierSums {
    pub fleet: Arc<Fleet>,
    pub denied: DeniedCosts,
}

/// One counter at one instant.
struct Place<'p> {
    window: TieredWindow,
    levels: Levels,
    limit: &'p Limit,
    name: String,
    server: &'p Server,
    now: Time,
    fleet: &'p Fleet,
}

impl TierSums {
    pub async fn run(
        &self,
        charge: &CentralCharge,
        intent: Intent,
        moment: Moment,
    ) -> Result<Ran, StoreError> {
        let place = self.place(&charge.counter, &charge.limit, moment.now)?;
        if charge.denied == DeniedHits::Counted && intent != Intent::Peek {
            return Err(place.server.refused("denied hits cannot be counted in a tiered window here"));
        }
        let fits = charge.cost <= charge.limit.rate().count();
        let amount = if intent == Intent::Take && fits { charge.cost } else { 0 };
        let mut added = if self.denied.is_likely(&place.name, amount) { 0 } else { amount };
        let mut buckets = place.add_and_read(added, moment.deadline).await?;
        let mut ran = demand::run(charge, intent, &mut buckets.state(), moment.now);
        if added < amount && ran.part.decision.is_allowed() {
            added = amount;
            buckets = place.add_and_read(added, moment.deadline).await?;
            ran = demand::run(charge, intent, &mut buckets.state(), moment.now);
        }
        if ran.part.grant.is_some() {
            self.denied.allowed(&place.name, amount);
            return Ok(Ran { before: None, ..ran });
        }
        if added > 0 {
            self.denied.denied(&place.name, amount);
            place.server.tell(place.takes(place.step_at(moment.now), added));
        }
        // When it is free again, and when it is as good as never seen, only the finest buckets know.
        let excess = match ran.part.decision.admission {
            Admission::Deny { .. } => buckets.sum() + charge.cost - charge.limit.rate().count(),
            _ => 0,
        };
        while let Some(bucket) = buckets.too_coarse(excess).first() {
            let finer: Vec<_> = bucket.parts(&place.levels).collect();
            let counts = place.read(&finer, moment.deadline).await?;
            buckets.refine(bucket, finer.into_iter().zip(counts).collect());
        }
        Ok(demand::run(charge, Intent::Peek, &mut buckets.state(), moment.now))
    }

    pub async fn settle(
        &self,
        item: &CentralReceiptItem,
        real_cost: u64,
        moment: Moment,
    ) -> Result<(), StoreError> {
        let place = self.place(&item.counter, &item.limit, moment.now)?;
        let step = place.step_at(item.grant.at);
        let real_cost = item.unit_cost.saturating_mul(real_cost);
        match real_cost.checked_sub(item.grant.cost) {
            Some(0) => Ok(()),
            Some(more) => place.owe(more, moment).await,
            None if step < place.oldest_step() => Ok(()),
            None => {
                let takes = place.takes(step, item.grant.cost - real_cost);
                place.server.ask(takes, moment.deadline).await.map(|_| ())
            }
        }
    }

    /// Forgets a counter; says whether it was there.
    pub async fn reset(&self, counter: &Counter, limit: &Limit, moment: Moment) -> Result<bool, StoreError> {
        let place = self.place(counter, limit, moment.now)?;
        let coarsest = place.levels.units().len() - 1;
        let unit = |level: usize| place.levels.units()[level].secs();
        let first = place.oldest_step() * unit(0) / unit(coarsest);
        let last = (place.step_at(moment.now) + 1) * unit(0) / unit(coarsest);
        let mut buckets: Vec<_> = (first..=last).map(|number| Bucket { level: coarsest, number }).collect();
        let mut found = false;
        while !buckets.is_empty() {
            let mut finer = Vec::new();
            for some in buckets.chunks(MAX_ASKED) {
                let deletes = some.iter().map(|bucket| Command::Delete { key: place.key(bucket) }).collect();
                let replies = place.server.ask(deletes, moment.deadline).await?;
                for (bucket, reply) in some.iter().zip(replies) {
                    found |= reply == Reply::Done;
                    // One that began before the window has expired before its parts.
                    if reply == Reply::Done || bucket.first_step(&place.levels) < place.oldest_step() {
                        finer.extend(bucket.parts(&place.levels));
                    }
                }
            }
            buckets = finer;
        }
        Ok(found)
    }

    fn place<'p>(&'p self, counter: &Counter, limit: &'p Limit, now: Time) -> Result<Place<'p>, StoreError> {
        let name = self.fleet.name(counter, limit);
        let server = self.fleet.server(&name);
        let Shape::TieredWindow { levels } = limit.shape() else {
            return Err(server.refused("this limit has no tiers"));
        };
        let rate = limit.rate();
        let window = TieredWindow::new(rate.count(), rate.period(), levels);
        Ok(Place { window, levels, limit, name, server, now, fleet: &self.fleet })
    }
}

impl Place<'_> {
    /// Adds `amount` to the running step, and reads the window without it.
    async fn add_and_read(&self, amount: u64, deadline: Instant) -> Result<Buckets, StoreError> {
        let step = self.step_at(self.now);
        let covered: Vec<_> = self
            .window
            .cover(self.now)
            .into_iter()
            .flat_map(|run| (run.from..=run.to).map(move |number| Bucket { level: run.level, number }))
            .collect();
        let ahead = Bucket { level: 0, number: step + 1 };
        let mut commands = if amount > 0 { self.adds(step, amount) } else { Vec::new() };
        let added = commands.len();
        commands.extend(covered.iter().chain([&ahead]).map(|bucket| self.get(bucket)));
        let replies = self.server.ask(commands, deadline).await?;
        let mut counts = replies.into_iter().skip(added).map(|reply| number(self.server, Some(reply)));
        // The next step counts as if it were the running one.
        let others = counts.next_back().unwrap_or(Ok(0))?;
        let mut read = Vec::with_capacity(covered.len());
        for bucket in covered {
            let count = counts.next().unwrap_or(Ok(0))?;
            let running = self.buckets_of(step).any(|own| own == bucket);
            read.push((bucket, if running { count.saturating_sub(amount) + others } else { count }));
        }
        Ok(Buckets::new(self.levels, read))
    }

    async fn read(&self, buckets: &[Bucket], deadline: Instant) -> Result<Vec<u64>, StoreError> {
        let gets = buckets.iter().map(|bucket| self.get(bucket)).collect();
        let replies = self.server.ask(gets, deadline).await?;
        replies.into_iter().map(|reply| number(self.server, Some(reply))).collect()
    }

    /// Takes a cost that became known too late to deny it; the debt is at most one capacity.
    async fn owe(&self, more: u64, moment: Moment) -> Result<(), StoreError> {
        let most = self.limit.rate().count().saturating_mul(2);
        let amount = more.min(most);
        if amount == 0 {
            return Ok(());
        }
        let used = self.add_and_read(amount, moment.deadline).await?.sum();
        let excess = amount - amount.min(most.saturating_sub(used));
        if excess > 0 {
            self.server.tell(self.takes(self.step_at(self.now), excess));
        }
        Ok(())
    }

    /// Coarsest first.
    fn adds(&self, step: u64, amount: u64) -> Vec<Command> {
        let add = |bucket: Bucket| {
            let ttl = self.fleet.ttl(self.lifetime(&bucket));
            Command::Add { key: self.key(&bucket), amount, ttl }
        };
        self.buckets_of(step).rev().map(add).collect()
    }

    fn takes(&self, step: u64, amount: u64) -> Vec<Command> {
        self.buckets_of(step).map(|bucket| Command::Take { key: self.key(&bucket), amount }).collect()
    }

    fn get(&self, bucket: &Bucket) -> Command {
        Command::Get { key: self.key(bucket) }
    }

    /// The buckets of all levels that hold a step, finest first.
    fn buckets_of(&self, step: u64) -> impl DoubleEndedIterator<Item = Bucket> {
        let seconds = step * self.levels.finest().secs();
        let units = self.levels.units().iter().enumerate();
        units.map(move |(level, unit)| Bucket { level, number: seconds / unit.secs() })
    }

    fn key(&self, bucket: &Bucket) -> String {
        let unit = self.levels.names().nth(bucket.level).unwrap_or_default();
        format!("{}:{unit}{}", self.name, bucket.number)
    }

    /// As long as the whole bucket is in the window: from then on its parts are read.
    fn lifetime(&self, bucket: &Bucket) -> Duration {
        let start = bucket.number * self.levels.units()[bucket.level].secs();
        Time::from_secs(start + self.limit.rate().period().secs()).since(self.now)
    }

    fn step_at(&self, time: Time) -> u64 {
        time.secs() / self.levels.finest().secs()
    }

    fn oldest_step(&self) -> u64 {
        let steps = self.limit.rate().period().secs() / self.levels.finest().secs();
        (self.step_at(self.now) + 1).saturating_sub(steps)
    }
}
