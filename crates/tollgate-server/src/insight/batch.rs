//! Decisions of one thread since they were last merged: counts by rule and by key.
//!
//! Bounded: a batch that is full is merged at once. The texts of keys are made within a budget per second, and mostly
//! for keys that occur again: making one for every key of a flood would cost as much as the decision.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tollgate::internal::rule::RuleId;
use tollgate::internal::verdict::{LimitVerdict, Reason, VerdictId};
use tollgate::internal::{EngineVerdict, Limit, PolicySnapshot};
use tollgate::{Hit, Time};

use super::key_text::KeyTexts;
use super::latencies::Latencies;
use super::sample::SampleBatch;

/// Different keys in a batch.
pub const MAX_KEYS: usize = 512;
/// Different rules in a batch.
pub const MAX_RULES: usize = 128;
/// Decisions of a batch that are listed, per outcome.
pub const MAX_LISTED: usize = 32;
/// Decisions of a batch that are listed for one key, so that one client does not replace all others.
const MAX_LISTED_PER_KEY: u32 = 2;

/// Steps of the share of a limit that is used.
pub const USED_STEPS: usize = 20;
/// From this step on a key is near its limit: 80 % are used.
const NEAR_STEP: usize = USED_STEPS * 8 / 10;

/// A decision with everything that is counted of it.
#[derive(Clone, Copy)]
pub struct Decided<'d, 'h> {
    pub policy: &'d PolicySnapshot,
    pub hit: &'d Hit<'h>,
    pub verdict: &'d EngineVerdict,
    pub at: Time,
    pub latency: Option<Duration>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum RuleOutcome {
    Allowed,
    ShadowDenied,
    Denied,
}

#[derive(Clone, Copy, Default)]
pub struct BatchTotals {
    pub allowed: u32,
    pub denied: u32,
    pub banned: u32,
    pub shadow_denied: u32,
    pub near: u32,
}

pub struct RuleCount {
    pub id: RuleId,
    pub allowed: u32,
    pub denied: u32,
    pub shadow_denied: u32,
    pub near: u32,
    /// Requests by the share of the limit that their key has used.
    pub used: [u32; USED_STEPS],
}

pub struct KeyCount {
    pub fingerprint: u64,
    /// Index of its rule; `None` for a ban.
    pub rule: Option<u16>,
    pub allowed: u32,
    pub denied: u32,
    pub near: u32,
    pub text: Option<Arc<str>>,
    /// Listed decisions: denials, and allowed requests.
    listed: [u32; 2],
}

/// A decision in the list of the latest ones.
#[derive(Clone)]
pub struct ListedDecision {
    pub id: VerdictId,
    pub at: Time,
    pub allowed: bool,
    pub reason: Reason,
    pub rule: Option<RuleId>,
    pub key: Option<Arc<str>>,
    /// What the rule's limit has decided; `None` without a rule.
    pub limit: Option<ListedLimit>,
}

/// The limit that a listed decision reports.
#[derive(Clone, Copy)]
pub struct ListedLimit {
    pub limit: Limit,
    /// Of its capacity, after the request.
    pub used: u64,
    pub cost: u64,
}

impl ListedLimit {
    fn of(limit: &LimitVerdict) -> ListedLimit {
        let used = limit.limit.capacity().saturating_sub(limit.remaining());
        ListedLimit { limit: *limit.limit, used, cost: limit.cost() }
    }
}

/// Positions in a list by hash, with linear probing. It is at most half full.
pub struct SlotIndex<const SLOTS: usize>([u16; SLOTS]);

impl<const SLOTS: usize> Default for SlotIndex<SLOTS> {
    fn default() -> Self {
        SlotIndex([0; SLOTS])
    }
}

impl<const SLOTS: usize> SlotIndex<SLOTS> {
    pub fn note(&mut self, slot: usize, position: usize) {
        self.0[slot] = position as u16 + 1;
    }

    pub fn clear(&mut self) {
        self.0.fill(0);
    }

