//! Decisions of the whole node, merged from the batches of all threads: series, keys, and the latest decisions.
//!
//! Every structure has a named bound; [`InsightData::MAX_BYTES`] adds them up.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};

use tollgate::internal::rule::RuleId;
use tollgate::internal::verdict::Reason;

use super::batch::{DecisionBatch, ListedDecision, RuleCount};
use super::history::{self, MinuteCounts};
use super::key_text::{MAX_KEY_TEXT, SHARED_TEXT_BYTES};
use super::latencies::Latencies;
use super::point_ring::Point;
use super::rule_history::{MAX_SECONDS, MINUTE, RuleHistory};
use super::top_keys::{KeyWeight, TopKeys, TopOutcome};

/// Rules with a series of their own; the rest are counted together.
pub const MAX_RULES: usize = 100;
/// Rules that may become one of them.
const MAX_CANDIDATES: usize = 1_024;
/// A rule replaces the least active one if it is this many times as active.
const REPLACING_FACTOR: f64 = 2.0;
/// Decisions that are listed, per outcome.
pub const MAX_DECISIONS: usize = 1_000;
/// Rules and decisions in the summary of a second.
const MAX_SUMMARY: usize = 20;

pub struct InsightData {
    started: u64,
    /// The second that is not complete yet.
    second: u64,
    total: RuleHistory,
    other: RuleHistory,
    rules: Vec<RuleHistory>,
    places: HashMap<RuleId, usize>,
    /// Rules without a series by their activity, with exponential decay.
    candidates: HashMap<RuleId, f64>,
    pub top: TopKeys,
    denied: VecDeque<ListedDecision>,
    allowed: VecDeque<ListedDecision>,
    /// The decisions of the current second.
    latest: Vec<ListedDecision>,
    latencies: Latencies,
    near: u32,
    details: Box<[SecondDetail]>,
}

/// What is kept of a second for the total only.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct SecondDetail {
    pub near_limit: u32,
    pub p50_us: Option<f32>,
    pub p99_us: Option<f32>,
}

/// One complete second.
pub struct SecondSummary {
    pub at: u64,
    pub total: Point,
    pub detail: SecondDetail,
    /// The most active rules first.
    pub rules: Vec<(RuleId, Point)>,
    /// Denials first; empty for a second that was replayed.
    pub decisions: Vec<ListedDecision>,
}

/// The list of latest decisions that a decision is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListedOutcome {
    Denied,
    Allowed,
}

/// Which series: of one rule, of the rules without a series of their own, or of all requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeriesName<'n> {
    Total,
    Other,
    Rule(&'n str),
}

impl InsightData {
    pub const MAX_BYTES: usize = (MAX_RULES + 2) * RuleHistory::MAX_BYTES
        + (MAX_RULES + MAX_CANDIDATES) * (size_of::<(RuleId, f64)>() + RuleId::MAX_LEN) * 16 / 7
        + TopKeys::MAX_BYTES
        + 2 * MAX_DECISIONS * (size_of::<ListedDecision>() + MAX_KEY_TEXT + SHARED_TEXT_BYTES)
        + MAX_SECONDS * size_of::<SecondDetail>();

    pub fn new(second: u64) -> InsightData {
        let series = || RuleHistory::new(None, second, second);
        InsightData {
            started: second,
            second,
            total: series(),
            other: series(),
            rules: Vec::new(),
            places: HashMap::new(),
            candidates: HashMap::new(),
            top: TopKeys::new(second),
            denied: VecDeque::new(),
            allowed: VecDeque::new(),
            latest: Vec::new(),
            latencies: Latencies::default(),
            near: 0,
            details: vec![SecondDetail::default(); MAX_SECONDS].into_boxed_slice(),
        }
    }

    pub fn second(&self) -> u64 {
        self.second
    }

