//! One policy on the requests of a log: the engine of the server, with the time of the log.

use std::collections::BTreeSet;
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
use super::denied_keys::DeniedKeys;
use crate::cli::replay_settlement;

/// The rule and the key of a denied request.
pub struct SimulatedDenial {
    /// Empty for a ban.
    pub rule: String,
    pub key: String,
}

pub struct Simulation {
    engine: EngineCore,
    pub policy: Arc<PolicySnapshot>,
    pub requests: u64,
    /// Requests that would be denied, by a limit or a ban.
    pub denied: u64,
    pub banned: u64,
    /// The denied keys of each rule, shadow rules included.
    pub keys: DeniedKeys,
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
            keys: DeniedKeys::default(),
            unseen,
            sampled: None,
            key_text: String::new(),
        }
    }

    /// For requests of one client in so many.
    pub fn of_sample(plan: SimulationPlan, one_in: u64) -> Simulation {
        let sampled = (one_in > 1).then(|| SampledClients { one_in, shared: BTreeSet::new() });
        Simulation { sampled, ..Simulation::new(plan) }
    }

    /// Decides a request; returns why it is denied.
    pub fn decide(&mut self, hit: &Hit<'_>, at: Time, status: Option<u16>) -> Option<SimulatedDenial> {
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
        Some(match (&verdict.ban, verdict.reported()) {
            (Some(ban), _) => SimulatedDenial { rule: String::new(), key: ban.0.to_string() },
            (None, Some(limit)) => SimulatedDenial {
                rule: limit.rule.id.to_string(),
                key: key_text(&self.policy, hit, &limit.rule),
            },
            (None, None) => SimulatedDenial { rule: String::new(), key: String::new() },
        })
    }

    /// Counts a denial for each rule that denies, once.
    fn count_denying_rules(&mut self, verdict: &EngineVerdict, hit: &Hit<'_>) {
        let mut last = None;
        for limit in verdict.limits().iter().filter(|limit| !limit.is_allowed()) {
            let rule: &Rule = &limit.rule;
            if last == Some(&rule.id) {
                continue;
            }
            last = Some(&rule.id);
            let key = key_text(&self.policy, hit, rule);
            self.keys.add(rule.id.as_str(), &key, &mut self.key_text);
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
            if rule.mode != RuleMode::Off && !is_applied && !missing.is_empty() {
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
mod tests {
    use std::borrow::Cow;
    use std::io::Write;

    use tollgate::internal::http::FieldSelection;
    use tollgate::{Clock, Engine, Policy};

    use super::*;
    use crate::cli::access_log::AccessLog;

    const RULES: &str = "rules:
  - { id: login, match: POST /login, key: ip, limits: [5/m, 20/h], ban: { key: [ip], after: 10, within: 10m, for: 10m } }
  - { id: window, key: [ip, path], limit: 9/10s, algorithm: fixed-window }
  - { id: log, match: /a/**, key: user, limit: 30/m, algorithm: sliding-log, missing_key: shared }
  - { id: agent, key: 'header:user-agent', limit: 200/m, algorithm: sliding-counter, mode: shadow }
  - { id: all, limit: 40/s, algorithm: token-bucket, burst: 60 }
allow: ['ip:192.0.2.3']
";

    /// The same hits, given to the simulator as a log and to an embedded engine with a clock, are decided alike.
    #[test]
    fn decisions_equal_those_of_the_live_engine_hit_by_hit() {
        let mut random = fastrand::Rng::with_seed(16);
        let start = 1_767_225_600;
        let clock = Clock::manual(Time::from_secs(start));
        let engine = Engine::builder().clock(clock).build(Policy::from_yaml(RULES).expect("valid rules"));
        let engine = engine.expect("memory is available");
        let mut second = 0;
        let mut text = Vec::new();
        let mut live = Vec::new();
        for _ in 0..20_000 {
            let step = if random.u32(..40) == 0 { random.u64(..30) } else { 0 };
            second += step;
            engine.clock().advance(std::time::Duration::from_secs(step));
            let ip = format!("192.0.2.{}", random.u8(1..9));
            let method = *random.choice(["GET", "POST"].iter()).expect("a method");
            let path = *random.choice(["/login", "/a/1", "/a/2?x=1", "/"].iter()).expect("a path");
            let user = *random.choice(["-", "ann", "bob"].iter()).expect("a user");
            let agent = *random.choice(["curl", "fox"].iter()).expect("an agent");
            let time = format!(
                "{:02}/Jan/2026:{:02}:{:02}:{:02} +0000",
                1 + second / 86_400,
                second / 3600 % 24,
                second / 60 % 60,
                second % 60
            );
            writeln!(text, "{ip} - {user} [{time}] \"{method} {path} HTTP/1.1\" 200 1 \"-\" \"{agent}\"")
                .expect("written");
            let hit = Hit::on(method, "", path).ip(ip.parse().expect("an address"));
            let hit = if user == "-" { hit } else { hit.user(Cow::Borrowed(user)) };
            let hit = hit.field(tollgate::internal::identity::FieldSource::Header, "user-agent", agent);
            live.push(engine.check(&hit).is_allowed());
        }
        let folder = tollgate_testkit::Folder::new();
        let path = folder.write("access.log", text);
        let policy = PolicySnapshot::from_yaml(RULES).expect("valid rules");
        let fields = FieldSelection::of_policy(&policy, &[]);
        let mut simulation = Simulation::new(SimulationPlan { policy, memory_bytes: 64 << 20 });
        let mut simulated = Vec::new();
        let mut log = AccessLog::open(&path, None).unwrap_or_else(|exit| panic!("{exit:?}"));
        let summary = log.read(|record, at| {
            simulated.push(simulation.decide(&record.hit(&fields), at, record.status).is_none());
        });
        assert_eq!(summary.map(|summary| summary.requests).ok(), Some(20_000));
        let limited = simulation.denied - simulation.banned;
        assert!(simulation.banned > 100 && limited > 100, "{} banned, {limited} limited", simulation.banned);
        let first = live.iter().zip(&simulated).position(|(live, simulated)| live != simulated);
        assert_eq!((first, live.len()), (None, simulated.len()));
        assert!(simulation.unseen.is_empty(), "{:?}", simulation.unseen);
    }

    /// Drawn at random: the algorithms, the forms of limits and the times that the rules above lack.
    const MORE_RULES: &str = "rules:
  - { id: leaky, key: user, limit: 3/s, algorithm: leaky-bucket, burst: 6, max_wait: 500ms }
  - { id: compact, match: /a/**, key: ip, limit: 4/m, algorithm: sliding-compact }
  - { id: tiered, key: [ip, path], limit: 90/h, algorithm: tiered-window }
  - { id: costly, match: /a/2, key: user, limit: 9/m, cost: 3 }
  - { id: strict, match: /login, key: ip, limit: 3/m, algorithm: sliding-counter, count_denied: true }
  - { id: vip, key: user, limit: 15/m, algorithm: fixed-window, overrides: [{ user: ann, limits: [9/m] }] }
  - { id: plans, key: [user, 'attr:plan'], limits_by: { attr: plan, free: 3/m, pro: [6/m, 90/h], default: 4/m } }
";

    #[test]
    fn decisions_of_every_algorithm_equal_those_of_the_live_engine_within_seconds() {
        let mut random = fastrand::Rng::with_seed(17);
        let start = Time::from_secs(1_767_225_600);
        let clock = Clock::manual(start);
        let engine =
            Engine::builder().clock(clock).build(Policy::from_yaml(MORE_RULES).expect("valid rules"));
        let engine = engine.expect("memory is available");
        let mut csv = b"time,ip,user,method,path,plan\n".to_vec();
        let mut live = Vec::new();
        for _ in 0..20_000 {
            let step = if random.u32(..50) == 0 { random.u64(..60_000) } else { random.u64(..120) };
            engine.clock().advance(std::time::Duration::from_millis(step));
            let time = tollgate::internal::time::calendar::rfc3339(engine.clock().now());
            let millis = engine.clock().now().nanos() / 1_000_000 % 1_000;
            let time = format!("{}.{millis:03}Z", &time[..19]);
            let ip = format!("192.0.2.{}", random.u8(1..6));
            let method = *random.choice(["GET", "POST"].iter()).expect("a method");
            let path = *random.choice(["/login", "/a/1", "/a/2", "/"].iter()).expect("a path");
            let user = *random.choice(["ann", "bob", "cid", "dan"].iter()).expect("a user");
            let plan = *random.choice(["free", "pro", "other"].iter()).expect("a plan");
            writeln!(csv, "{time},{ip},{user},{method},{path},{plan}").expect("written");
            let hit = Hit::on(method, "", path).ip(ip.parse().expect("an address")).user(user);
            live.push(engine.check(&hit.attribute("plan", plan)).is_allowed());
        }
        let folder = tollgate_testkit::Folder::new();
        for (name, text) in [("requests.csv", csv)] {
            let policy = PolicySnapshot::from_yaml(MORE_RULES).expect("valid rules");
            let fields = FieldSelection::of_policy(&policy, &[]);
            let mut simulation = Simulation::new(SimulationPlan { policy, memory_bytes: 64 << 20 });
            let mut simulated = Vec::new();
            let path = folder.write(name, text);
            let mut log = AccessLog::open(&path, None).unwrap_or_else(|exit| panic!("{exit:?}"));
            log.read(|record, at| {
                simulated.push(simulation.decide(&record.hit(&fields), at, record.status).is_none());
            })
            .unwrap_or_else(|exit| panic!("{exit:?}"));
            let first = live.iter().zip(&simulated).position(|(live, simulated)| live != simulated);
            assert_eq!((first, live.len()), (None, simulated.len()), "{name}");
            assert!(simulation.denied > 50, "{} denied", simulation.denied);
            for rule in simulation.policy.rules().iter() {
                let counts = rule.counts();
                assert!(counts.allowed + counts.denied > 50, "{}: {counts:?}", rule.id);
            }
        }
    }

    #[test]
    fn what_depends_on_the_response_is_settled_by_its_status() {
        let rules = "rules: [{ id: failures, key: ip, limit: 2/h, count_when: failure }]";
        let policy = PolicySnapshot::from_yaml(rules).expect("valid rules");
        let mut simulation = Simulation::new(SimulationPlan { policy, memory_bytes: 16 << 20 });
        let hit = Hit::on("POST", "", "/login").ip([192, 0, 2, 1].into());
        let mut denied =
            |status| simulation.decide(&hit, Time::from_secs(1_767_225_600), Some(status)).is_some();
        assert!((0..10).all(|_| !denied(200)), "a success is refunded");
        assert!(!denied(401) && !denied(401) && denied(401));
    }
}
