//! Plays a history against the library and against the model, and checks at every step that they agree
//! and that the invariants hold.

use std::time::Duration;

use tollgate::internal::algorithm::{Admission, Algorithm, Decision, Grant, Quota, QuotaState};
use tollgate::internal::limit::{Limit, Refill, Shape};
use tollgate::internal::time::Time;

use super::History;
use super::ledger::Ledger;
use super::steps::{Action, Cost, Idle, LAST_NS, Step};
use crate::model::{self, Calendar, Every, Model};

pub struct Run<'a> {
    history: &'a History,
    every: Every,
    limit: Limit,
    quota: Quota,
    state: QuotaState,
    model: Box<dyn Model>,
    ledger: Ledger,
    now: u64,
    retry_at: u64,
    /// Hits that can be refunded, by their number.
    grants: Vec<(usize, Grant)>,
    events: Vec<Event>,
}

/// What has changed the state.
#[derive(Clone, Copy)]
enum Event {
    Charge {
        id: usize,
        at: u64,
        cost: u64,
    },
    Refund {
        id: usize,
        amount: u64,
        at: u64,
    },
    Adopt {
        limit: Limit,
        at: u64,
    },
    /// A debt or a drain: what they take depends on what there is.
    Other,
}

impl<'a> Run<'a> {
    pub fn check(history: &History) {
        let mut run = Run::new(history);
        for step in &history.steps {
            run.now = run.after(step.idle).clamp(run.now, LAST_NS);
            run.play(step);
            run.check_fresh();
        }
        run.ledger.check();
    }