    /// Adds a batch to the current second.
    pub fn merge(&mut self, batch: &mut DecisionBatch) {
        let totals = batch.totals;
        self.total.current.add(&Point {
            allowed: totals.allowed,
            denied: totals.denied,
            banned: totals.banned,
            shadow_denied: totals.shadow_denied,
            clients_limited: 0,
        });
        self.total.add_near(totals.near);
        self.near = self.near.saturating_add(totals.near);
        self.latencies.merge(&batch.latencies);
        let places: Vec<Option<usize>> = batch.rules.iter().map(|count| self.add_rule(count)).collect();
        for key in &batch.keys {
            let rule = key.rule.map(usize::from);
            if key.denied > 0 {
                self.total.add_limited(key.fingerprint);
                match rule.map(|rule| places[rule]) {
                    Some(Some(place)) => self.rules[place].add_limited(key.fingerprint),
                    Some(None) => self.other.add_limited(key.fingerprint),
                    None => {}
                }
            }
            let id = rule.map(|rule| &batch.rules[rule].id);
            for (outcome, weight) in [
                (TopOutcome::Denied, key.denied),
                (TopOutcome::Allowed, key.allowed),
                (TopOutcome::Near, key.near),
            ] {
                let fingerprint = key.fingerprint;
                self.top.add(&KeyWeight { fingerprint, rule: id, text: key.text.as_ref(), outcome, weight });
            }
        }
        for decision in batch.listed.drain(..) {
            let list = if decision.allowed { &mut self.allowed } else { &mut self.denied };
            if list.len() >= MAX_DECISIONS {
                list.pop_front();
            }
            list.push_back(decision.clone());
            self.list_in_second(decision);
        }
        batch.clear();
    }

    /// Keeps the latest denials of a second, and allowed requests where there is room.
    fn list_in_second(&mut self, decision: ListedDecision) {
        if self.latest.len() < MAX_SUMMARY {
            return self.latest.push(decision);
        }
        let replaced = self.latest.iter().position(|one| one.allowed);
        match replaced {
            Some(allowed) => self.latest[allowed] = decision,
            None if !decision.allowed => {
                self.latest.remove(0);
                self.latest.push(decision);
            }
            None => {}
        }
    }

    /// Counts a rule; returns the place of its series, if it has one.
    fn add_rule(&mut self, count: &RuleCount) -> Option<usize> {
        let place = match self.places.get(&count.id) {
            Some(place) => *place,
            None if self.rules.len() < MAX_RULES => {
                self.rules.push(RuleHistory::new(Some(count.id.clone()), self.started, self.second));
                self.places.insert(count.id.clone(), self.rules.len() - 1);
                self.rules.len() - 1
            }
            None => {
                self.other.add(count);
                let decisions =
                    f64::from(count.allowed) + f64::from(count.denied) + f64::from(count.shadow_denied);
                if let Some(activity) = self.candidates.get_mut(&count.id) {
                    *activity += decisions;
                } else if self.candidates.len() < MAX_CANDIDATES {
                    self.candidates.insert(count.id.clone(), decisions);
                }
                return None;
            }
        };
        self.rules[place].add(count);
        Some(place)
    }

    /// Completes the current second and begins `next`, which must be later.
    pub fn end_second(&mut self, next: u64) -> SecondSummary {
        let at = self.second;
        let detail = SecondDetail {
            near_limit: std::mem::take(&mut self.near),
            p50_us: self.latencies.quantile_us(0.5),
            p99_us: self.latencies.quantile_us(0.99),
        };
        self.latencies = Latencies::default();
        for skipped in (at + 1..next).rev().take(MAX_SECONDS) {
            self.details[skipped as usize % MAX_SECONDS] = SecondDetail::default();
        }
        self.details[at as usize % MAX_SECONDS] = detail;
        let total = self.total.end_second(next);
        self.other.end_second(next);
        let points = self.rules.iter_mut().map(|series| (series.rule.clone(), series.end_second(next)));
        let rules = most_active(points.collect());
        self.top.advance(next);
        self.second = next;
        self.replace_least_active();
        let mut decisions = std::mem::take(&mut self.latest);
        decisions.sort_by(|a, b| a.allowed.cmp(&b.allowed).then(b.at.cmp(&a.at)));
        SecondSummary { at, total, detail, rules, decisions }
    }

    /// Gives the series of the least active rule to a rule that is much more active.
    fn replace_least_active(&mut self) {
        self.candidates.retain(|_, activity| {
            *activity *= 0.99;
            *activity >= 0.5
        });
        let most = self.candidates.iter().max_by(|a, b| a.1.total_cmp(b.1));
        let least = self.rules.iter().enumerate().min_by(|a, b| a.1.activity().total_cmp(&b.1.activity()));
        let (Some((rule, activity)), Some((place, series))) = (most, least) else { return };
        if *activity < REPLACING_FACTOR * (series.activity() + 1.0) {
            return;
        }
        let rule = rule.clone();
        self.candidates.remove(&rule);
        let new = RuleHistory::new(Some(rule.clone()), self.started, self.second);
        let replaced = std::mem::replace(&mut self.rules[place], new);
        self.other.absorb(&replaced);
        if let Some(id) = &replaced.rule {
            self.places.remove(id);
        }
        self.places.insert(rule, place);
    }

