//! State shared by all listeners: the engine, its clock, and the settings that a reload may change.

use std::hash::RandomState;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use hyper::HeaderMap;
use serde::Serialize;
use smallvec::SmallVec;
use tollgate::internal::ban::Ban;
use tollgate::internal::engine::{
    CounterCreation, DecisionContext, DecisionMode, InspectError, InspectMode, KeyReport, RequestViolations,
};
use tollgate::internal::headers::HeaderStyle;
use tollgate::internal::hit;
use tollgate::internal::http::ProxyTrust;
use tollgate::internal::identity::address::TrustedProxies;
use tollgate::internal::identity::forwarded::ForwardingHeader;
use tollgate::internal::identity::{FieldSource, Key};
use tollgate::internal::request::fields;
use tollgate::internal::rule::RuleSetError;
use tollgate::internal::settlement::Settle;
use tollgate::internal::store::ChargeReceipt;
use tollgate::internal::{EngineCore, EngineVerdict, PolicySnapshot};
use tollgate::{Clock, Hit, Time};

use crate::config_history::ConfigHistory;
use crate::connection::OpenConnections;
use crate::connection::heartbeat::WorkerHeartbeats;
use crate::decision_log::{DecisionLog, DecisionLogCounts};
use crate::envoy::EnvoyLimits;
use crate::fleet::Fleet;
use crate::insight::{Decided, Insight};
use crate::jwt::KeySet;
use crate::log::LogSettings;
use crate::metrics::{CompatNames, DecisionTimes, RequestCounts, RuleSeries};
use crate::receipt::{ReceiptError, Receipts, Settlement};
use crate::rules_follower::RulesFollower;
use crate::state::Saving;
use crate::tls::ListenerTls;
use crate::trace_id::TraceId;
use tollgate::internal::ticket::{KeyScope, Tickets};

mod central;
mod concurrent_calls;
mod counters;
mod reloads;
mod spans;
mod throttle;
pub mod tracking;

pub use central::CentralBackend;
pub use concurrent_calls::call_each;
use counters::CounterLocation;
pub use reloads::Reloads;
pub use throttle::{CallerKey, MemoryLimit, ThrottleCounter};
pub use tollgate::internal::http::FieldSelection;

pub struct Gate {
    pub engine: EngineCore,
    pub clock: Clock,
    pub live: ArcSwap<LiveSettings>,
    /// The fields that rules, settings and bans need of a request.
    field_selection: ArcSwap<FieldSelection>,
    pub reloads: Reloads,
    pub receipts: Receipts,
    pub tickets: Tickets,
    /// The central store, once it is opened.
    pub central: OnceLock<CentralBackend>,
    /// The rules database, if configured.
    pub rules_follower: OnceLock<Arc<RulesFollower>>,
    /// The other nodes.
    pub fleet: OnceLock<Fleet>,
    /// How the state is saved, if it is saved while the server runs.
    pub saving: OnceLock<Arc<Saving>>,
    pub decision_log_counts: Arc<DecisionLogCounts>,
    pub requests: RequestCounts,
    pub decision_times: DecisionTimes,
    pub connections: OpenConnections,
    /// The rules that have metrics of their own.
    pub rule_series: RuleSeries,
    /// Counts of all decisions for the admin API, once it is served.
    pub insight: OnceLock<Insight>,
    /// Spans to be exported, if they are.
    #[cfg(feature = "otlp")]
    pub spans: OnceLock<crate::otlp::SpanQueue>,
    /// Certificates of the listeners that have one.
    pub tls: OnceLock<Vec<Arc<ListenerTls>>>,
    /// Where the decision API listens, once it does.
    pub http: OnceLock<HttpAddress>,
    /// Whether all listeners accept connections.
    pub is_accepting: AtomicBool,
    pub worker_heartbeats: WorkerHeartbeats,
    /// The configuration file, if there is one.
    pub config_file: OnceLock<PathBuf>,
}

