//! Clock-aligned windows as integers: added to in one round trip, and subtracted again on denial.
//!
//! The cost is added first and checked afterwards, so of two concurrent nodes at least one sees the other's. A denied
//! cost is subtracted again; until then other requests may be denied, never admitted (I3). Therefore a cost that was
//! recently denied is read first (`denied_costs`).

use std::sync::Arc;
use std::time::Duration;

use tollgate::Time;
use tollgate::internal::Limit;
use tollgate::internal::algorithm::fixed_window::FixedWindowState;
use tollgate::internal::algorithm::sliding_counter::SlidingCounterState;
use tollgate::internal::algorithm::{Correction, QuotaState};
use tollgate::internal::store::{Charge, DeniedHits, ReceiptItem};

use super::closed_windows::ClosedWindows;
use super::denied_costs::DeniedCosts;
use super::pool::MemcachedPool;
use super::server::MemcachedServer;
use super::wire::{MemcachedCommand, MemcachedReply};
use crate::counters::request::{CallTiming, ChargeMode, ChargeResult};
use crate::counters::{StoreError, decide};

/// After this a window has its last charges: clocks differ, and requests take time.
const CLOSED_AFTER: Duration = Duration::from_secs(2);

pub struct Windows {
    pub pool: Arc<MemcachedPool>,
    pub closed: ClosedWindows,
    pub denied: DeniedCosts,
}

/// The windows that a limit counts in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowKind {
    /// One calendar window.
    Fixed,
    /// The current clock-aligned window and the previous one, weighted.
    Sliding,
}

/// One counter at one timestamp.
struct WindowTarget<'p> {
    kind: WindowKind,
    limit: &'p Limit,
    name: &'p str,
    server: &'p MemcachedServer,
    now: Time,
}

/// What a charge adds to its window before the decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ChargePlan {
    /// Nothing: the charge changes no counter.
    Read,
    /// The cost, which is subtracted again if it is denied. A cost that was recently denied is read first.
    AddIfAllowed,
    /// This much of the cost of a hit that counts even if it is denied; what is above the limit is subtracted again.
    AddAtMost(u64),
}

impl ChargePlan {
    fn of(charge: &Charge, limit: &Limit, mode: ChargeMode) -> ChargePlan {
        let count = limit.rate().count();
        match (mode, charge.denied_hits) {
            (ChargeMode::Charge | ChargeMode::CountDenied, DeniedHits::Counted) => {
                ChargePlan::AddAtMost(charge.cost.min(count))
            }
            (ChargeMode::Charge, DeniedHits::Free) if charge.cost <= count => ChargePlan::AddIfAllowed,
            (ChargeMode::Charge | ChargeMode::CountDenied, DeniedHits::Free) | (ChargeMode::Peek, _) => {
                ChargePlan::Read
            }
        }
    }
}

impl Windows {
    /// Decides a charge, and applies it as far as `mode` permits.
    pub async fn charge(
        &self,
        kind: WindowKind,
        charge: &Charge,
        name: &str,
        mode: ChargeMode,
        timing: CallTiming,
    ) -> Result<ChargeResult, StoreError> {
        let limit = &charge.counter().limit;
        let target = self.target(kind, name, limit, timing.now);
        let plan = ChargePlan::of(charge, limit, mode);
        if plan == ChargePlan::AddIfAllowed && self.denied.is_likely_denied(target.name, charge.cost) {
            let peek = |state: &mut QuotaState| decide::charge(charge, ChargeMode::Peek, state, timing.now);
            let peeked = self.add_and_decide(&target, 0, timing, peek).await?.result;
            if !peeked.outcome.decision.is_allowed() {
                return Ok(peeked);
            }
        }
        let amount = match plan {
            ChargePlan::Read => 0,
            ChargePlan::AddIfAllowed => charge.cost,
            ChargePlan::AddAtMost(amount) => amount,
        };
        let run = |state: &mut QuotaState| decide::charge(charge, mode, state, timing.now);
        let charged = self.add_and_decide(&target, amount, timing, run).await?.result;
        if plan == ChargePlan::AddIfAllowed {
            match charged.outcome.decision.is_allowed() {
                true => self.denied.record_allowed(target.name, charge.cost),
                false => self.denied.record_denied(target.name, charge.cost),
            }
        }
        Ok(charged)
    }

    pub async fn settle(
        &self,
        kind: WindowKind,
        item: &ReceiptItem,
        name: &str,
        real_cost: u64,
        timing: CallTiming,
    ) -> Result<(), StoreError> {
        let limit = &item.counter().limit;
        let target = self.target(kind, name, limit, timing.now);
        let weighted_cost = item.unit_cost.saturating_mul(real_cost);
        let max_debt = limit.rate().count().saturating_mul(2);
        match item.grant.correction(weighted_cost) {
            Correction::None => Ok(()),
            Correction::Debt(more) => {
                let settle = |state: &mut QuotaState| decide::settle(item, real_cost, state, timing.now);
                self.add_and_decide(&target, more.min(max_debt), timing, settle).await
            }
            Correction::Refund(less) => self.refund(&target, item.grant.at, less, timing).await,
        }
    }

    /// Deletes a counter; returns whether it existed.
    pub async fn reset(
        &self,
        kind: WindowKind,
        name: &str,
        limit: &Limit,
        timing: CallTiming,
    ) -> Result<bool, StoreError> {
        let target = self.target(kind, name, limit, timing.now);
        self.closed.forget(target.name);
        let index = target.index_at(timing.now);
        let windows = match kind {
            WindowKind::Fixed => index..=index,
            WindowKind::Sliding => index.saturating_sub(1)..=index,
        };
        let deletes = windows.map(|window| MemcachedCommand::Delete { key: target.key(window) }).collect();
        let replies = target.server.execute(deletes, timing.deadline).await?;
        Ok(replies.contains(&MemcachedReply::Done))
    }

