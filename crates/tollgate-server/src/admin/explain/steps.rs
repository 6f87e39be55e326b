//! The steps of a decision: allow list, bans, then every rule that matches the request.

use tollgate::Hit;
use tollgate::Time;
use tollgate::internal::Enforce;
use tollgate::internal::EngineVerdict;
use tollgate::internal::engine::ListMatches;
use tollgate::internal::policy::AllowSource;
use tollgate::internal::rule::{MAX_MATCHES, Rule, RuleInForce, RuleMode};
use tollgate::internal::time::calendar::rfc3339;
use tollgate::internal::time::format_duration;
use tollgate::internal::verdict::{KeyDenial, LimitVerdict, Reason, whole_seconds};

use super::{ExplainedStep, RuleSources};
use crate::gate::{Gate, GateSnapshot};

/// A decision that was made without charging it.
pub(super) struct PeekedDecision<'d, 'h> {
    pub(super) gate: &'d Gate,
    pub(super) snapshot: &'d GateSnapshot,
    pub(super) hit: &'d Hit<'h>,
    pub(super) verdict: &'d EngineVerdict,
    pub(super) enforce: Enforce,
}

impl PeekedDecision<'_, '_> {
    pub(super) fn all(&self, lists: &ListMatches) -> Vec<ExplainedStep> {
        let mut steps = vec![allow_step(lists), self.ban_step(lists)];
        let sources = RuleSources::new(self.gate);
        for (n, rule) in self.snapshot.policy.matching(self.hit).enumerate() {
            let source = sources.of(rule);
            let mut found = self.rule_steps(rule);
            if found.is_empty() {
                found
                    .push(ExplainedStep { why: self.why_without_limit(rule, n), ..ExplainedStep::default() });
            }
            steps.extend(found.into_iter().map(|step| ExplainedStep {
                step: "rule",
                rule: Some(rule.id.to_string()),
                source: Some(source.clone()),
                matched: true,
                key: self.snapshot.policy.key_text(self.hit, rule).filter(|key| !key.is_empty()),
                ..step
            }));
        }
        steps
    }

    fn ban_step(&self, lists: &ListMatches) -> ExplainedStep {
        let Some((key, ban)) = &lists.ban else { return unlisted("ban", "the request is not banned") };
        let until = match ban.until {
            Time::MAX => "until further notice".to_owned(),
            until => format!("until {}", rfc3339(until)),
        };
        let because = if ban.reason.is_empty() { String::new() } else { format!(": {}", ban.reason) };
        let effect = match (lists.allow.is_some(), self.enforce) {
            (true, _) => "; without effect, because the allow list comes first",
            (false, Enforce::On) => "",
            (false, _) => "; without effect, because the panic switch is not on",
        };
        ExplainedStep {
            step: "ban",
            source: Some(ban.source.name().to_owned()),
            matched: true,
            key: Some(key.to_string()),
            why: format!("banned {until}{because}{effect}"),
            shadow: self.enforce != Enforce::On,
            ..ExplainedStep::default()
        }
    }

    /// One step for each limit of a rule that was looked at.
    fn rule_steps(&self, rule: &RuleInForce) -> Vec<ExplainedStep> {
        let of_rule = |limit: &&LimitVerdict| limit.rule.id == rule.id;
        let limits = self.verdict.limits().iter().filter(of_rule);
        limits.map(|limit| self.limit_step(rule, limit)).collect()
    }

    fn limit_step(&self, rule: &Rule, limit: &LimitVerdict) -> ExplainedStep {
        let is_shadow = limit.mode != RuleMode::Enforce;
        let counts_denials = rule.count_denied && !limit.is_allowed() && limit.key_denial().is_none();
        let charged = match self.verdict.allowed {
            true => limit.is_charged(),
            false => counts_denials && !is_shadow,
        };
        let capacity = limit.limit.capacity();
        ExplainedStep {
            limit: Some(limit.limit.to_string()),
            used: Some(capacity.saturating_sub(limit.remaining())),
            remaining: Some(limit.remaining()),
            charged,
            why: self.why(rule, limit),
            shadow: is_shadow,
            ..ExplainedStep::default()
        }
    }

