//! The specification: what a store must answer, by the library's pure functions.
//!
//! A charge, admitted or not, finds the state of its counter converted to its own limit, and leaves it so (I6).
//! All enforced charges are taken, or none; shadow charges are taken if the request passes and they allow it.

use std::collections::HashMap;
use std::time::Duration;

use tollgate::Time;
use tollgate::internal::Limit;
use tollgate::internal::algorithm::{Algorithm, Grant, Quota, QuotaState};
use tollgate::internal::limit::Shape;
use tollgate::internal::store::{Charge, DeniedHits, Enforcement, LimitOutcome};
use tollgate_stores::counters::{CounterId, name};

use super::{round_admission, round_up};

pub struct Reference {
    unit: Duration,
    states: HashMap<(CounterId, String), (Limit, QuotaState)>,
}

/// What can be settled.
pub struct Settleable {
    pub counter: CounterId,
    pub limit: Limit,
    pub unit_cost: u64,
    pub grant: Grant,
}

pub struct ExpectedAnswer {
    pub admitted: bool,
    pub parts: Vec<LimitOutcome>,
    pub items: Vec<Settleable>,
}

impl Reference {
    pub fn new(unit: Duration) -> Reference {
        Reference { unit, states: HashMap::new() }
    }

    pub fn quota(&self, limit: &Limit) -> Quota {
        Quota::in_unit(limit, self.unit)
    }

    /// The state that a charge under `limit` finds.
    pub fn state(&self, counter: &CounterId, limit: &Limit, now: Time) -> QuotaState {
        match self.states.get(&(counter.clone(), name::kind(limit))) {
            None => self.quota(limit).fresh(),
            Some((old, state)) if old == limit => state.clone(),
            Some((_, state)) if matches!(limit.shape(), Shape::Cell { .. }) => state.clone(),
            Some((old, state)) => self.quota(limit).adopt(&self.quota(old), state.clone(), now),
        }
    }

    pub fn charge(&mut self, charges: &[Charge], now: Time) -> ExpectedAnswer {
        for charge in charges {
            let state = self.state(&charge.counter().id, &charge.counter().limit, now);
            self.put(&charge.counter().id, &charge.counter().limit, state);
        }
        let mut expected = self.peek(charges, now);
        for (charge, part) in charges.iter().zip(&mut expected.parts) {
            let quota = self.quota(&charge.counter().limit);
            let mut state = self.state(&charge.counter().id, &charge.counter().limit, now);
            let allowed = part.decision.is_allowed();
            if expected.admitted && allowed {
                quota.charge(&mut state, now, charge.cost);
                let grant = quota.grant(&state, now, charge.cost);
                part.grant = Some(grant);
                part.remaining = part.decision.left - charge.cost;
                let (counter, limit, unit_cost) =
                    (charge.counter().id.clone(), charge.counter().limit, charge.unit_cost);
                expected.items.push(Settleable { counter, limit, unit_cost, grant });
            } else if !allowed && charge.denied_hits == DeniedHits::Counted {
                quota.drain(&mut state, now, charge.cost);
                part.decision = quota.decide(&state, now, charge.cost);
                part.decision.admission = round_admission(part.decision.admission, self.unit);
                part.remaining = part.decision.left;
            } else {
                continue;
            }
            part.reset_after = round_up(quota.expires_at(&state).since(now), self.unit);
            self.put(&charge.counter().id, &charge.counter().limit, state);
        }
        expected
    }

    pub fn peek(&self, charges: &[Charge], now: Time) -> ExpectedAnswer {
        let mut admitted = true;
        let parts = charges
            .iter()
            .map(|charge| {
                let quota = self.quota(&charge.counter().limit);
                let state = self.state(&charge.counter().id, &charge.counter().limit, now);
                let mut decision = quota.decide(&state, now, charge.cost);
                admitted &= decision.is_allowed() || charge.enforcement == Enforcement::Shadow;
                decision.admission = round_admission(decision.admission, self.unit);
                let reset_after = round_up(quota.expires_at(&state).since(now), self.unit);
                LimitOutcome { decision, remaining: decision.left, reset_after, grant: None }
            })
            .collect();
        ExpectedAnswer { admitted, parts, items: Vec::new() }
    }

    pub fn settle(&mut self, items: &[Settleable], real_cost: u64, now: Time) {
        for Settleable { counter, limit, unit_cost, grant } in items {
            let quota = self.quota(limit);
            let mut state = self.state(counter, limit, now);
            let real_cost = unit_cost * real_cost;
            match real_cost.checked_sub(grant.cost) {
                Some(more) => quota.add_debt(&mut state, now, more),
                None => quota.refund(&mut state, grant, grant.cost - real_cost, now),
            }
            self.put(counter, limit, state);
        }
    }

    pub fn reset(&mut self, counter: &CounterId, limit: &Limit) {
        self.states.remove(&(counter.clone(), name::kind(limit)));
    }

    fn put(&mut self, counter: &CounterId, limit: &Limit, state: QuotaState) {
        self.states.insert((counter.clone(), name::kind(limit)), (*limit, state));
    }
}
