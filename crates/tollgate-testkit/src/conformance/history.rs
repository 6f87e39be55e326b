//! One random history: rules with their limits, and what happens to them.

use std::time::Duration;

use tollgate::internal::algorithm::{Admission, Algorithm};
use tollgate::internal::limit::Limit;
use tollgate::internal::store::{Charge, CounterKey, DeniedHits, Enforcement, LimitOutcome};
use tollgate::internal::time::Time;
use tollgate_stores::counters::{CentralCounter, CounterId};

use super::reference::{ExpectedAnswer, Reference, Settleable};
use super::{ChargeAnswer, Draw, HistoryKind, Scenario, Subject, key_parts};

const STEPS: usize = 60;
const BUSY_STEPS: usize = 300;
/// States are exact until 2106; histories end before.
const LAST: Time = Time::from_secs(4_000_000_000);
/// Receipts that can be settled later, at the most.
const MAX_RECEIPTS: usize = 8;

pub struct History {
    name: String,
    draw: Draw,
    rules: Vec<Rule>,
    start: Time,
    kind: HistoryKind,
}

struct Rule {
    counter: CounterId,
    /// They differ in their numbers only.
    limits: Vec<Limit>,
    limit: Limit,
    unit_cost: u64,
    weight: Enforcement,
    denied: DeniedHits,
    /// Its limit has changed and was not touched since.
    changed: bool,
}

/// A history on its way.
struct Run<'s, S: Subject> {
    subject: &'s S,
    reference: &'s mut Reference,
    now: Time,
    retry_at: Time,
    fresh_at: Time,
    receipts: Vec<(Vec<Settleable>, S::Receipt)>,
}

impl History {
    /// `None` if the store takes no limit of a family.
    pub fn draw(scenario: &Scenario, seed: u64, subject: &impl Subject) -> Option<History> {
        let mut draw = Draw::seeded(seed ^ (scenario.name.len() as u64) << 32);
        let name = format!("{}, seed {seed}", scenario.name);
        let rules = (0..scenario.rules)
            .map(|n| {
                let family = draw.pick(scenario.families);
                let limits = draw.limits(family, |limit| subject.takes(limit))?;
                let is_owned = !draw.one_in(3);
                let parts = key_parts(draw.pick(&["user:4 2", "ip:::1+user:4 2"]));
                let user = parts.len() - 1;
                let counter = CounterId {
                    domain: name.as_str().into(),
                    rule: format!("rule-{n}").into(),
                    key: if is_owned { CounterKey::owned(parts, user) } else { CounterKey::shared(parts) },
                };
                let shadow = scenario.rules > 1 && draw.one_in(4);
                let counted = draw.one_in(3) && limits.iter().all(|limit| subject.counts_denied(limit));
                Some(Rule {
                    counter,
                    limit: limits[0],
                    limits,
                    unit_cost: draw.pick(&[1, 1, 3]),
                    weight: if shadow { Enforcement::Shadow } else { Enforcement::Enforced },
                    denied: if counted { DeniedHits::Counted } else { DeniedHits::Free },
                    changed: false,
                })
            })
            .collect::<Option<Vec<_>>>()?;
        let start = Time::from_secs(1_800_000_000 + draw.below(400 * 86_400))
            + Duration::from_micros(draw.below(1_000_000));
        Some(History { name, draw, rules, start, kind: scenario.kind })
    }

    pub async fn run<S: Subject>(mut self, subject: &S, reference: &mut Reference) {
        let start = self.start;
        let mut run =
            Run { subject, reference, now: start, retry_at: start, fresh_at: start, receipts: Vec::new() };
        let steps = if self.kind == HistoryKind::Busy { BUSY_STEPS } else { STEPS };
        for step in 0..steps {
            run.now = self.after(&run);
            if run.now > LAST {
                break;
            }
            self.play(step, &mut run).await;
        }
        let all = self.charges(&run, 1);
        let answer = subject.peek(&all, run.now).await;
        self.compare(steps, &run, &all, &answer, &run.reference.peek(&all, run.now));
    }

    async fn play<S: Subject>(&mut self, step: usize, run: &mut Run<'_, S>) {
        let now = run.now;
        match self.draw.below(20) {
            0..3 => {
                let units = self.units(run);
                let charges = self.charges(run, units);
                let answer = run.subject.peek(&charges, now).await;
                let expected = run.reference.peek(&charges, now);
                self.compare(step, run, &charges, &answer, &expected);
            }
            3..6 if !run.receipts.is_empty() => {
                let at = self.draw.below(run.receipts.len() as u64) as usize;
                let (items, receipt) = run.receipts.swap_remove(at);
                let largest = items.iter().map(|item| item.grant.cost / item.unit_cost).max().unwrap_or(0);
                let real_cost = self.draw.pick(&[0, 0, largest / 2, largest, largest + 1, 3 * largest]);
                run.reference.settle(&items, real_cost, now);
                run.subject.settle(receipt, real_cost, now).await;
            }
            6 => {
                let at = self.draw.below(self.rules.len() as u64) as usize;
                let rule = &mut self.rules[at];
                rule.limit = self.draw.pick(&rule.limits);
                rule.changed = true;
                // What time gave back under the old rate is not known under the new one.
                run.receipts.retain(|(items, _)| items.iter().all(|item| item.counter != rule.counter));
            }
            7 if self.draw.one_in(4) => {
                let rule = self.draw.below(self.rules.len() as u64) as usize;
                let Rule { counter, limit, .. } = &self.rules[rule];
                run.reference.reset(counter, limit);
                run.subject.reset(counter, limit).await;
                run.receipts.clear();
            }
            _ => self.hit(step, run).await,
        }
    }