/// The address of the decision API, as clients call it.
#[derive(Serialize)]
pub struct HttpAddress {
    /// Such as `http://127.0.0.1:8080`, or `unix:/run/tollgate.sock`.
    pub url: String,
    /// Whether callers need a token.
    pub needs_token: bool,
}

/// Settings of the file that a reload changes, beside the policy.
pub struct LiveSettings {
    pub headers: HeaderStyle,
    pub jwt: Option<KeySet>,
    pub history: ConfigHistory,
    /// The file's allow list.
    pub allow: Vec<Key>,
    /// Load balancers and proxies in front of this node.
    pub trusted: TrustedProxies,
    /// Limits of Envoy's requests, beside the rules.
    pub envoy: EnvoyLimits,
    /// The header in which they name the client's address.
    pub trusted_header: ForwardingHeader,
    pub decision_log: Option<Arc<DecisionLog>>,
    /// Other rate limiters whose names the metrics have, too.
    pub compat_names: Vec<CompatNames>,
    /// The level and format of the log in the file; the admin API may have changed them since.
    pub log: LogSettings,
}

impl LiveSettings {
    pub fn trust(&self) -> ProxyTrust<'_> {
        ProxyTrust { proxies: &self.trusted, header: self.trusted_header }
    }
}

/// What one request is decided by: the policy and settings that were in force when it arrived.
#[derive(Clone)]
pub struct GateSnapshot {
    pub policy: Arc<PolicySnapshot>,
    pub live: Arc<LiveSettings>,
    /// The fields that rules, settings and bans need of a request.
    pub fields: Arc<FieldSelection>,
    /// The trace of the request, if decisions are logged or spans exported.
    pub trace: Option<TraceId>,
}

impl Gate {
    pub fn new(engine: EngineCore, live: LiveSettings) -> Gate {
        let selection =
            ArcSwap::from_pointee(FieldSelection::of_policy(&engine.policy(), &engine.ban_attributes()));
        let clock = Clock::new();
        let live = ArcSwap::from_pointee(live);
        let reloads = Reloads::since_start(clock.now());
        let receipts = Receipts::with_random_key();
        let tickets = Tickets::new(engine.secret().bytes(), KeyScope::Node);
        Gate {
            engine,
            clock,
            live,
            field_selection: selection,
            reloads,
            receipts,
            tickets,
            central: OnceLock::new(),
            rules_follower: OnceLock::new(),
            fleet: OnceLock::new(),
            saving: OnceLock::new(),
            decision_log_counts: Arc::default(),
            requests: RequestCounts::default(),
            decision_times: DecisionTimes::default(),
            connections: OpenConnections::default(),
            rule_series: RuleSeries::default(),
            insight: OnceLock::new(),
            #[cfg(feature = "otlp")]
            spans: OnceLock::new(),
            tls: OnceLock::new(),
            http: OnceLock::new(),
            is_accepting: AtomicBool::new(false),
            worker_heartbeats: WorkerHeartbeats::default(),
            config_file: OnceLock::new(),
        }
    }

    /// The policy and settings in force now, for the whole of one request.
    pub fn snapshot(&self) -> GateSnapshot {
        // In this order: the fields that a policy needs are selected before it comes into force.
        let policy = self.engine.policy();
        let fields = self.field_selection.load_full();
        GateSnapshot { policy, fields, live: self.live.load_full(), trace: None }
    }

    /// The trace that a request's headers name, if decisions are logged or spans exported.
    pub fn trace(&self, headers: &HeaderMap) -> Option<TraceId> {
        if self.wants_traces(&self.live.load()) { TraceId::of(headers) } else { None }
    }

    /// Refunds the charges of a verdict, except for what time has given back already.
    pub fn refund(&self, receipt: ChargeReceipt) {
        self.settle(receipt, 0);
    }

