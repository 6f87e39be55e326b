//! A cache of recent denials: a key that retries at once is denied without a call to the store.
//!
//! A denial is used for at most a second, for costs at least as large as the denied one, and only while the same rules
//! are in force. While the store is unavailable, a rule that fails to local uses it until the key may pass again.
//! Limits whose charges may be refunded are never cached. A full table evicts the oldest denial of a small sample.

use std::time::Duration;

use crate::algorithm::{Admission, Decision};
use crate::engine::EngineCore;
use crate::fingerprint::Fingerprint;
use crate::limit::Shape;
use crate::plan::Plan;
use crate::policy::{PolicySnapshot, StoreSettings};
use crate::rule::OnStoreError;
use crate::sampled_lru::SampledLru;
use crate::store::central::{CentralOutcome, LimitResult};
use crate::store::{Charge, DeniedHits, Enforcement, LimitOutcome};
use crate::sync::{Mutex, lock};
use crate::time::Time;
use crate::verdict::LimitVerdict;

const MAX_AGE: Duration = Duration::from_secs(1);
/// Number of shards; a power of two.
const SHARDS: usize = 16;
const KEYS_PER_SHARD: usize = 4_096;

#[derive(Clone, Copy, Default)]
struct CachedDenial {
    cost: u64,
    left: u64,
    cached_until: Time,
    passes_at: Time,
    expires_at: Time,
    generation: u64,
}

pub(super) struct DenyCache(Vec<Mutex<SampledLru<CachedDenial>>>);

impl Default for DenyCache {
    fn default() -> Self {
        DenyCache((0..SHARDS).map(|_| Mutex::new(SampledLru::new(KEYS_PER_SHARD))).collect())
    }
}

impl DenyCache {
    /// The outcome that the store would return, if a limit is known to deny.
    pub(super) fn find(
        &self,
        policy: &PolicySnapshot,
        plan: &Plan<'_>,
        charges: &[Charge],
        now: Time,
    ) -> Option<CentralOutcome> {
        if !policy.settings().store.deny_cache {
            return None;
        }
        let known = plan.counted().zip(charges).map(|(limit, charge)| {
            let kept = is_cacheable(limit, charge);
            let denial = kept.then(|| self.get(charge, policy.generation(), now)).flatten()?;
            (now < denial.cached_until).then(|| denial.outcome(now))
        });
        let known: Vec<Option<LimitOutcome>> = known.collect();
        known.iter().any(Option::is_some).then(|| {
            let result = |known: Option<_>| known.map_or(LimitResult::Skipped, LimitResult::Answered);
            CentralOutcome { admitted: false, limits: known.into_iter().map(result).collect() }
        })
    }

    /// The last known denial of a charge that failed, while it lasts.
    pub(super) fn last_known(
        &self,
        policy: &PolicySnapshot,
        limit: &LimitVerdict,
        charge: &Charge,
        now: Time,
    ) -> Option<LimitOutcome> {
        let denial = self.get(charge, policy.generation(), now)?;
        is_cacheable(limit, charge).then(|| denial.outcome(now))
    }

    /// Caches denials, and removes those of keys that are admitted.
    pub(super) fn update(
        &self,
        policy: &PolicySnapshot,
        plan: &Plan<'_>,
        charges: &[Charge],
        outcome: &CentralOutcome,
        now: Time,
    ) {
        let StoreSettings { deny_cache, .. } = policy.settings().store;
        for ((limit, charge), part) in plan.counted().zip(charges).zip(&outcome.limits) {
            let is_local = policy.on_store_error(&limit.rule) == OnStoreError::Local;
            let (LimitResult::Answered(part), true) = (part, deny_cache || is_local) else { continue };
            if !is_cacheable(limit, charge) {
                continue;
            }
            if let Admission::Deny { retry_after } = part.decision.admission {
                let denial = CachedDenial {
                    cost: charge.cost,
                    left: part.decision.left,
                    cached_until: now + retry_after.min(MAX_AGE),
                    passes_at: now + retry_after,
                    expires_at: now + part.reset_after,
                    generation: policy.generation(),
                };
                *lock(self.shard(charge)).touch(charge.fingerprint, now) = denial;
            } else if is_local && part.grant.is_some() {
                lock(self.shard(charge)).remove(charge.fingerprint);
            }
        }
    }

    pub(super) fn clear(&self) {
        self.0.iter().for_each(|part| *lock(part) = SampledLru::new(KEYS_PER_SHARD));
    }

    fn get(&self, charge: &Charge, generation: u64, now: Time) -> Option<CachedDenial> {
        let denial = *lock(self.shard(charge)).get(charge.fingerprint)?;
        let holds = now < denial.passes_at && charge.cost >= denial.cost && denial.generation == generation;
        holds.then_some(denial)
    }

    fn shard(&self, charge: &Charge) -> &Mutex<SampledLru<CachedDenial>> {
        self.shard_of(charge.fingerprint)
    }

    fn shard_of(&self, counter: Fingerprint) -> &Mutex<SampledLru<CachedDenial>> {
        &self.0[counter.0 as usize % SHARDS]
    }
}

impl EngineCore {
    /// Removes the known denials of counters: requests on them ask the central store again.
    pub fn forget_denials(&self, counters: impl Iterator<Item = Fingerprint>) {
        for counter in counters {
            lock(self.deny_cache.shard_of(counter)).remove(counter);
        }
    }
}

impl CachedDenial {
    /// The outcome that the store would return now.
    fn outcome(&self, now: Time) -> LimitOutcome {
        let admission = Admission::Deny { retry_after: self.passes_at.since(now) };
        LimitOutcome {
            decision: Decision { admission, left: self.left },
            remaining: self.left,
            reset_after: self.expires_at.since(now),
            grant: None,
        }
    }
}

/// Whether a denial of this charge may be cached.
fn is_cacheable(limit: &LimitVerdict, charge: &Charge) -> bool {
    charge.enforcement == Enforcement::Enforced
        && charge.denied_hits == DeniedHits::Free
        && limit.limit.shape() != Shape::Concurrency
        && !limit.rule.settles_later()
}
