//! One policy on the requests of a log: the engine of the server, with the time of the log.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tollgate::internal::engine::{EngineSetup, LogKeys};
use tollgate::internal::hit::client;
use tollgate::internal::identity::Attribute;
use tollgate::internal::limit::Shape;
use tollgate::internal::rule::{Rule, RuleId, RuleMode};
use tollgate::internal::verdict::Reason;
use tollgate::internal::{EngineCore, EngineVerdict, PolicySnapshot};
use tollgate::{Hit, Time};

use super::SimulationPlan;
use super::denied_keys::{DenialsByRule, DeniedKeys};
use crate::cli::replay_settlement;

/// A denied request.
pub struct SimulatedDenial<'s> {
    policy: &'s PolicySnapshot,
    verdict: EngineVerdict,
}

pub struct Simulation {
    engine: EngineCore,
    pub policy: Arc<PolicySnapshot>,
    pub requests: u64,
    /// Requests that would be denied, by a limit or a ban.
    pub denied: u64,
    pub banned: u64,
    /// The denied keys of each rule, shadow rules included, if they are counted.
    keys: Option<DeniedKeys>,
    /// Attributes of rules that no request has had so far.
    pub unseen: Vec<Attribute>,
    /// For requests of a sample of clients.
    sampled: Option<SampledClients>,
    key_text: String,
}

/// What a sample of clients has too little of: the requests of a key that several clients share.
struct SampledClients {
    one_in: u64,
    /// Rules that have counted a client by something else than what identifies it.
    shared: BTreeSet<RuleId>,
}

impl Simulation {
    pub fn new(plan: SimulationPlan) -> Simulation {
        let needed = plan.policy.rules().iter().map(|rule| min_memory(rule)).max().unwrap_or_default();
        let setup = EngineSetup {
            memory_bytes: plan.memory_bytes.max(needed),
            log_keys: LogKeys::Redacted,
            ..EngineSetup::default()
        };
        let mut unseen = Vec::new();
        for rule in plan.policy.rules().iter() {
            unseen.extend(rule.attributes().cloned());
        }
        unseen.sort_by_key(ToString::to_string);
        unseen.dedup();
        let engine = EngineCore::with_setup(plan.policy, setup);
        Simulation {
            policy: engine.policy(),
            engine,
            requests: 0,
            denied: 0,
            banned: 0,
            keys: None,
            unseen,
            sampled: None,
            key_text: String::new(),
        }
    }

    /// Also counts how often each key is denied.
    pub fn with_denied_keys(self) -> Simulation {
        Simulation { keys: Some(DeniedKeys::default()), ..self }
    }