    /// Corrects the cost of a verdict's charges.
    pub fn settle(&self, receipt: ChargeReceipt, real_cost: u64) {
        let (local, remote) = receipt.split_by_store();
        if let Some(receipt) = local {
            self.engine.settle(receipt, real_cost, self.now());
        }
        if let (Some(receipt), Some(central)) = (remote, self.central.get()) {
            central.settle(receipt, real_cost, self.now());
        }
    }

    /// As [`refund`](Self::refund), but returns once a central store has done it. A charge that cannot be refunded
    /// remains.
    pub async fn refund_and_wait(&self, receipt: ChargeReceipt) {
        let (local, remote) = receipt.split_by_store();
        if let Some(receipt) = local {
            self.engine.settle(receipt, 0, self.now());
        }
        if let (Some(receipt), Some(central)) = (remote, self.central.get()) {
            let counters: SmallVec<[_; 2]> = receipt.items().iter().map(|item| item.fingerprint).collect();
            central.settle_and_wait(receipt, 0, self.now()).await;
            self.engine.forget_denials(counters.into_iter());
        }
    }

    /// Settles the charges of a receipt; returns how many of them changed.
    pub async fn settle_receipt(&self, receipt: &str, settlement: Settlement) -> Result<usize, ReceiptError> {
        if let (Some(central), Some(id)) = (self.central.get(), self.receipts.shared_id(receipt)) {
            central.claim(&id, self.now()).await?;
        }
        let policy = self.engine.policy();
        let settled = self.receipts.settle(receipt, settlement, &policy, self.now())?;
        let count = settled.len();
        settled.into_iter().for_each(|(receipt, cost)| self.settle(receipt, cost));
        Ok(count)
    }

    /// Puts the rules and settings of the file in force, beside the rules of the database. Field selection and policy
    /// are changed in an order that never leaves a rule without the fields it needs.
    pub fn apply(&self, policy: PolicySnapshot, live: LiveSettings) -> Result<(u64, u64), RuleSetError> {
        self.extend_field_selection(&FieldSelection::of_policy(&policy, &[]));
        let generations = self.engine.apply_list(policy, self.now())?;
        self.live.store(Arc::new(live));
        if let Some(follower) = self.rules_follower.get() {
            follower.file_rules_changed();
        }
        Ok(generations)
    }

    /// A key in the form that requests are looked up by.
    pub fn lookup_key(&self, key: Key) -> Key {
        key.grouped_in_combination(self.engine.policy().settings().ipv6_prefix)
    }

    /// A key in the form of the ban list.
    pub fn ban_key(&self, key: Key) -> Key {
        key.as_banned(self.engine.policy().settings().ipv6_prefix)
    }

    /// Bans a key.
    pub fn ban(&self, key: Key, ban: Ban) {
        self.extend_field_selection(&FieldSelection::of_key(&key));
        self.engine.ban(key, ban, self.now());
    }

    /// Adds fields that transports extract from requests. Fields that are no longer needed are harmless.
    pub fn extend_field_selection(&self, more: &FieldSelection) {
        if !self.field_selection.load().covers(more) {
            self.field_selection.rcu(|selection| selection.union(more));
        }
    }

    /// Decides a hit and charges it if it passes.
    pub async fn check(&self, snapshot: &GateSnapshot, hit: &Hit<'_>, now: Time) -> EngineVerdict {
        self.run(snapshot, in_force(snapshot, hit, now, DecisionMode::Check)).await
    }

    /// As [`check`](Self::check), where all counters are in memory.
    pub fn check_in_memory(&self, snapshot: &GateSnapshot, hit: &Hit<'_>, now: Time) -> EngineVerdict {
        let timer = self.decision_times.start(1);
        let verdict = self.engine.decide_in(&in_force(snapshot, hit, now, DecisionMode::Check));
        let latency = self.decision_times.stop(timer);
        self.record(snapshot, Decided { policy: &snapshot.policy, hit, verdict: &verdict, at: now, latency });
        verdict
    }

