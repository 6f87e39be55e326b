//! Windows of the clock as numbers: added to in one round trip, and taken off again if it was too much.
//!
//! The cost is added first and looked at afterwards, so of two nodes that ask at the same instant one sees
//! the other. A denied cost is taken off: until then others may be denied, and nobody is let through. So a cost that
//! was denied lately is read first (`denied`).

use std::sync::Arc;
use std::time::Duration;

use tollgate::algorithm::State;
use tollgate::algorithm::fixed_window::Window;
use tollgate::algorithm::sliding_counter::Counts;
use tollgate::store::DeniedHits;
use tollgate::{Limit, Time};

use super::closed::ClosedWindows;
use super::denied::DeniedCosts;
use super::fleet::Fleet;
use super::server::Server;
use super::wire::{Command, Reply};
use crate::counters::cells::Moment;
use crate::counters::demand::{self, Intent, Ran};
use crate::counters::{CentralCharge, CentralReceiptItem, Counter, StoreError};

/// A window that ended this long ago has its last charges: clocks differ, and answers take their time.
const CLOSED_AFTER: Duration = Duration::from_secs(2);

pub struct Windows {
    pub fleet: Arc<Fleet>,
    pub closed: ClosedWindows,
    pub denied: DeniedCosts,
}

/// Which windows a limit counts in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One window, that of the calendar.
    Fixed,
    /// That of the clock, and the one before.
    Sliding,
}

/// One counter at one instant.
struct Place<'p> {
    kind: Kind,
    limit: &'p Limit,
    name: String,
    server: &'p Server,
    now: Time,
}

impl Windows {
    /// Decides a charge, and takes it as far as it is intended.
    pub async fn run(
        &self,
        kind: Kind,
        charge: &CentralCharge,
        intent: Intent,
        moment: Moment,
    ) -> Result<Ran, StoreError> {
        let place = self.place(kind, &charge.counter, &charge.limit, moment.now);
        let counted = charge.denied == DeniedHits::Counted;
        let fits = charge.cost <= charge.limit.rate().count();
        let amount = match intent {
            Intent::Take if fits => charge.cost,
            Intent::Take | Intent::Deny if counted => charge.cost.min(charge.limit.rate().count()),
            _ => 0,
        };
        let takes = intent == Intent::Take && fits && !counted;
        if takes && self.denied.is_likely(&place.name, charge.cost) {
            let peek = |state: &mut State| demand::run(charge, Intent::Peek, state, moment.now);
            let ran = self.change(&place, 0, moment, peek).await?;
            if !ran.part.decision.is_allowed() {
                return Ok(ran);
            }
        }
        let run = |state: &mut State| demand::run(charge, intent, state, moment.now);
        let ran = self.change(&place, amount, moment, run).await?;
        match ran.part.decision.is_allowed() {
            true if takes => self.denied.allowed(&place.name, charge.cost),
            false if takes => self.denied.denied(&place.name, charge.cost),
            _ => {}
        }
        Ok(ran)
    }

    pub async fn settle(
        &self,
        kind: Kind,
        item: &CentralReceiptItem,
        real_cost: u64,
        moment: Moment,
    ) -> Result<(), StoreError> {
        let place = self.place(kind, &item.counter, &item.limit, moment.now);
        let real_cost_here = item.unit_cost.saturating_mul(real_cost);
        let most = item.limit.rate().count().saturating_mul(2);
        match real_cost_here.checked_sub(item.grant.cost) {
            Some(0) => Ok(()),
            Some(more) => {
                let settle = |state: &mut State| demand::settle(item, real_cost, state, moment.now);
                self.change(&place, more.min(most), moment, settle).await
            }
            None => self.give_back(&place, item.grant.at, item.grant.cost - real_cost_here, moment).await,
        }
    }

    /// Forgets a counter; says whether it was there.
    pub async fn reset(
        &self,
        kind: Kind,
        counter: &Counter,
        limit: &Limit,
        moment: Moment,
    ) -> Result<bool, StoreError> {
        let place = self.place(kind, counter, limit, moment.now);
        self.closed.forget(&place.name);
        let index = place.index_at(moment.now);
        let windows = match kind {
            Kind::Fixed => index..=index,
            Kind::Sliding => index.saturating_sub(1)..=index,
        };
        let deletes = windows.map(|window| Command::Delete { key: place.key(window) }).collect();
        let replies = place.server.ask(deletes, moment.deadline).await?;
        Ok(replies.contains(&Reply::Done))
    }