    async fn hit<S: Subject>(&mut self, step: usize, run: &mut Run<'_, S>) {
        let units = self.units(run);
        let mut charges = self.charges(run, units);
        // A changed limit is first touched alone: what a denied request of several rules leaves is not promised.
        if let Some(at) = self.rules.iter().position(|rule| rule.changed) {
            self.rules[at].changed = false;
            charges = vec![charges.swap_remove(at)];
        }
        let answer = run.subject.charge(&charges, run.now).await;
        let expected = run.reference.charge(&charges, run.now);
        self.compare(step, run, &charges, &answer, &expected);
        for part in &expected.parts {
            run.fresh_at = run.now + part.reset_after;
            if let Admission::Deny { retry_after } = part.decision.admission {
                run.retry_at = run.now + retry_after;
            }
        }
        if let Some(receipt) = answer.receipt {
            if run.receipts.len() == MAX_RECEIPTS {
                run.receipts.remove(0);
            }
            run.receipts.push((expected.items, receipt));
        }
    }

    fn charges<S: Subject>(&self, _run: &Run<'_, S>, units: u64) -> Vec<Charge> {
        self.rules
            .iter()
            .map(|rule| Charge {
                cost: units.saturating_mul(rule.unit_cost),
                unit_cost: rule.unit_cost,
                enforcement: rule.weight,
                denied_hits: rule.denied,
                ..Charge::central(CentralCounter { id: rule.counter.clone(), limit: rule.limit })
            })
            .collect()
    }

    /// What a hit costs, in units of its rules.
    fn units<S: Subject>(&mut self, run: &Run<'_, S>) -> u64 {
        let rule = &self.rules[self.draw.below(self.rules.len() as u64) as usize];
        let state = run.reference.state(&rule.counter, &rule.limit, run.now);
        let left = run.reference.quota(&rule.limit).decide(&state, run.now, 0).left / rule.unit_cost;
        let capacity = rule.limit.capacity() / rule.unit_cost;
        match self.draw.below(12) {
            _ if self.kind == HistoryKind::Busy && !self.draw.one_in(20) => 1,
            0 => left.max(1),
            1 => left + 1,
            2 => capacity.max(1),
            3 => capacity + 1,
            4 => (left / 2).max(1),
            5 => 2,
            _ => 1,
        }
    }

    /// The next time: now, or that of an event, or just beside it.
    fn after<S: Subject>(&mut self, run: &Run<'_, S>) -> Time {
        let unit = run.subject.unit();
        let rule = &self.rules[self.draw.below(self.rules.len() as u64) as usize];
        let period = Duration::from_secs(rule.limit.rate().period().secs());
        let at = match self.draw.below(12) {
            _ if self.kind == HistoryKind::Busy && !self.draw.one_in(20) => {
                run.now + period / 1000 * self.draw.below(20) as u32
            }
            0..4 => run.now,
            4 => run.now + unit,
            5 => run.retry_at - unit,
            6 => run.retry_at,
            7 => run.fresh_at - unit,
            8 => run.fresh_at,
            9 => run.now + period,
            10 if self.draw.one_in(3) => run.now + period * 3,
            _ => run.now + period / 1000 * self.draw.below(1000) as u32,
        };
        // A wait may last for decades: then something else happens first.
        let at = if at > LAST { run.now + period / 7 } else { at };
        let nanos = at.nanos().max(run.now.nanos());
        Time::from_nanos(nanos - nanos % unit.as_nanos() as u64)
    }

    fn compare<S: Subject, R>(
        &self,
        step: usize,
        run: &Run<'_, S>,
        charges: &[Charge],
        answer: &ChargeAnswer<R>,
        expected: &ExpectedAnswer,
    ) {
        let place = format!("{}, step {step}, at {:?}", self.name, run.now);
        let shown = |part: &LimitOutcome| {
            (part.decision, part.remaining, part.reset_after, part.grant.map(|g| (g.at, g.cost)))
        };
        for ((charge, got), due) in charges.iter().zip(&answer.parts).zip(&expected.parts) {
            let got = got.as_ref().unwrap_or_else(|error| panic!("{place}: {error}, {charge:?}"));
            assert_eq!(shown(got), shown(due), "{place}: the store and the reference differ, {charge:?}");
        }
        assert_eq!(answer.parts.len(), expected.parts.len(), "{place}: a part for every charge");
        assert_eq!(answer.admitted, expected.admitted, "{place}: admitted");
    }
}
