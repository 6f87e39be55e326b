//! A tiered window as integers: one round trip adds to a bucket of every level and reads the window's buckets; an
//! excess is subtracted again.
//!
//! The coarsest bucket is incremented first, and all increments precede all reads, so of two concurrent nodes at least
//! one sees the other's cost. A node whose clock is slightly ahead has written into the next step: that step is
//! counted too.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tollgate::Time;
use tollgate::internal::algorithm::tiered_window::TieredWindow;
use tollgate::internal::algorithm::{Admission, Correction};
use tollgate::internal::limit::{Levels, Limit, Shape};
use tollgate::internal::store::{Charge, DeniedHits, ReceiptItem};

use super::buckets::{Bucket, Buckets};
use super::denied_costs::DeniedCosts;
use super::pool::MemcachedPool;
use super::server::MemcachedServer;
use super::windows::parse_count;
use super::wire::{MemcachedCommand, MemcachedReply};
use crate::counters::request::{CallTiming, ChargeMode, ChargeResult};
use crate::counters::{StoreError, decide};

/// Buckets per batch when a counter is deleted.
const MAX_DELETES: usize = 1024;

pub struct TierSums {
    pub pool: Arc<MemcachedPool>,
    pub denied: DeniedCosts,
}

/// One counter at one timestamp.
struct TierTarget<'p> {
    window: TieredWindow,
    levels: Levels,
    limit: &'p Limit,
    name: &'p str,
    server: &'p MemcachedServer,
    now: Time,
    pool: &'p MemcachedPool,
}

impl TierSums {
    pub async fn charge(
        &self,
        charge: &Charge,
        name: &str,
        mode: ChargeMode,
        timing: CallTiming,
    ) -> Result<ChargeResult, StoreError> {
        let limit = &charge.counter().limit;
        let target = self.target(name, limit, timing.now)?;
        if charge.denied_hits == DeniedHits::Counted && mode != ChargeMode::Peek {
            return Err(target.server.refused("denied hits cannot be counted in a tiered window here"));
        }
        let fits = charge.cost <= limit.rate().count();
        let amount = if mode == ChargeMode::Charge && fits { charge.cost } else { 0 };
        let mut added = if self.denied.is_likely_denied(target.name, amount) { 0 } else { amount };
        let mut buckets = target.add_and_read(added, timing.deadline).await?;
        let mut charged = decide::charge(charge, mode, &mut buckets.state(), timing.now).result;
        if added < amount && charged.outcome.decision.is_allowed() {
            added = amount;
            buckets = target.add_and_read(added, timing.deadline).await?;
            charged = decide::charge(charge, mode, &mut buckets.state(), timing.now).result;
        }
        if charged.outcome.grant.is_some() {
            self.denied.record_allowed(target.name, amount);
            return Ok(ChargeResult { before: None, ..charged });
        }
        if added > 0 {
            self.denied.record_denied(target.name, amount);
            target.server.execute_detached(target.subtracts(target.step_at(timing.now), added));
        }
        // Retry and reset times need the finest buckets.
        let excess = match charged.outcome.decision.admission {
            Admission::Deny { .. } => buckets.sum() + charge.cost - limit.rate().count(),
            _ => 0,
        };
        while let Some(bucket) = buckets.too_coarse(excess).first() {
            let finer: Vec<_> = bucket.children(&target.levels).collect();
            let counts = target.read(&finer, timing.deadline).await?;
            buckets.refine(bucket, finer.into_iter().zip(counts).collect());
        }
        Ok(decide::charge(charge, ChargeMode::Peek, &mut buckets.state(), timing.now).result)
    }

    pub async fn settle(
        &self,
        item: &ReceiptItem,
        name: &str,
        real_cost: u64,
        timing: CallTiming,
    ) -> Result<(), StoreError> {
        let target = self.target(name, &item.counter().limit, timing.now)?;
        let step = target.step_at(item.grant.at);
        let real_cost = item.unit_cost.saturating_mul(real_cost);
        match item.grant.correction(real_cost) {
            Correction::None => Ok(()),
            Correction::Debt(more) => target.add_debt(more, timing).await,
            Correction::Refund(_) if step < target.oldest_step() => Ok(()),
            Correction::Refund(less) => {
                let subtracts = target.subtracts(step, less);
                target.server.execute(subtracts, timing.deadline).await.map(|_| ())
            }
        }
    }