    fn why(&self, rule: &Rule, limit: &LimitVerdict) -> String {
        if limit.is_skipped() {
            return "skipped: its counter cannot be read, and the rule fails open".to_owned();
        }
        let capacity = limit.limit.capacity();
        let remaining = limit.remaining();
        let not_enforced = match self.not_enforced(rule, limit) {
            Some(why) => format!("; not enforced, because {why}"),
            None => String::new(),
        };
        if limit.is_allowed() {
            let charge = match (self.verdict.allowed, self.denier()) {
                (false, Some(denier)) => format!("; not charged, because {denier} denies the request"),
                _ => String::new(),
            };
            return format!(
                "allows it: costs {} of {remaining} left of {capacity}{charge}{not_enforced}",
                limit.cost()
            );
        }
        let denies = if not_enforced.is_empty() { "denies it" } else { "would deny it" };
        let because = match (limit.key_denial(), limit.retry_after()) {
            (Some(KeyDenial::MissingKey), _) => format!("the request has no {}", self.missing(rule)),
            (Some(KeyDenial::AmbiguousKey), _) => {
                "the request has several values for the rule's key".to_owned()
            }
            (None, Some(after)) => format!(
                "costs {} of {remaining} left of {capacity}, and passes in {}",
                limit.cost(),
                wait(after)
            ),
            (None, None) => format!("costs {}, and at most {capacity} pass at once", limit.cost()),
        };
        format!("{denies}: {because}{not_enforced}")
    }

    /// Why the rule does not decide, if it does not.
    fn not_enforced(&self, rule: &Rule, limit: &LimitVerdict) -> Option<String> {
        if limit.mode == RuleMode::Enforce {
            return None;
        }
        Some(match (self.enforce, rule.mode) {
            (Enforce::On, RuleMode::Enforce) => {
                format!("enforce_percent is {} and leaves this key out", rule.enforced.percent())
            }
            (Enforce::On, _) => "its mode is shadow".to_owned(),
            _ => "the panic switch is not on".to_owned(),
        })
    }

    /// The rule that denies the request.
    fn denier(&self) -> Option<&str> {
        self.verdict.reported().map(|limit| limit.rule.id.as_str())
    }

    fn why_without_limit(&self, rule: &Rule, n: usize) -> String {
        match self.verdict.reason {
            Reason::AllowList => "not looked at: the allow list comes first".to_owned(),
            Reason::Ban => "not looked at: the request is banned".to_owned(),
            _ if self.enforce == Enforce::Off => "not looked at: the panic switch is off".to_owned(),
            _ if n >= MAX_MATCHES => format!("not looked at: more than {MAX_MATCHES} rules match"),
            _ => format!("skipped: the request has no {}", self.missing(rule)),
        }
    }

    /// The attributes of the rule that the request lacks.
    fn missing(&self, rule: &Rule) -> String {
        let policy = &self.snapshot.policy;
        let missing = rule.attributes().filter(|attribute| policy.value(self.hit, attribute).is_none());
        let missing: Vec<_> = missing.map(ToString::to_string).collect();
        if missing.is_empty() { "limit for its attributes".to_owned() } else { missing.join(" and no ") }
    }
}

fn allow_step(lists: &ListMatches) -> ExplainedStep {
    let Some((key, source)) = &lists.allow else {
        return unlisted("allow_list", "the request is not on the allow list");
    };
    let source = if *source == AllowSource::File { "file" } else { "database" };
    ExplainedStep {
        step: "allow_list",
        source: Some(source.to_owned()),
        matched: true,
        key: Some(key.to_string()),
        why: "on the allow list: neither bans nor rules apply".to_owned(),
        ..ExplainedStep::default()
    }
}

fn unlisted(step: &'static str, why: &str) -> ExplainedStep {
    ExplainedStep { step, why: why.to_owned(), ..ExplainedStep::default() }
}

fn wait(duration: std::time::Duration) -> String {
    format_duration(whole_seconds(duration))
}