    /// Adds `amount` to the current window, lets `decide_on` decide on the state before, and subtracts what it has not
    /// charged.
    async fn add_and_decide<T>(
        &self,
        target: &WindowTarget<'_>,
        amount: u64,
        timing: CallTiming,
        decide_on: impl FnOnce(&mut QuotaState) -> T,
    ) -> Result<T, StoreError> {
        let index = target.index_at(timing.now);
        let key = target.key(index);
        let mut commands = vec![match amount {
            0 => MemcachedCommand::Get { key: key.clone() },
            _ => {
                MemcachedCommand::Add { key: key.clone(), amount, ttl: self.pool.ttl(target.lifetime(index)) }
            }
        }];
        let previous_index = index.saturating_sub(1);
        let known_previous = match target.kind {
            WindowKind::Fixed => Some(0),
            WindowKind::Sliding => self.closed.get(target.name, previous_index),
        };
        if known_previous.is_none() {
            commands.push(MemcachedCommand::Get { key: target.key(previous_index) });
        }
        let mut replies = target.server.execute(commands, timing.deadline).await?.into_iter();
        let mut next_count = || parse_count(target.server, replies.next());
        let sum = next_count()?;
        let previous = known_previous.map_or_else(next_count, Ok)?;
        if known_previous.is_none() && timing.now.since(target.start_of(index)) >= CLOSED_AFTER {
            self.closed.insert(target.name, previous_index, previous);
        }
        let mut state = target.state(index, sum.saturating_sub(amount), previous);
        let answer = decide_on(&mut state);
        let excess = sum.saturating_sub(count_of(&state)).min(amount);
        if excess > 0 {
            target.server.execute_detached(vec![MemcachedCommand::Subtract { key, amount: excess }]);
        }
        Ok(answer)
    }

    /// Subtracts `amount` from the window that was charged, if it still counts.
    async fn refund(
        &self,
        target: &WindowTarget<'_>,
        charged_at: Time,
        amount: u64,
        timing: CallTiming,
    ) -> Result<(), StoreError> {
        let charged = target.index_at(charged_at);
        let index = target.index_at(timing.now);
        let counts = match target.kind {
            // A window ahead of this node's clock was charged by another node, or before the clock was set back.
            WindowKind::Fixed => charged >= index,
            WindowKind::Sliding => charged + 1 >= index,
        };
        if !counts {
            return Ok(());
        }
        let subtract = MemcachedCommand::Subtract { key: target.key(charged), amount };
        let reply = target.server.execute_one(subtract, timing.deadline).await?;
        self.closed.forget(target.name);
        parse_count(target.server, Some(reply)).map(|_| ())
    }

    fn target<'p>(
        &'p self,
        kind: WindowKind,
        name: &'p str,
        limit: &'p Limit,
        now: Time,
    ) -> WindowTarget<'p> {
        let server = self.pool.server(name);
        WindowTarget { kind, limit, name, server, now }
    }
}

impl WindowTarget<'_> {
    fn index_at(&self, time: Time) -> u64 {
        let period = self.limit.rate().period();
        match self.kind {
            WindowKind::Fixed => period.index_at(time),
            WindowKind::Sliding => time.nanos() / period.nanos(),
        }
    }

    fn start_of(&self, index: u64) -> Time {
        let period = self.limit.rate().period();
        match self.kind {
            WindowKind::Fixed => period.start_of(index),
            WindowKind::Sliding => Time::from_nanos(index.saturating_mul(period.nanos())),
        }
    }

    fn key(&self, index: u64) -> String {
        format!("{}:{index}", self.name)
    }

    /// How long the count of a window matters.
    fn lifetime(&self, index: u64) -> Duration {
        let windows = match self.kind {
            WindowKind::Fixed => 1,
            WindowKind::Sliding => 2,
        };
        self.start_of(index + windows).since(self.now)
    }

    fn state(&self, index: u64, current: u64, previous: u64) -> QuotaState {
        match self.kind {
            WindowKind::Fixed => QuotaState::Window(FixedWindowState { id: index, count: current }),
            WindowKind::Sliding => {
                QuotaState::Counts(SlidingCounterState { window: index, current, previous })
            }
        }
    }
}

/// The count of the current window.
fn count_of(state: &QuotaState) -> u64 {
    match state {
        QuotaState::Window(window) => window.count,
        QuotaState::Counts(counts) => counts.current,
        _ => 0,
    }
}

/// A reply as a number; a miss is zero.
pub fn parse_count(server: &MemcachedServer, reply: Option<MemcachedReply>) -> Result<u64, StoreError> {
    match reply {
        Some(MemcachedReply::Value { data, .. }) => {
            let text = std::str::from_utf8(&data).ok();
            // Memcached pads a number that has lost a digit with a space.
            let number = text.and_then(|text| text.trim_end().parse().ok());
            number.ok_or_else(|| server.refused("the value under this counter's name is not a number"))
        }
        Some(MemcachedReply::Missing) => Ok(0),
        Some(MemcachedReply::Refused(reason)) => Err(server.refused(reason)),
        Some(MemcachedReply::Done | MemcachedReply::Conflict) | None => Err(server.unexpected_reply()),
    }
}