    /// The counts of a minute: of the total, of each rule with a series of its own, and of the rest.
    pub fn minute_counts(&self, minute: u64) -> MinuteCounts {
        let of = |series: &RuleHistory| series.minutes.range(minute, minute).next().map(|(_, point)| point);
        let named =
            self.rules.iter().filter_map(|series| Some((series.rule.as_ref()?.as_str(), of(series)?)));
        let unnamed = [(history::TOTAL, of(&self.total)), (history::OTHER, of(&self.other))];
        let unnamed = unnamed.into_iter().filter_map(|(name, point)| Some((name, point?)));
        let counted = unnamed.chain(named).filter(|(_, point)| !point.is_empty());
        MinuteCounts {
            at: minute * MINUTE,
            points: counted.map(|(name, point)| (name.into(), point)).collect(),
        }
    }

    /// The minute in which counting began.
    pub fn first_minute(&self) -> u64 {
        self.started / MINUTE
    }

    /// A complete second of the last hour, without its decisions.
    pub fn replay(&self, second: u64) -> Option<SecondSummary> {
        let point =
            |series: &RuleHistory| series.seconds.range(second, second).next().map(|(_, point)| point);
        if second >= self.second {
            return None;
        }
        let total = point(&self.total)?;
        let rules = self.rules.iter().filter_map(|series| Some((series.rule.clone(), point(series)?)));
        Some(SecondSummary {
            at: second,
            total,
            detail: self.details[second as usize % MAX_SECONDS],
            rules: most_active(rules.collect()),
            decisions: Vec::new(),
        })
    }

    /// The earliest second that can be replayed.
    pub fn oldest_second(&self) -> u64 {
        self.started.max((self.second + 1).saturating_sub(MAX_SECONDS as u64))
    }

    pub fn series(&self, name: SeriesName<'_>) -> Option<&RuleHistory> {
        match name {
            SeriesName::Total => Some(&self.total),
            SeriesName::Other => Some(&self.other),
            SeriesName::Rule(id) => self.rules.get(*self.places.get(&RuleId::new(id)?)?),
        }
    }

    /// The series of all rules that have one, the most active first.
    pub fn by_activity(&self) -> Vec<&RuleHistory> {
        let mut rules: Vec<_> = self.rules.iter().collect();
        rules.sort_by(|a, b| b.activity().total_cmp(&a.activity()));
        rules
    }

    /// The latest decisions with an outcome, newest first. The lists have the order in which the batches of threads were
    /// merged, so a batch that was full earlier may have later decisions.
    pub fn decisions(&self, outcome: ListedOutcome) -> Vec<&ListedDecision> {
        let list = match outcome {
            ListedOutcome::Denied => &self.denied,
            ListedOutcome::Allowed => &self.allowed,
        };
        let mut decisions: Vec<_> = list.iter().rev().collect();
        decisions.sort_by_key(|decision| Reverse(decision.at));
        decisions
    }

    /// The latest listed decision with a reason.
    pub fn latest(&self, reason: Reason) -> Option<&ListedDecision> {
        let listed = self.denied.iter().chain(&self.allowed);
        listed.filter(|decision| decision.reason == reason).max_by_key(|decision| decision.at)
    }

    /// The seconds of the last minute, oldest first, the current one last.
    pub fn last_minute(&self) -> std::ops::RangeInclusive<u64> {
        (self.second + 1).saturating_sub(MINUTE)..=self.second
    }
}

fn most_active(points: Vec<(Option<RuleId>, Point)>) -> Vec<(RuleId, Point)> {
    let named = points.into_iter().filter_map(|(rule, point)| Some((rule?, point)));
    let mut active: Vec<_> = named.filter(|(_, point)| !point.is_empty()).collect();
    active.sort_by_key(|(_, point)| Reverse(point.decisions() + u64::from(point.shadow_denied)));
    active.truncate(MAX_SUMMARY);
    active
}