    /// The position of an entry, or the slot where it is to be noted.
    #[inline]
    pub fn find(&self, hash: u64, is_it: impl Fn(usize) -> bool) -> Result<usize, usize> {
        let mut slot = (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % SLOTS;
        loop {
            match self.0[slot] {
                0 => return Err(slot),
                noted if is_it(usize::from(noted) - 1) => return Ok(usize::from(noted) - 1),
                _ => slot = (slot + 1) % SLOTS,
            }
        }
    }
}

pub struct DecisionBatch {
    pub totals: BatchTotals,
    pub rules: Vec<RuleCount>,
    pub keys: Vec<KeyCount>,
    pub listed: Vec<ListedDecision>,
    pub latencies: Latencies,
    pub sample: SampleBatch,
    rule_index: SlotIndex<{ 2 * MAX_RULES }>,
    key_index: SlotIndex<{ 2 * MAX_KEYS }>,
    listed_of: [usize; 2],
    listed_without_key: [u32; 2],
}

impl Default for DecisionBatch {
    fn default() -> DecisionBatch {
        DecisionBatch {
            totals: BatchTotals::default(),
            rules: Vec::with_capacity(MAX_RULES),
            keys: Vec::with_capacity(MAX_KEYS),
            listed: Vec::new(),
            latencies: Latencies::default(),
            rule_index: SlotIndex::default(),
            key_index: SlotIndex::default(),
            sample: SampleBatch::default(),
            listed_of: [0; 2],
            listed_without_key: [0; 2],
        }
    }
}

/// Decisions have at most this many keys: a batch with fewer free places is full.
const MAX_KEYS_PER_DECISION: usize = 64;

impl DecisionBatch {
    /// Bytes of a full batch, without the texts of its keys.
    pub const MAX_BYTES: usize = size_of::<DecisionBatch>()
        + MAX_RULES * size_of::<RuleCount>()
        + MAX_KEYS * size_of::<KeyCount>()
        + 2 * MAX_LISTED * size_of::<ListedDecision>()
        + SampleBatch::MAX_BYTES;

    pub fn is_empty(&self) -> bool {
        let BatchTotals { allowed, denied, banned, .. } = self.totals;
        allowed == 0 && denied == 0 && banned == 0
    }

    pub fn is_full(&self) -> bool {
        self.keys.len() + MAX_KEYS_PER_DECISION > MAX_KEYS
            || self.rules.len() + MAX_KEYS_PER_DECISION > MAX_RULES
            || self.sample.is_full()
    }

    pub fn clear(&mut self) {
        self.totals = BatchTotals::default();
        self.rules.clear();
        self.keys.clear();
        self.listed.clear();
        self.latencies = Latencies::default();
        self.rule_index.clear();
        self.key_index.clear();
        self.sample.clear();
        self.listed_of = [0; 2];
        self.listed_without_key = [0; 2];
    }

    /// Counts a decision. The batch must not be full.
    pub fn record(&mut self, decided: &Decided<'_, '_>, texts: &KeyTexts) {
        let verdict = decided.verdict;
        if let Some(latency) = decided.latency {
            self.latencies.record(latency);
        }
        match (verdict.allowed, verdict.reason) {
            (_, Reason::Ban) => return self.record_ban(decided, texts),
            (true, _) => self.totals.allowed += 1,
            (false, _) => self.totals.denied += 1,
        }
        let reported = verdict.reported();
        let mut listed_key = None;
        let mut worst = RuleOutcome::Allowed;
        let mut is_near = false;
        let mut current: Option<(usize, RuleOutcome)> = None;
        for limits in verdict.keys().take(MAX_KEYS_PER_DECISION) {
            let Some(first) = limits.first() else { continue };
            let rule = self.rule_slot(first);
            let (outcome, used) = outcome_of(limits);
            worst = worst.max(outcome);
            let near = outcome == RuleOutcome::Allowed && used >= NEAR_STEP;
            is_near |= near;
            let count = &mut self.rules[rule];
            count.used[used] += 1;
            count.near += u32::from(near);
            current = match current {
                Some((same, before)) if same == rule => Some((rule, before.max(outcome))),
                before => {
                    self.count_rule(before);
                    Some((rule, outcome))
                }
            };
            if first.is_counted() {
                let key = self.key_slot(decided, first, rule, texts);
                let count = &mut self.keys[key];
                count.allowed += u32::from(verdict.allowed);
                count.denied += u32::from(outcome == RuleOutcome::Denied);
                count.near += u32::from(near && verdict.allowed);
                if reported.is_some_and(|reported| reported.key() == first.key()) {
                    listed_key = Some(key);
                }
            }
        }
        self.count_rule(current);
        self.totals.shadow_denied += u32::from(worst == RuleOutcome::ShadowDenied);
        self.totals.near += u32::from(is_near && verdict.allowed);
        self.list(decided, reported, listed_key);
    }

    fn count_rule(&mut self, counted: Option<(usize, RuleOutcome)>) {
        let Some((rule, outcome)) = counted else { return };
        let count = &mut self.rules[rule];
        *match outcome {
            RuleOutcome::Allowed => &mut count.allowed,
            RuleOutcome::ShadowDenied => &mut count.shadow_denied,
            RuleOutcome::Denied => &mut count.denied,
        } += 1;
    }