    /// Adds `amount` to the running window, lets `act` decide on what was there before, and takes off again
    /// what it does not leave there.
    async fn change<T>(
        &self,
        place: &Place<'_>,
        amount: u64,
        moment: Moment,
        act: impl FnOnce(&mut State) -> T,
    ) -> Result<T, StoreError> {
        let index = place.index_at(moment.now);
        let key = place.key(index);
        let mut commands = vec![match amount {
            0 => Command::Get { key: key.clone() },
            _ => Command::Add { key: key.clone(), amount, ttl: self.fleet.ttl(place.lifetime(index)) },
        }];
        let before_it = index.saturating_sub(1);
        let known = match place.kind {
            Kind::Fixed => Some(0),
            Kind::Sliding => self.closed.get(&place.name, before_it),
        };
        if known.is_none() {
            commands.push(Command::Get { key: place.key(before_it) });
        }
        let mut replies = place.server.ask(commands, moment.deadline).await?.into_iter();
        let mut number = || number(place.server, replies.next());
        let sum = number()?;
        let previous = known.map_or_else(number, Ok)?;
        if known.is_none() && moment.now.since(place.start_of(index)) >= CLOSED_AFTER {
            self.closed.keep(&place.name, before_it, previous);
        }
        let mut state = place.state(index, sum.saturating_sub(amount), previous);
        let answer = act(&mut state);
        let excess = sum.saturating_sub(count_of(&state)).min(amount);
        if excess > 0 {
            place.server.tell(vec![Command::Take { key, amount: excess }]);
        }
        Ok(answer)
    }

    /// Takes `amount` off the window that was charged, as long as it counts.
    async fn give_back(
        &self,
        place: &Place<'_>,
        charged_at: Time,
        amount: u64,
        moment: Moment,
    ) -> Result<(), StoreError> {
        let (charged, index) = (place.index_at(charged_at), place.index_at(moment.now));
        let counts = match place.kind {
            // A window ahead of this node's clock was charged by another node, or before the clock went back.
            Kind::Fixed => charged >= index,
            Kind::Sliding => charged + 1 >= index,
        };
        if !counts {
            return Ok(());
        }
        let take = Command::Take { key: place.key(charged), amount };
        let reply = place.server.ask_one(take, moment.deadline).await?;
        self.closed.forget(&place.name);
        number(place.server, Some(reply)).map(|_| ())
    }

    fn place<'p>(&'p self, kind: Kind, counter: &Counter, limit: &'p Limit, now: Time) -> Place<'p> {
        let name = self.fleet.name(counter, limit);
        let server = self.fleet.server(&name);
        Place { kind, limit, name, server, now }
    }
}

impl Place<'_> {
    fn index_at(&self, time: Time) -> u64 {
        let period = self.limit.rate().period();
        match self.kind {
            Kind::Fixed => period.index_at(time),
            Kind::Sliding => time.nanos() / period.nanos(),
        }
    }

    fn start_of(&self, index: u64) -> Time {
        let period = self.limit.rate().period();
        match self.kind {
            Kind::Fixed => period.start_of(index),
            Kind::Sliding => Time::from_nanos(index.saturating_mul(period.nanos())),
        }
    }

    fn key(&self, index: u64) -> String {
        format!("{}:{index}", self.name)
    }

    /// How long the count of a window is of interest.
    fn lifetime(&self, index: u64) -> Duration {
        let windows = match self.kind {
            Kind::Fixed => 1,
            Kind::Sliding => 2,
        };
        self.start_of(index + windows).since(self.now)
    }

    fn state(&self, index: u64, current: u64, previous: u64) -> State {
        match self.kind {
            Kind::Fixed => State::Window(Window { name: index, count: current }),
            Kind::Sliding => State::Counts(Counts { window: index, current, previous }),
        }
    }
}

/// The count of the running window.
fn count_of(state: &State) -> u64 {
    match state {
        State::Window(window) => window.count,
        State::Counts(counts) => counts.current,
        _ => 0,
    }
}

/// A reply as a number; nothing there is zero.
pub fn number(server: &Server, reply: Option<Reply>) -> Result<u64, StoreError> {
    match reply {
        Some(Reply::Value { data, .. }) => {
            let text = std::str::from_utf8(&data).ok();
            // A number that lost a digit is padded.
            let number = text.and_then(|text| text.trim_end().parse().ok());
            number
                .ok_or_else(|| server.refused("it holds a value under this counter's name that is no number"))
        }
        Some(Reply::Missing) => Ok(0),
        Some(Reply::Refused(reason)) => Err(server.refused(reason)),
        Some(Reply::Done | Reply::Conflict) | None => Err(server.out_of_step()),
    }
}