    /// The denied keys by rule, with the `most` that were denied most often; none if they are not counted.
    pub fn denied_keys(&self, most: usize) -> HashMap<&str, DenialsByRule<'_>> {
        self.keys.as_ref().map(|keys| keys.by_rule(most)).unwrap_or_default()
    }

    /// The true counts of denied keys are higher by at most this.
    pub fn denied_keys_error(&self) -> u64 {
        self.keys.as_ref().map_or(0, |keys| keys.error)
    }

    /// For requests of one client in so many.
    pub fn of_sample(plan: SimulationPlan, one_in: u64) -> Simulation {
        let sampled = (one_in > 1).then(|| SampledClients { one_in, shared: BTreeSet::new() });
        Simulation { sampled, ..Simulation::new(plan) }
    }

    /// Decides a request; returns why it is denied.
    pub fn decide(&mut self, hit: &Hit<'_>, at: Time, status: Option<u16>) -> Option<SimulatedDenial<'_>> {
        self.requests += 1;
        let policy = &self.policy;
        if !self.unseen.is_empty() {
            self.unseen.retain(|attribute| policy.value(hit, attribute).is_none());
        }
        let mut verdict = self.engine.check(hit, at);
        if let Some(sampled) = &mut self.sampled {
            sampled.note_shared(&verdict, hit);
        }
        if verdict.limits().iter().any(|limit| !limit.is_allowed()) {
            self.count_denying_rules(&verdict, hit);
        }
        if verdict.allowed {
            replay_settlement::settle(&self.engine, &mut verdict, at, status);
            return None;
        }
        self.denied += 1;
        self.banned += u64::from(verdict.reason == Reason::Ban);
        Some(SimulatedDenial { policy: &self.policy, verdict })
    }

    /// Counts a denial for each rule that denies, once.
    fn count_denying_rules(&mut self, verdict: &EngineVerdict, hit: &Hit<'_>) {
        let Some(keys) = &mut self.keys else { return };
        let mut last = None;
        for limit in verdict.limits().iter().filter(|limit| !limit.is_allowed()) {
            let rule: &Rule = &limit.rule;
            if last == Some(&rule.id) {
                continue;
            }
            last = Some(&rule.id);
            let key = key_text(&self.policy, hit, rule);
            keys.add(rule.id.as_str(), &key, &mut self.key_text);
        }
    }

    /// Rules that the simulation cannot decide as the server does, each with the reason.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for rule in self.policy.rules().iter() {
            let counts = rule.counts();
            let is_applied = counts.allowed + counts.denied + counts.shadow_denied > 0;
            let missing: Vec<String> =
                rule.attributes().filter(|own| self.unseen.contains(own)).map(ToString::to_string).collect();
            if rule.mode != RuleMode::Off && self.requests > 0 && !is_applied && !missing.is_empty() {
                notes.push(format!("rule {} never applies: no line has {}", rule.id, missing.join(", ")));
            }
            if rule.all_limits().any(|each| each.limit.shape() == Shape::Concurrency) {
                notes.push(format!("rule {} (concurrency) sees each request end at once", rule.id));
            }
            if let Some(sampled) = self.sampled.as_ref().filter(|sampled| sampled.shared.contains(&rule.id)) {
                notes.push(sampled.note(rule));
            }
        }
        notes
    }
}

impl SimulatedDenial<'_> {
    /// The rule that denies; empty for a ban.
    pub fn rule(&self) -> &str {
        let limit = self.verdict.reported().filter(|_| self.verdict.ban.is_none());
        limit.map_or("", |limit| limit.rule.id.as_str())
    }

    /// The key that is denied or banned.
    pub fn key(&self, hit: &Hit<'_>) -> String {
        match (&self.verdict.ban, self.verdict.reported()) {
            (Some(ban), _) => ban.0.to_string(),
            (None, Some(limit)) => key_text(self.policy, hit, &limit.rule),
            (None, None) => String::new(),
        }
    }
}

impl SampledClients {
    fn note_shared(&mut self, verdict: &EngineVerdict, hit: &Hit<'_>) {
        let client = client(hit).map(|(attribute, _)| attribute);
        for limit in verdict.limits() {
            let rule: &Rule = &limit.rule;
            let is_own = client.as_ref().is_some_and(|client| rule.key.contains(client));
            if !is_own && !self.shared.contains(&rule.id) {
                self.shared.insert(rule.id.clone());
            }
        }
    }

    fn note(&self, rule: &Rule) -> String {
        let names: Vec<_> = rule.key.iter().map(ToString::to_string).collect();
        let counts = match names.is_empty() {
            true => "all clients together".to_owned(),
            false => format!("by {}, which several clients may share", names.join(" and ")),
        };
        format!(
            "rule {} counts {counts}: one client in {} is recorded (by user, API key or address), so here it sees a part of \
             its requests and denies too few",
            rule.id, self.one_in
        )
    }
}

fn min_memory(rule: &Rule) -> usize {
    rule.all_limits().map(|each| EngineSetup::min_memory_for(&each.limit)).max().unwrap_or_default()
}

/// The key of a rule, the first of several values; empty for a rule without a key.
fn key_text(policy: &PolicySnapshot, hit: &Hit<'_>, rule: &Rule) -> String {
    policy.key_of(hit, rule).map(|key| key.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