    /// A request of a banned client has no rule.
    #[cold]
    fn record_ban(&mut self, decided: &Decided<'_, '_>, texts: &KeyTexts) {
        static HASH: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        self.totals.banned += 1;
        let Some((banned, _)) = decided.verdict.ban.as_deref() else { return };
        let fingerprint = HASH.hash_one(banned);
        let found = self.key_index.find(fingerprint, |at| self.keys[at].fingerprint == fingerprint);
        let key = found.unwrap_or_else(|slot| {
            let text = texts.is_first_made().then(|| texts.make(banned, fingerprint));
            self.insert_key(slot, fingerprint, None, text)
        });
        self.keys[key].denied += 1;
        self.list(decided, None, Some(key));
    }

    #[inline]
    fn rule_slot(&mut self, limit: &LimitVerdict) -> usize {
        let id = &limit.rule.id;
        // Rules are distinguished by their ids; the address is their hash.
        let address = std::ptr::from_ref(&*limit.rule).addr() as u64;
        match self.rule_index.find(address, |at| self.rules[at].id == *id) {
            Ok(at) => at,
            Err(slot) => {
                let id = id.clone();
                let used = [0; USED_STEPS];
                self.rules.push(RuleCount { id, allowed: 0, denied: 0, shadow_denied: 0, near: 0, used });
                let at = self.rules.len() - 1;
                self.rule_index.note(slot, at);
                at
            }
        }
    }

    #[inline]
    fn key_slot(
        &mut self,
        decided: &Decided<'_, '_>,
        limit: &LimitVerdict,
        rule: usize,
        texts: &KeyTexts,
    ) -> usize {
        let fingerprint = limit.key().to_bits();
        let text = || {
            let key = decided.policy.key_of(decided.hit, &limit.rule)?;
            Some(texts.make(&key, fingerprint))
        };
        match self.key_index.find(fingerprint, |at| self.keys[at].fingerprint == fingerprint) {
            Ok(at) => {
                if self.keys[at].text.is_none() && texts.is_recurring_made() {
                    self.keys[at].text = text();
                }
                at
            }
            Err(slot) => {
                let text = if texts.is_first_made() { text() } else { None };
                self.insert_key(slot, fingerprint, Some(rule as u16), text)
            }
        }
    }

    fn insert_key(
        &mut self,
        slot: usize,
        fingerprint: u64,
        rule: Option<u16>,
        text: Option<Arc<str>>,
    ) -> usize {
        self.keys.push(KeyCount { fingerprint, rule, allowed: 0, denied: 0, near: 0, text, listed: [0; 2] });
        let at = self.keys.len() - 1;
        self.key_index.note(slot, at);
        at
    }

    /// Lists the decision among the latest ones, if its key and the batch are not listed too often already.
    #[inline]
    fn list(&mut self, decided: &Decided<'_, '_>, reported: Option<&LimitVerdict>, key: Option<usize>) {
        let verdict = decided.verdict;
        let outcome = usize::from(verdict.allowed);
        // Decisions without a key are listed as if they had one in common.
        let of_key = match key {
            Some(key) => &mut self.keys[key].listed[outcome],
            None => &mut self.listed_without_key[outcome],
        };
        if *of_key >= MAX_LISTED_PER_KEY || self.listed_of[outcome] >= MAX_LISTED {
            return;
        }
        *of_key += 1;
        self.listed_of[outcome] += 1;
        let key = key.and_then(|key| self.keys[key].text.clone());
        self.listed.push(ListedDecision {
            id: verdict.id,
            at: decided.at,
            allowed: verdict.allowed,
            reason: verdict.reason,
            rule: reported.map(|limit| limit.rule.id.clone()),
            key,
            limit: reported.map(ListedLimit::of),
        });
    }
}

/// The outcome of one key under a rule, and the step of the share of its limit that is used: of the limit that is
/// used most.
#[inline]
fn outcome_of(limits: &[LimitVerdict]) -> (RuleOutcome, usize) {
    let mut used = 0;
    for limit in limits {
        if !limit.is_allowed() {
            let outcome = if limit.is_enforced() { RuleOutcome::Denied } else { RuleOutcome::ShadowDenied };
            return (outcome, USED_STEPS - 1);
        }
        let capacity = limit.limit.capacity();
        let spent = capacity.saturating_sub(limit.remaining());
        let step = spent.saturating_mul(USED_STEPS as u64).checked_div(capacity).unwrap_or(0);
        used = used.max((step as usize).min(USED_STEPS - 1));
    }
    (RuleOutcome::Allowed, used)
}
