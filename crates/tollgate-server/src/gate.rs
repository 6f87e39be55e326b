//! State shared by all listeners: the engine, its clock, and the settings that a reload may change.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use tollgate::ban::Ban;
use tollgate::engine::{InspectError, KeyReport};
use tollgate::headers::HeaderStyle;
use tollgate::identity::address::TrustedProxies;
use tollgate::identity::{FieldSource, Key};
use tollgate::request::fields;
use tollgate::rule::RuleSetError;
use tollgate::store::Receipt;
use tollgate::{Clock, Engine, Hit, Policy, Time, Verdict};

use crate::config_history::ConfigHistory;
use crate::jwt::KeySet;
use crate::receipt::{ReceiptError, Receipts, Settlement};
use crate::rules_follower::RulesFollower;
use crate::state::Saving;

mod central;
mod field_selection;
pub mod tracking;

pub use central::CentralBackend;
pub use field_selection::FieldSelection;

pub struct Gate {
    pub engine: Engine,
    pub clock: Clock,
    pub live: ArcSwap<LiveSettings>,
    /// The fields that rules, settings and bans need of a request.
    field_selection: ArcSwap<FieldSelection>,
    pub reloads: Reloads,
    pub receipts: Receipts,
    /// The central store, once it is opened.
    pub central: OnceLock<CentralBackend>,
    /// The rules database, if configured.
    pub rules_follower: OnceLock<Arc<RulesFollower>>,
    /// How the state is saved, if it is saved while the server runs.
    pub saving: OnceLock<Arc<Saving>>,
    /// Whether all listeners accept connections.
    pub is_accepting: AtomicBool,
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
}

#[derive(Default)]
pub struct Reloads {
    pub applied: AtomicU64,
    pub rejected: AtomicU64,
}

impl Gate {
    pub fn new(engine: Engine, live: LiveSettings) -> Gate {
        let asked =
            ArcSwap::from_pointee(FieldSelection::of_policy(&engine.policy(), &engine.ban_attributes()));
        let clock = Clock::new();
        let live = ArcSwap::from_pointee(live);
        let reloads = Reloads::default();
        let receipts = Receipts::with_random_key();
        Gate {
            engine,
            clock,
            live,
            field_selection: asked,
            reloads,
            receipts,
            central: OnceLock::new(),
            rules_follower: OnceLock::new(),
            saving: OnceLock::new(),
            is_accepting: AtomicBool::new(false),
        }
    }

    /// The verdict that [`check`](Self::check) would return; charges nothing and records no violation.
    pub async fn peek(&self, hit: &Hit<'_>, now: Time) -> Verdict {
        match self.central.get() {
            None => self.engine.peek(hit, now),
            Some(central) => self.engine.peek_central(hit, now, &central.store).await,
        }
    }

    /// Refunds the charges of a verdict, except for what time has given back already.
    pub fn refund(&self, receipt: Receipt) {
        self.settle(receipt, 0);
    }

    /// Corrects the cost of a verdict's charges.
    pub fn settle(&self, receipt: Receipt, real_cost: u64) {
        let (here, there) = receipt.split_by_store();
        if let Some(receipt) = here {
            self.engine.settle(receipt, real_cost, self.now());
        }
        if let (Some(receipt), Some(central)) = (there, self.central.get()) {
            central.settle(receipt, real_cost, self.now());
        }
    }

    /// Settles the charges of a receipt; returns how many of them changed.
    pub async fn settle_receipt(&self, receipt: &str, settlement: Settlement) -> Result<usize, ReceiptError> {
        if let (Some(central), Some(id)) = (self.central.get(), self.receipts.shared_id(receipt)) {
            central.claim(&id, self.now()).await?;
        }
        let policy = self.engine.policy();
        let node = self.engine.node();
        let settled = self.receipts.settle(receipt, settlement, &policy, node, self.now())?;
        let count = settled.len();
        settled.into_iter().for_each(|(receipt, cost)| self.settle(receipt, cost));
        Ok(count)
    }

    /// Puts the rules and settings of the file in force, beside the rules of the database. Field selection and policy
    /// are changed in an order that never leaves a rule without the fields it needs.
    pub fn apply(&self, policy: Policy, live: LiveSettings) -> Result<(u64, u64), RuleSetError> {
        self.extend_field_selection(&FieldSelection::of_policy(&policy, &[]));
        let generations = self.engine.apply_list(policy, self.now())?;
        self.live.store(Arc::new(live));
        if let Some(rulebook) = self.rules_follower.get() {
            rulebook.file_rules_changed();
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
            self.field_selection.rcu(|asked| asked.union(more));
        }
    }

    /// The fields that rules, settings and bans need of a request.
    pub fn field_selection(&self) -> Arc<FieldSelection> {
        self.field_selection.load_full()
    }

    /// Decides a hit and charges it if it passes. The only way to a verdict that may have to wait for a store.
    pub async fn check(&self, hit: &Hit<'_>, now: Time) -> Verdict {
        match self.central.get() {
            None => self.engine.check(hit, now),
            Some(central) => central.check(&self.engine, hit, now).await,
        }
    }

    /// The state of a key under a rule.
    pub async fn key(&self, rule: &str, key: Key, now: Time) -> Result<KeyReport, InspectError> {
        match self.central.get() {
            None => self.engine.key(rule, key, now),
            Some(central) => self.engine.key_central(rule, key, now, &central.store).await,
        }
    }

    /// Resets the counters of a key; returns their state before.
    pub async fn reset_key(&self, rule: &str, key: Key, now: Time) -> Result<KeyReport, InspectError> {
        match self.central.get() {
            None => self.engine.reset_key(rule, key, now),
            Some(central) => self.engine.reset_key_central(rule, key, now, &central.store).await,
        }
    }

    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Adds the claims of a verified bearer token. A token that does not verify adds nothing; rules that count by a
    /// claim deny a request with two different tokens.
    pub fn identify<'a>(&self, hit: Hit<'a>, now: Time) -> Hit<'a> {
        let live = self.live.load();
        let asked = self.field_selection.load();
        let Some(keys) = live.jwt.as_ref().filter(|_| !asked.claims.is_empty()) else { return hit };
        let claims = match single_token(&hit) {
            Ok(Some(token)) => keys.verify(token, now.secs()),
            Ok(None) => return hit,
            Err(SeveralTokens) => return hit.too_many_values(FieldSource::Jwt),
        };
        let Ok(claims) = claims else { return hit };
        asked.claims.iter().fold(hit, |hit, name| match claims.get(name) {
            Some(value) => hit.field(FieldSource::Jwt, name.to_string(), value.into_owned()),
            None => hit,
        })
    }
}

struct SeveralTokens;

/// The bearer token of a request. With several tokens, which one the API uses is unknown, and verifying all of them
/// would let a client order any amount of work.
fn single_token<'h>(hit: &'h Hit<'_>) -> Result<Option<&'h str>, SeveralTokens> {
    let mut tokens = hit.raw_values(FieldSource::Header, "authorization").filter_map(fields::bearer);
    let first = tokens.next();
    if tokens.any(|other| Some(other) != first) { Err(SeveralTokens) } else { Ok(first) }
}

impl Reloads {
    pub fn count(&self) -> (u64, u64) {
        (self.applied.load(Ordering::Relaxed), self.rejected.load(Ordering::Relaxed))
    }
}
