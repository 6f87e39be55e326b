//! What a verdict leaves behind: statistics, tracked keys, violations and bans.

use std::sync::atomic::Ordering;

use crate::engine::{DecisionContext, EngineCore};
use crate::identity::{Key, abridged};
use crate::plan::Plan;
use crate::rule::{BanPolicy, Rule};
use crate::time::Time;
use crate::verdict::LimitVerdict;

impl EngineCore {
    /// Records a verdict.
    #[inline(always)]
    pub(super) fn record(&self, context: &DecisionContext<'_, '_>, plan: &Plan<'_>) {
        if plan.ignored > 0 {
            self.ignored_matches.fetch_add(plan.ignored as u64, Ordering::Relaxed);
        }
        if plan.banned {
            self.shadow_bans.fetch_add(1, Ordering::Relaxed);
        }
        match plan.verdict.limits() {
            limits @ [only] if only.is_allowed() => {
                self.track_key(limits, context.now);
                only.rule.stats().count_allowed();
            }
            limits => self.record_limits(context, limits),
        }
    }

    /// Counts the request for each rule. All limits of a rule are consecutive, also those of several keys: for the rule
    /// they are one request.
    #[inline(always)]
    fn record_limits(&self, context: &DecisionContext<'_, '_>, limits: &[LimitVerdict]) {
        let mut denier = None;
        for (n, limit) in limits.iter().enumerate() {
            if limit.starts_key {
                self.track_key(&limits[n..], context.now);
            }
            if !limit.is_allowed() {
                denier = denier.or(Some(limit));
            }
            if limits.get(n + 1).is_some_and(|next| next.rule.is(&limit.rule)) {
                continue;
            }
            match denier.take() {
                None => limit.rule.stats().count_allowed(),
                Some(denier) => self.record_denial(context, denier),
            }
        }
    }

    /// Tracks the key that the limits start with, if its rule tracks.
    #[inline(always)]
    fn track_key(&self, limits: &[LimitVerdict], now: Time) {
        if let Some(tracking) = limits.first().and_then(|limit| limit.rule.track) {
            self.track(limits, tracking, now);
        }
    }

    /// Counts a denial by a rule, and the violation that it may be.
    #[inline(never)]
    fn record_denial(&self, context: &DecisionContext<'_, '_>, denier: &LimitVerdict) {
        let rule = &denier.rule;
        let stats = rule.stats();
        if !denier.is_enforced() {
            return stats.count_shadow_denied();
        }
        stats.count_denied();
        if let Some(ban) = &rule.ban
            && self.record_violations(context, rule, ban)
        {
            stats.count_banned();
        }
    }

    /// Records a violation for each key of a request with several values; returns whether it has led to a ban.
    fn record_violations(&self, context: &DecisionContext<'_, '_>, rule: &Rule, ban: &BanPolicy) -> bool {
        let DecisionContext { policy, hit, now, .. } = *context;
        let mut banned = false;
        for values in policy.combinations(hit, &ban.key).unwrap_or_default() {
            if values.iter().any(|value| value.is_empty()) {
                continue;
            }
            let values = values.into_iter().map(|value| abridged(value).into_owned());
            let parts = ban.key.iter().cloned().zip(values).collect();
            if let Ok(key) = Key::new(parts) {
                banned |= self.bans.record_violation(&key, &rule.id, ban.into(), now);
            }
        }
        banned
    }
}
