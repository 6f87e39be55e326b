//! The engine: decides hits.
//!
//! Begin (plan), charge, finish (conclude, then record). The charge is made in memory at once, or in a central store and
//! awaited (`central`); planning and concluding are pure and written once. The engine owns the policy in force, the
//! memory store, the bans and the statistics; it reads no clock and does no I/O.

use std::convert::Infallible;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use smallvec::SmallVec;

use crate::ban::BanList;
use crate::enforce::{Enforce, PanicSwitch};
use crate::fingerprint::{Fingerprint, Secret};
use crate::hit::Hit;
use crate::plan::{Exempt, Plan, PlanContext};
use crate::policy::{PolicyChange, PolicySnapshot};
use crate::rule::RuleSetError;
use crate::store::memory::PolicyCheck;
use crate::store::{ChargeReceipt, MemoryStore};
use crate::sync::{Mutex, lock};
use crate::time::Time;
use crate::track::Outbox;
use crate::track::saved::SavedTracks;
use crate::verdict::{EngineVerdict, LimitVerdict, Reason, VerdictId};

mod bans;
mod central;
mod decisions;
mod deny_cache;
mod explain;
mod inspect;
pub mod log;
mod logged_key;
mod memory_settings;
mod record;
mod request_violations;
mod saved_state;
mod setup;
mod throttle;
mod tracked;
mod violations;

use decisions::Decisions;
use deny_cache::DenyCache;

pub use central::CentralVerdict;
use central::FailedCharge;
pub use explain::ListMatches;
pub use inspect::{CounterDetail, CounterReport, InspectError, InspectMode, KeyReport, TrackScope};
use log::ChangedTracks;
pub use logged_key::LoggedKey;
pub use memory_settings::MemorySettings;
pub use request_violations::RequestViolations;
pub use saved_state::{Restored, SavedStateError};
pub use setup::{EngineSetup, LogKeys};
pub use throttle::ThrottleKey;

/// Hits of a batch that are planned ahead.
const PLAN_AHEAD: usize = 8;

pub struct EngineCore {
    policy: ArcSwap<PolicySnapshot>,
    /// Serialises replacements of the policy.
    policy_lock: Mutex<()>,
    store: MemoryStore,
    secret: Secret,
    bans: BanList,
    panic_switch: PanicSwitch,
    log_keys: LogKeys,
    decisions: Decisions,
    ignored_matches: AtomicU64,
    shadow_bans: AtomicU64,
    deny_cache: DenyCache,
    /// Tracked keys of a saved state whose rules were not hit since.
    saved_tracks: SavedTracks,
    changed_tracks: ChangedTracks,
    /// Whether changes that the state log needs were lost.
    lost_changes: AtomicBool,
    /// Updates of tracked keys that are not written to the central store yet.
    outbox: Outbox,
}

/// What a decision changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecisionMode {
    /// Charges the counters and records the verdict.
    Check,
    /// Changes nothing.
    Peek,
}

/// When a decision may create counters in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum CounterCreation {
    /// While its policy is in force. If the policy was replaced, the hit is decided under the new one instead.
    WhileInForce,
    /// Always: its policy is replaced independently of the one in force, such as limits of another format on the same
    /// counters and statistics. A counter that is created under a replaced version of it is one of an old limit.
    Always,
}

/// The input of a decision: a hit, under one snapshot of a policy.
#[derive(Clone, Copy)]
pub struct DecisionContext<'q, 'h> {
    pub policy: &'q PolicySnapshot,
    pub hit: &'q Hit<'h>,
    pub now: Time,
    pub mode: DecisionMode,
    pub creation: CounterCreation,
    /// Where violations are collected, if the hit is one of several of a request.
    pub violations: Option<&'q RequestViolations<'q>>,
}

impl DecisionContext<'_, '_> {
    /// Whether the plan is charged. A rule that denies without counting charges no other rule (I3).
    #[inline(always)]
    fn may_charge(&self, plan: &Plan<'_>) -> bool {
        self.mode == DecisionMode::Check && !plan.is_denied_by_key
    }
}