    /// The verdict that [`check`](Self::check) would return; charges nothing and records no violation.
    pub async fn peek(&self, snapshot: &GateSnapshot, hit: &Hit<'_>, now: Time) -> EngineVerdict {
        self.run(snapshot, in_force(snapshot, hit, now, DecisionMode::Peek)).await
    }

    /// As [`check`](Self::check), for one of several hits of a request, whose violations are collected.
    pub async fn check_part(
        &self,
        snapshot: &GateSnapshot,
        hit: &Hit<'_>,
        now: Time,
        violations: &RequestViolations<'_>,
    ) -> EngineVerdict {
        let context = in_force(snapshot, hit, now, DecisionMode::Check);
        self.run(snapshot, DecisionContext { violations: Some(violations), ..context }).await
    }

    /// Decides a hit under a policy beside the one in force. Its rules set no bans.
    pub async fn decide_separate(
        &self,
        snapshot: &GateSnapshot,
        policy: &PolicySnapshot,
        hit: &Hit<'_>,
        now: Time,
        mode: DecisionMode,
    ) -> EngineVerdict {
        let creation = CounterCreation::Always;
        self.run(snapshot, DecisionContext { policy, hit, now, mode, creation, violations: None }).await
    }

    /// Decides independent hits, in order. With a central store hits of different origin are decided at the same time.
    pub async fn check_batch(
        &self,
        snapshot: &GateSnapshot,
        hits: &[Hit<'_>],
        now: Time,
    ) -> Vec<EngineVerdict> {
        if !self.counts_in_memory() {
            let hasher = RandomState::new();
            let origin = |hit: &Hit<'_>| hit::origin_hash(hit, &hasher);
            return call_each(hits, origin, |hit| self.check(snapshot, hit, now)).await;
        }
        let timer = self.decision_times.start(hits.len());
        let verdicts = self.engine.decide_batch(&snapshot.policy, hits, now);
        let mut latency = self.decision_times.stop(timer);
        for (hit, verdict) in hits.iter().zip(&verdicts) {
            let latency = latency.take();
            self.record(snapshot, Decided { policy: &snapshot.policy, hit, verdict, at: now, latency });
        }
        verdicts
    }

    /// As [`check_batch`](Self::check_batch), but charges nothing and records no violation.
    pub async fn peek_batch(
        &self,
        snapshot: &GateSnapshot,
        hits: &[Hit<'_>],
        now: Time,
    ) -> Vec<EngineVerdict> {
        if self.counts_in_memory() {
            let peek = |hit| self.engine.decide_in(&in_force(snapshot, hit, now, DecisionMode::Peek));
            return hits.iter().map(peek).collect();
        }
        // They change nothing, so each may be called at any time.
        let each = |hit: &Hit<'_>| std::ptr::from_ref(hit).addr();
        call_each(hits, each, |hit| self.peek(snapshot, hit, now)).await
    }

    /// Decides, and records a check.
    #[inline]
    async fn run(&self, snapshot: &GateSnapshot, context: DecisionContext<'_, '_>) -> EngineVerdict {
        let DecisionContext { policy, hit, now: at, mode, .. } = context;
        if mode == DecisionMode::Peek {
            return self.counters().decide(&context).await;
        }
        let timer = self.decision_times.start(1);
        let verdict = self.counters().decide(&context).await;
        let latency = self.decision_times.stop(timer);
        self.record(snapshot, Decided { policy, hit, verdict: &verdict, at, latency });
        verdict
    }

    /// Writes a decision to the log, the trace and the live data.
    #[inline]
    fn record(&self, snapshot: &GateSnapshot, decided: Decided<'_, '_>) {
        if let Some(log) = &snapshot.live.decision_log {
            log.record(&self.engine, &decided, snapshot.trace);
        }
        self.record_span(snapshot, decided.hit, decided.verdict, decided.at);
        if let Some(insight) = self.insight.get() {
            insight.record(&decided);
        }
    }

    /// The state of a key under a rule; with [`InspectMode::Reset`] the state before the reset.
    pub async fn inspect_key(
        &self,
        rule: &str,
        key: Key,
        now: Time,
        mode: InspectMode,
    ) -> Result<KeyReport, InspectError> {
        self.counters().inspect(rule, key, now, mode).await
    }

    #[inline]
    fn counters(&self) -> CounterLocation<'_> {
        match self.central.get() {
            None => CounterLocation::Memory(&self.engine),
            Some(central) => CounterLocation::Central(&self.engine, central),
        }
    }

    /// The ticket of a verdict that denies, decided at `at`.
    pub fn ticket(&self, verdict: &EngineVerdict, at: Time) -> Option<String> {
        (!verdict.allowed).then(|| self.tickets.seal(verdict, self.engine.key_mark(verdict), at))
    }

    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// The time from which the delay of a verdict counts, for a check that began at `began`. A central store decides
    /// during the call, so the delay counts from its end: a held request is never released early.
    pub fn decided_at(&self, began: Time) -> Time {
        if self.counts_in_memory() { began } else { self.now() }
    }
}

/// A decision under the policy of the request's snapshot.
fn in_force<'d, 'h>(
    snapshot: &'d GateSnapshot,
    hit: &'d Hit<'h>,
    now: Time,
    mode: DecisionMode,
) -> DecisionContext<'d, 'h> {
    let creation = CounterCreation::WhileInForce;
    DecisionContext { policy: &snapshot.policy, hit, now, mode, creation, violations: None }
}

impl Settle for Gate {
    fn settle(&self, receipt: ChargeReceipt, real_cost: u64) {
        Gate::settle(self, receipt, real_cost);
    }
}

impl GateSnapshot {
    pub fn with_trace(self, trace: Option<TraceId>) -> GateSnapshot {
        GateSnapshot { trace, ..self }
    }