    /// Deletes a counter; returns whether it existed.
    pub async fn reset(&self, name: &str, limit: &Limit, timing: CallTiming) -> Result<bool, StoreError> {
        let target = self.target(name, limit, timing.now)?;
        let coarsest = target.levels.units().len() - 1;
        let unit = |level: usize| target.levels.units()[level].secs();
        let first = target.oldest_step() * unit(0) / unit(coarsest);
        let last = (target.step_at(timing.now) + 1) * unit(0) / unit(coarsest);
        let mut buckets: Vec<_> = (first..=last).map(|number| Bucket { level: coarsest, number }).collect();
        let mut found = false;
        while !buckets.is_empty() {
            let mut finer = Vec::new();
            for some in buckets.chunks(MAX_DELETES) {
                let deletes =
                    some.iter().map(|bucket| MemcachedCommand::Delete { key: target.key(bucket) }).collect();
                let replies = target.server.execute(deletes, timing.deadline).await?;
                for (bucket, reply) in some.iter().zip(replies) {
                    found |= reply == MemcachedReply::Done;
                    // A bucket that began before the window expires before its parts.
                    if reply == MemcachedReply::Done
                        || bucket.first_step(&target.levels) < target.oldest_step()
                    {
                        finer.extend(bucket.children(&target.levels));
                    }
                }
            }
            buckets = finer;
        }
        Ok(found)
    }

    fn target<'p>(
        &'p self,
        name: &'p str,
        limit: &'p Limit,
        now: Time,
    ) -> Result<TierTarget<'p>, StoreError> {
        let server = self.pool.server(name);
        let Shape::TieredWindow { levels } = limit.shape() else {
            return Err(server.refused("this limit has no tiers"));
        };
        let rate = limit.rate();
        let window = TieredWindow::new(rate.count(), rate.period(), levels);
        Ok(TierTarget { window, levels, limit, name, server, now, pool: &self.pool })
    }
}

impl TierTarget<'_> {
    /// Adds `amount` to the current step, and reads the window without it.
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
        let replies = self.server.execute(commands, deadline).await?;
        let mut counts = replies.into_iter().skip(added).map(|reply| parse_count(self.server, Some(reply)));
        // The next step counts into the current one.
        let next_step_count = counts.next_back().unwrap_or(Ok(0))?;
        let mut read = Vec::with_capacity(covered.len());
        for bucket in covered {
            let count = counts.next().unwrap_or(Ok(0))?;
            let is_current = self.buckets_of(step).any(|own| own == bucket);
            read.push((
                bucket,
                if is_current { count.saturating_sub(amount) + next_step_count } else { count },
            ));
        }
        Ok(Buckets::new(self.levels, read))
    }

    async fn read(&self, buckets: &[Bucket], deadline: Instant) -> Result<Vec<u64>, StoreError> {
        let gets = buckets.iter().map(|bucket| self.get(bucket)).collect();
        let replies = self.server.execute(gets, deadline).await?;
        replies.into_iter().map(|reply| parse_count(self.server, Some(reply))).collect()
    }

    /// Adds a cost that became known too late to deny it; the debt is at most one capacity.
    async fn add_debt(&self, more: u64, timing: CallTiming) -> Result<(), StoreError> {
        let max_sum = self.limit.rate().count().saturating_mul(2);
        let amount = more.min(max_sum);
        if amount == 0 {
            return Ok(());
        }
        let used = self.add_and_read(amount, timing.deadline).await?.sum();
        let excess = amount - amount.min(max_sum.saturating_sub(used));
        if excess > 0 {
            self.server.execute_detached(self.subtracts(self.step_at(self.now), excess));
        }
        Ok(())
    }

    /// Coarsest first.
    fn adds(&self, step: u64, amount: u64) -> Vec<MemcachedCommand> {
        let add = |bucket: Bucket| {
            let ttl = self.pool.ttl(self.lifetime(&bucket));
            MemcachedCommand::Add { key: self.key(&bucket), amount, ttl }
        };
        self.buckets_of(step).rev().map(add).collect()
    }

    fn subtracts(&self, step: u64, amount: u64) -> Vec<MemcachedCommand> {
        self.buckets_of(step)
            .map(|bucket| MemcachedCommand::Subtract { key: self.key(&bucket), amount })
            .collect()
    }

    fn get(&self, bucket: &Bucket) -> MemcachedCommand {
        MemcachedCommand::Get { key: self.key(bucket) }
    }

    /// The buckets of all levels that contain a step, finest first.
    fn buckets_of(&self, step: u64) -> impl DoubleEndedIterator<Item = Bucket> {
        let seconds = step * self.levels.finest().secs();
        let units = self.levels.units().iter().enumerate();
        units.map(move |(level, unit)| Bucket { level, number: seconds / unit.secs() })
    }

    fn key(&self, bucket: &Bucket) -> String {
        let unit = self.levels.names().nth(bucket.level).unwrap_or_default();
        format!("{}:{unit}{}", self.name, bucket.number)
    }

    /// Until the bucket is only partly in the window: from then on its parts are read.
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