impl EngineCore {
    /// An engine with its own secret and at most a gibibyte of counters.
    pub fn new(policy: PolicySnapshot) -> EngineCore {
        EngineCore::with_setup(policy, EngineSetup::default())
    }

    /// # Panics
    ///
    /// If [`try_with_setup`](Self::try_with_setup) fails.
    pub fn with_setup(policy: PolicySnapshot, setup: EngineSetup) -> EngineCore {
        Self::try_with_setup(policy, setup).expect("the address space has room for the memory cap")
    }

    /// Fails where the system does not grant the memory of the counters.
    pub fn try_with_setup(policy: PolicySnapshot, setup: EngineSetup) -> io::Result<EngineCore> {
        let store = MemoryStore::try_new(setup.memory_bytes)?;
        Ok(EngineCore {
            policy: ArcSwap::from_pointee(policy),
            policy_lock: Mutex::new(()),
            store: store.when_full(setup.memory_full).recording(setup.changes),
            bans: BanList::new(setup.secret.clone()).recording(setup.changes),
            secret: setup.secret,
            panic_switch: PanicSwitch::default(),
            log_keys: setup.log_keys,
            decisions: Decisions::new(setup.node),
            ignored_matches: AtomicU64::new(0),
            shadow_bans: AtomicU64::new(0),
            deny_cache: DenyCache::default(),
            saved_tracks: SavedTracks::new(setup.changes),
            changed_tracks: ChangedTracks::default(),
            lost_changes: AtomicBool::new(false),
            outbox: Outbox::default(),
        })
    }

    /// Decides a hit and charges it if it is admitted.
    #[inline(always)]
    pub fn check(&self, hit: &Hit<'_>, now: Time) -> EngineVerdict {
        self.decide(&self.policy.load(), hit, now, DecisionMode::Check)
    }

    /// The verdict that [`check`](Self::check) would return; nothing is charged, tracked or recorded.
    #[inline(always)]
    pub fn peek(&self, hit: &Hit<'_>, now: Time) -> EngineVerdict {
        self.decide(&self.policy.load(), hit, now, DecisionMode::Peek)
    }

    /// Decides a hit under a snapshot of the policy, with counters in memory. If another policy has come into force and
    /// a counter would have to be created, the hit is decided under that policy instead.
    #[inline(always)]
    pub fn decide(
        &self,
        policy: &PolicySnapshot,
        hit: &Hit<'_>,
        now: Time,
        mode: DecisionMode,
    ) -> EngineVerdict {
        let creation = CounterCreation::WhileInForce;
        self.decide_in(&DecisionContext { policy, hit, now, mode, creation, violations: None })
    }

    /// Decides a hit with counters in memory.
    #[inline(always)]
    pub fn decide_in(&self, context: &DecisionContext<'_, '_>) -> EngineVerdict {
        let mut verdict = self.new_verdict(context.policy);
        self.decide_into(&mut verdict, context);
        verdict
    }

    /// A verdict to [decide into](Self::decide_into).
    #[inline(always)]
    pub fn new_verdict(&self, policy: &PolicySnapshot) -> EngineVerdict {
        EngineVerdict::new(self.next_id(policy))
    }

    /// As [`decide_in`](Self::decide_in), into a verdict that is [new](Self::new_verdict). An out-parameter of a function
    /// that is never inlined: the compiler would copy a verdict that is returned, even one that was written in its final
    /// place.
    #[inline(never)]
    pub fn decide_into(&self, verdict: &mut EngineVerdict, context: &DecisionContext<'_, '_>) {
        let mut plan = Plan::new(verdict);
        let planned = self.begin(context, &mut plan, |counter| self.store.prefetch(counter));
        self.decide_planned(context, &mut plan, planned);
    }

    /// Decides while holding the policy lock, so that no other policy can come into force.
    #[cold]
    fn decide_locked(&self, context: &DecisionContext<'_, '_>) -> EngineVerdict {
        let _policy_guard = lock(&self.policy_lock);
        self.decide_in(&DecisionContext { policy: &self.policy.load(), ..*context })
    }