    /// Adds the claims of a verified bearer token. A token that does not verify adds nothing. Rules that count by a claim
    /// deny a request with two different tokens; bans and rules for single users find the claims of its first and its
    /// last one.
    pub fn identify<'a>(&self, hit: Hit<'a>, now: Time) -> Hit<'a> {
        let claims_needed = &self.fields.claims;
        let Some(keys) = self.live.jwt.as_ref().filter(|_| !claims_needed.is_empty()) else { return hit };
        let tokens = BearerTokens::of(&hit);
        let is_ambiguous = tokens.last.is_some();
        let verified = [tokens.first, tokens.last].map(|token| keys.verify(token?, now.secs()).ok());
        let hit = verified.iter().flatten().fold(hit, |hit, claims| {
            let values = claims_needed.iter().filter_map(|name| Some((name, claims.get(name)?)));
            values.fold(hit, |hit, (name, value)| {
                hit.field(FieldSource::Jwt, name.to_string(), value.into_owned())
            })
        });
        if is_ambiguous { hit::with_too_many_values(hit, FieldSource::Jwt) } else { hit }
    }
}

/// The bearer tokens of a request. Which of several the API uses is unknown: the first or the last, in most servers.
/// Verifying all of them would let a client order any amount of work.
struct BearerTokens<'h> {
    first: Option<&'h str>,
    /// The last one that differs from the first.
    last: Option<&'h str>,
}

impl<'h> BearerTokens<'h> {
    fn of(hit: &'h Hit<'_>) -> BearerTokens<'h> {
        let lines = hit::raw_values(hit, FieldSource::Header, "authorization");
        let words = lines.flat_map(fields::bearer_tokens);
        // Proxies join lines of one name by commas; no token has one.
        let mut tokens = words.flat_map(|word| word.split(',')).filter(|token| !token.is_empty());
        let first = tokens.next();
        let last = tokens.filter(|other| Some(*other) != first).last();
        BearerTokens { first, last }
    }
}
