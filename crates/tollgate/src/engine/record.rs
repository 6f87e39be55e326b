//! What a verdict leaves behind: statistics, tracked keys, violations and bans.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::engine::{DecisionContext, EngineCore};
use crate::hit::MAX_VALUES;
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

    /// Records a violation for each key of a request with several values, or collects them; returns whether one has led to
    /// a ban.
    fn record_violations(&self, context: &DecisionContext<'_, '_>, rule: &Rule, ban: &BanPolicy) -> bool {
        let DecisionContext { policy, hit, now, .. } = *context;
        let columns: SmallVec<[_; 2]> = ban.key.iter().map(|name| policy.all_values(hit, name)).collect();
        let product = columns.iter().fold(1_usize, |product, column| product.saturating_mul(column.len()));
        let mut keys: SmallVec<[Key; 1]> = SmallVec::new();
        for number in violation_numbers(product) {
            let mut rest = number;
            let values = columns.iter().map(|column| {
                let value = abridged(column[rest % column.len()].clone()).into_owned();
                rest /= column.len();
                value
            });
            match Key::new(ban.key.iter().cloned().zip(values).collect()) {
                Ok(key) if !keys.contains(&key) => keys.push(key),
                _ => {}
            }
        }
        if let Some(collected) = context.violations {
            keys.into_iter().for_each(|key| collected.add(key, &rule.id, ban.into()));
            return false;
        }
        let mut banned = false;
        for key in &keys {
            banned |= self.bans.record_violation(key, &rule.id, ban.into(), now);
        }
        banned
    }
}

/// The combinations that a violation is recorded for: all, or the first and the last ones if there are more than
/// [`MAX_VALUES`]. Servers use the first or the last of several values, so decoys between them do not help a client.
fn violation_numbers(product: usize) -> impl Iterator<Item = usize> {
    let first = product.min(MAX_VALUES);
    let split = if product > MAX_VALUES { MAX_VALUES / 2 } else { first };
    (0..split).chain(product - (first - split)..product)
}