    fn new(history: &'a History) -> Run<'a> {
        let every = history.case.every;
        let limit = history.case.limits[0];
        let quota = Quota::new(&limit);
        Run {
            history,
            every,
            limit,
            quota,
            state: quota.fresh(),
            model: model::of(&limit, every),
            ledger: Ledger::new(limit, every),
            now: history.start_ns,
            retry_at: 0,
            grants: Vec::new(),
            events: Vec::new(),
        }
    }

    fn after(&self, idle: Idle) -> u64 {
        let period_ns = self.every.nanos();
        match idle {
            Idle::None => self.now,
            Idle::Nanos(nanos) => self.now + nanos,
            Idle::Part(part, nanos) => self.now + period_ns / 1000 * part + nanos,
            Idle::Retry(beside) => beside.of(self.retry_at),
            Idle::Calendar(beside) => beside.of(Calendar::of(self.every).next(self.now)),
            Idle::Window(beside) => beside.of(Calendar::Even(period_ns).next(self.now)),
            Idle::Step(beside) => beside.of(Calendar::Even(self.step_ns()).next(self.now)),
            Idle::Fresh(beside) => beside.of(self.quota.expires_at(&self.state).nanos()),
        }
    }

    fn step_ns(&self) -> u64 {
        match self.limit.shape() {
            Shape::SlidingCompact { resolution: step }
            | Shape::TokenBucket { refill: Refill::Tick(step), .. } => step.as_nanos() as u64,
            Shape::TieredWindow { levels } => levels.finest().secs() * 1_000_000_000,
            Shape::Concurrency => 1_000,
            _ => 1_000_000_000,
        }
    }

    fn play(&mut self, step: &Step) {
        match &step.action {
            Action::Hit(cost) => self.hit(*cost),
            Action::Peek(cost) => {
                self.charge(*cost);
            }
            Action::Owe(cost) => self.owe(*cost),
            Action::Refund(which, part) => {
                if !self.grants.is_empty() {
                    let (id, grant) = self.grants.swap_remove(which.index(self.grants.len()));
                    self.refund(id, grant, (u128::from(grant.cost) * u128::from(*part) / 1000) as u64);
                }
            }
            Action::Adopt(which) => self.adopt(*which.get(&self.history.case.limits)),
        }
        assert_eq!(self.used(), self.model.used(self.now), "used");
    }

    fn time(&self) -> Time {
        Time::from_nanos(self.now)
    }

    fn used(&self) -> u64 {
        self.quota.used(&self.state, self.time())
    }

    fn cost(&self, cost: Cost) -> u64 {
        cost.resolve(self.quota.decide(&self.state, self.time(), 0).left, self.limit.capacity())
    }

    /// Peeks at both.
    fn charge(&mut self, cost: Cost) -> (u64, Decision) {
        let cost = self.cost(cost);
        let decision = self.quota.decide(&self.state, self.time(), cost);
        assert_eq!(decision, self.model.answer(self.now, cost), "a cost of {cost} at {}", self.now);
        assert_eq!(
            decision.left,
            self.limit.capacity().saturating_sub(self.used()),
            "left is what is unused"
        );
        if let Admission::Deny { retry_after } = decision.admission {
            self.check_retry(cost, retry_after);
        }
        (cost, decision)
    }

    /// The same cost, alone, passes then and fails one nanosecond earlier.
    fn check_retry(&mut self, cost: u64, retry_after: Duration) {
        assert!(!retry_after.is_zero(), "denied, and to be tried again at once");
        let then = self.time() + retry_after;
        self.retry_at = then.nanos();
        let passes = |at| self.quota.decide(&self.state, at, cost).is_allowed();
        assert!(!passes(then - Duration::from_nanos(1)), "passes before {retry_after:?} are over");
        assert!(passes(then) || then > Limit::HORIZON, "does not pass after {retry_after:?}");
    }

    fn hit(&mut self, cost: Cost) {
        let (cost, decision) = self.charge(cost);
        if decision.is_allowed() {
            let id = self.events.len();
            let now = self.time();
            self.quota.charge(&mut self.state, now, cost);
            self.model.charge(id, self.now, cost);
            self.ledger.admit(id, self.now, cost);
            self.grants.push((id, self.quota.grant(&self.state, now, cost)));
            self.events.push(Event::Charge { id, at: self.now, cost });
            let left = self.quota.decide(&self.state, now, 0).left;
            assert_eq!(left, decision.left - cost, "a charge takes its cost");
        } else if self.history.count_denied {
            self.drain(cost);
        }
    }

    fn drain(&mut self, cost: u64) {
        let now = self.time();
        let before = self.used();
        self.quota.drain(&mut self.state, now, cost);
        self.model.drain(self.now, cost);
        self.ledger.take();
        self.events.push(Event::Other);
        assert!(self.used() >= before, "counting a denied hit gave something back");
        // The counter weighs the previous window beside all that is received in this one.
        let capped = self.limit.shape() != Shape::SlidingCounter;
        assert!(!capped || self.used() <= before.max(self.limit.capacity()), "drained below empty");
    }

    fn owe(&mut self, cost: Cost) {
        let now = self.time();
        let before = self.used();
        let cost = self.cost(cost);
        self.quota.add_debt(&mut self.state, now, cost);
        self.model.owe(self.now, cost);
        self.ledger.take();
        self.events.push(Event::Other);
        assert!(self.used() >= before, "a debt gave something back");
        assert!(self.used() <= before.max(2 * self.limit.capacity()), "a debt of more than one capacity");
    }

    /// Gives back, but no more than if that much had never been charged.
    fn refund(&mut self, id: usize, grant: Grant, amount: u64) {
        let now = self.time();
        let before = self.used();
        let untouched = self.state.clone();
        self.quota.refund(&mut self.state, &grant, amount, now);
        self.model.refund(id, amount, self.now);
        assert!(before.saturating_sub(amount) <= self.used() && self.used() <= before, "gave back {amount}");
        if self.state != untouched {
            self.ledger.refund(id, amount, self.now);
            let never_charged = self.without(id, amount);
            let least = never_charged.map_or(0, |(quota, state)| quota.used(&state, now));
            assert!(self.used() >= least, "gave back more than if it had not been charged");
        }
        self.events.push(Event::Refund { id, amount, at: self.now });
    }

    /// The state as it would be if `amount` of hit `id` had never been charged.
    fn without(&self, id: usize, amount: u64) -> Option<(Quota, QuotaState)> {
        let first = self.history.case.limits[0];
        let mut quota = Quota::new(&first);
        let mut state = quota.fresh();
        let mut grants = std::collections::HashMap::new();
        for event in &self.events {
            match *event {
                Event::Charge { id: other, at, cost } => {
                    let at = Time::from_nanos(at);
                    let cost = if other == id { cost - amount } else { cost };
                    quota.charge(&mut state, at, cost);
                    grants.insert(other, Grant { at, cost, mark: quota.mark(&state) });
                }
                Event::Refund { id, amount, at } => {
                    quota.refund(&mut state, &grants[&id], amount, Time::from_nanos(at));
                }
                Event::Adopt { limit, at } => {
                    let new = Quota::new(&limit);
                    state = new.adopt(&quota, state, Time::from_nanos(at));
                    quota = new;
                }
                Event::Other => return None,
            }
        }
        Some((quota, state))
    }

    /// What was used stays used, whatever the new number.
    fn adopt(&mut self, limit: Limit) {
        assert!(limit.counts_like(&self.limit));
        let new = Quota::new(&limit);
        let before = self.used();
        self.state = new.adopt(&self.quota, self.state.clone(), self.time());
        self.quota = new;
        self.limit = limit;
        self.model.adopt(&limit, self.now);
        self.ledger.turn_over(limit);
        self.events.push(Event::Adopt { limit, at: self.now });
        assert_eq!(self.used(), before, "used under the new limit");
        if matches!(self.state, QuotaState::Timestamp(_)) {
            self.grants.clear(); // what was refilled under the old rate is not known any more
        }
    }

    /// From `fresh_at` on the state equals that of an unused key; a nanosecond before, it does not.
    fn check_fresh(&self) {
        let fresh_at = self.quota.expires_at(&self.state).max(self.time());
        if fresh_at > Limit::HORIZON {
            return;
        }
        let mut old = self.state.clone();
        let mut new = self.quota.fresh();
        let capacity = self.limit.capacity();
        for cost in [0, 1, capacity / 2, capacity, capacity.saturating_add(1), u64::MAX] {
            let fresh = self.quota.decide(&new, fresh_at, cost);
            assert_eq!(self.quota.decide(&old, fresh_at, cost), fresh, "at {fresh_at:?}");
            assert_eq!(fresh.left, capacity, "long idle is full, not fuller");
        }
        self.quota.charge(&mut old, fresh_at, capacity);
        self.quota.charge(&mut new, fresh_at, capacity);
        for later in [0, 1, self.every.nanos() / 3, self.every.nanos()] {
            let later = fresh_at + Duration::from_nanos(later);
            assert_eq!(self.quota.decide(&old, later, capacity), self.quota.decide(&new, later, capacity));
        }
        if fresh_at > self.time() {
            let before = fresh_at - Duration::from_nanos(1);
            assert!(self.quota.used(&self.state, before) > 0, "fresh before {fresh_at:?}");
        }
    }
}