    /// Plans a hit; `prefetch` gets each counter as soon as it is known.
    #[inline(always)]
    fn begin(
        &self,
        context: &DecisionContext<'_, '_>,
        plan: &mut Plan<'_>,
        prefetch: impl Fn(Fingerprint),
    ) -> Result<(), Exempt> {
        let DecisionContext { policy, hit, now, .. } = *context;
        policy.plan(plan, hit, &self.plan_context(now), prefetch)
    }

    #[inline(always)]
    fn plan_context(&self, now: Time) -> PlanContext<'_> {
        PlanContext { enforce: self.panic_switch.get(), bans: &self.bans, secret: &self.secret, now }
    }

    /// Charges a plan in memory, and finishes; see [`CounterCreation`].
    #[inline(always)]
    fn decide_planned(
        &self,
        context: &DecisionContext<'_, '_>,
        plan: &mut Plan<'_>,
        planned: Result<(), Exempt>,
    ) {
        if let Err(exempt) = planned {
            return self.finish_exempt(context, plan.verdict, exempt);
        }
        let is_current = || {
            context.creation == CounterCreation::Always || std::ptr::eq(&**self.policy.load(), context.policy)
        };
        let policy_check = PolicyCheck::while_current(&is_current);
        let may_charge = context.may_charge(plan);
        let limits = plan.verdict.limits_mut();
        match may_charge {
            true => self.store.charge_while(limits, context.now, &policy_check),
            false => self.store.write_peek(limits, context.now),
        };
        if policy_check.was_replaced() {
            *plan.verdict = self.decide_locked(context);
        } else {
            self.finish(context, plan, &[]);
        }
    }

    /// Concludes the verdict from the outcomes of its limits, and records it.
    #[inline(always)]
    fn finish(&self, context: &DecisionContext<'_, '_>, plan: &mut Plan<'_>, failed: &[FailedCharge]) {
        plan.verdict.summarize();
        central::apply_failures(plan.verdict, failed);
        if context.mode == DecisionMode::Check {
            self.record(context, plan);
            self.decisions.count(plan.verdict);
        }
    }

    /// As [`finish`](Self::finish), for a hit that no rule applies to.
    #[inline(never)]
    fn finish_exempt(&self, context: &DecisionContext<'_, '_>, verdict: &mut EngineVerdict, exempt: Exempt) {
        verdict.exempt(exempt, context.now);
        if context.mode == DecisionMode::Check {
            self.decisions.count(verdict);
        }
    }

    /// Decides independent hits, in order. Some are planned ahead, so that the counters of one are prefetched while
    /// another is decided.
    pub fn check_batch(&self, hits: &[Hit<'_>], now: Time) -> Vec<EngineVerdict> {
        self.decide_batch(&self.policy.load(), hits, now)
    }

    /// As [`check_batch`](Self::check_batch), under a snapshot of the policy; see [`decide`](Self::decide).
    pub fn decide_batch(&self, policy: &PolicySnapshot, hits: &[Hit<'_>], now: Time) -> Vec<EngineVerdict> {
        let new_verdict = |_| EngineVerdict::new(self.next_id(policy));
        let mut verdicts: Vec<EngineVerdict> = hits.iter().map(new_verdict).collect();
        for (hits, verdicts) in hits.chunks(PLAN_AHEAD).zip(verdicts.chunks_mut(PLAN_AHEAD)) {
            let bans = self.bans.changes();
            let context = |hit| DecisionContext {
                policy,
                hit,
                now,
                mode: DecisionMode::Check,
                creation: CounterCreation::WhileInForce,
                violations: None,
            };
            let mut plans: SmallVec<[_; PLAN_AHEAD]> = verdicts.iter_mut().map(Plan::ahead).collect();
            let prefetch = |counter| self.store.prefetch(counter);
            let begin = |(hit, plan)| self.begin(&context(hit), plan, prefetch);
            let planned: SmallVec<[_; PLAN_AHEAD]> = hits.iter().zip(&mut plans).map(begin).collect();
            for ((hit, plan), planned) in hits.iter().zip(&mut plans).zip(planned) {
                let context = context(hit);
                if self.bans.changes() == bans {
                    self.decide_planned(&context, plan, planned);
                } else {
                    // An earlier hit may have led to a ban meanwhile.
                    *plan.verdict = self.decide_in(&context);
                }
            }
        }
        verdicts
    }

    /// Reverts the charges of a verdict, as far as they have not leaked or expired since.
    pub fn refund(&self, receipt: ChargeReceipt, now: Time) {
        self.store.refund(receipt, now);
    }

    /// Corrects the cost of the charges of a verdict.
    pub fn settle(&self, receipt: ChargeReceipt, real_cost: u64, now: Time) {
        self.store.settle(receipt, real_cost, now);
    }

    /// Puts a new policy in force; counters are kept. Returns the generations before and after.
    pub fn apply(&self, policy: PolicySnapshot, now: Time) -> (u64, u64) {
        let revised: Result<_, Infallible> = self.revise(|old| Ok(policy.inherit(old, now)));
        revised.unwrap_or_else(|never| match never {})
    }

    /// Puts a new list of rules in force. Rules that were made by changes stay; an id that is in both is an error.
    pub fn apply_list(&self, policy: PolicySnapshot, now: Time) -> Result<(u64, u64), RuleSetError> {
        self.revise(|old| Ok(policy.with_added(old, now)?.inherit(old, now)))
    }

    /// Changes some rules of the policy in force, all or none; counters are kept. Returns the generations before and
    /// after.
    pub fn change(
        &self,
        changes: impl IntoIterator<Item = PolicyChange>,
        now: Time,
    ) -> Result<(u64, u64), RuleSetError> {
        self.revise(|old| old.changed(changes, now))
    }

    /// Replaces the policy in force by one derived from it, atomically; after an error the old one stays in force.
    /// Returns the generations before and after.
    pub fn revise<E>(
        &self,
        next: impl FnOnce(&PolicySnapshot) -> Result<PolicySnapshot, E>,
    ) -> Result<(u64, u64), E> {
        let _policy_guard = lock(&self.policy_lock);
        let old = self.policy.load_full();
        let new = next(&old)?;
        let generations = (old.generation(), new.generation());
        self.policy.store(Arc::new(new));
        Ok(generations)
    }

    /// Sets the panic switch; it is independent of the policy. No counter or ban is lost.
    pub fn set_enforce(&self, enforce: Enforce) {
        self.panic_switch.set(enforce);
    }

    pub fn enforce(&self) -> Enforce {
        self.panic_switch.get()
    }

    /// Distinguishes this node's verdicts from those of other nodes.
    pub fn node(&self) -> u32 {
        self.decisions.node()
    }

    pub fn policy(&self) -> Arc<PolicySnapshot> {
        self.policy.load_full()
    }

    /// As [`policy`](Self::policy), for a short time and without a shared reference count.
    #[inline]
    pub fn borrow_policy(&self) -> impl Deref<Target = Arc<PolicySnapshot>> + '_ {
        self.policy.load()
    }

    pub fn store(&self) -> &MemoryStore {
        &self.store
    }

    /// Distinguishes the fingerprints of this node from those of others; saved with its state.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The key that a verdict reports, as redacted logs show it.
    pub fn key_mark(&self, verdict: &EngineVerdict) -> Option<Fingerprint> {
        let banned = verdict.ban.as_deref().map(|(key, _)| self.ban_mark(&key.to_string()));
        banned.or(verdict.reported().map(LimitVerdict::key_mark))
    }

    fn ban_mark(&self, key: &str) -> Fingerprint {
        self.secret.digest().part(key.as_bytes()).finish()
    }

    /// Number of verdicts by reason.
    pub fn decisions(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL.iter().map(|reason| (*reason, self.decisions.of(*reason)))
    }

    /// Matches that were ignored because a hit had more than the bound.
    pub fn ignored_matches(&self) -> u64 {
        self.ignored_matches.load(Ordering::Relaxed)
    }

    #[inline]
    fn next_id(&self, policy: &PolicySnapshot) -> VerdictId {
        self.decisions.next_id(policy.generation())
    }
}
