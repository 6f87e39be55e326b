//! The setting `ramp` of the rules database: the rules of a guarded apply, and the share that is enforced.
//!
//! A rule that was enforced before stays in force until the ramp ends, so that no key is without a limit meanwhile. Its
//! new version is enforced beside it under another id. A deleted rule stays until the end, too.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tollgate::internal::rule::RuleId;
use tollgate_stores::rules::ItemChange;

/// Rules that one guarded apply may change.
pub const MAX_RAMPED_RULES: usize = 1_000;
/// Bytes of their texts, which every step writes again.
const MAX_SETTING_BYTES: usize = 4 << 20;
/// Appended to the id of a new version that is enforced beside the old one.
const CANDIDATE_SUFFIX: &str = ".ramp";

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RampSetting {
    pub id: String,
    pub percent: u8,
    pub guard: String,
    pub rules: Vec<RampedRule>,
}

/// A rule that the apply has changed: its texts before and after.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RampedRule {
    pub id: String,
    pub before: Option<String>,
    pub after: Option<String>,
}

impl RampSetting {
    /// The setting for planned changes, or why they cannot be ramped.
    pub fn new(
        id: String,
        percent: u8,
        guard: String,
        changes: &[(ItemChange, Option<String>)],
    ) -> Result<RampSetting, String> {
        let rules: Vec<RampedRule> = changes
            .iter()
            .map(|(change, before)| RampedRule {
                id: change.item.name.to_string(),
                before: before.clone(),
                after: change.text.clone(),
            })
            .collect();
        let bytes: usize = rules.iter().map(RampedRule::bytes).sum();
        if rules.len() > MAX_RAMPED_RULES || bytes > MAX_SETTING_BYTES {
            return Err(format!(
                "a guarded apply changes at most {MAX_RAMPED_RULES} rules of 4 MiB in all: apply it in parts, or without a guard"
            ));
        }
        if !rules.iter().any(RampedRule::is_ramped) {
            let why = "no rule that it changes would be enforced, so there is nothing to ramp: apply it without a guard";
            return Err(why.to_owned());
        }
        let too_long =
            rules.iter().find(|rule| rule.keeps_before() && RuleId::new(&rule.candidate_id()).is_none());
        if let Some(rule) = too_long {
            let most = RuleId::MAX_LEN - CANDIDATE_SUFFIX.len();
            return Err(format!(
                "the id of rule {} is too long for a guarded change: at most {most} characters",
                rule.id
            ));
        }
        Ok(RampSetting { id, percent, guard, rules })
    }

    pub fn parse(text: &str) -> Result<RampSetting, String> {
        serde_json::from_str(text).map_err(|error| format!("not a ramp: {error}"))
    }

    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("plain fields")
    }

    pub fn at_percent(&self, percent: u8) -> RampSetting {
        RampSetting { percent, ..self.clone() }
    }
}

impl RampedRule {
    fn bytes(&self) -> usize {
        let texts = [&self.before, &self.after].into_iter().flatten();
        self.id.len() + texts.map(String::len).sum::<usize>()
    }

    /// Whether its new version is enforced for a growing share.
    fn is_ramped(&self) -> bool {
        self.after.as_deref().is_some_and(is_enforced)
    }

    /// Whether the old version stays in force until the ramp ends.
    pub fn keeps_before(&self) -> bool {
        self.before.as_deref().is_some_and(is_enforced)
    }

    pub fn candidate_id(&self) -> String {
        format!("{}{CANDIDATE_SUFFIX}", self.id)
    }

    /// The rule in force whose statistics are those of the new version.
    pub fn counted_id(&self) -> Option<String> {
        self.after.as_ref()?;
        Some(if self.keeps_before() { self.candidate_id() } else { self.id.clone() })
    }

    /// Whether the rule that is counted did not exist before the ramp.
    pub fn is_new_to_statistics(&self) -> bool {
        self.before.is_none() || self.keeps_before()
    }

    /// The texts in force at a percentage: under the rule's own id, and beside it.
    pub fn texts_at(&self, percent: u8) -> RampedTexts {
        let ramped = |id: &str| self.after.as_deref().and_then(|after| ramped_text(after, id, percent));
        match self.keeps_before() {
            true => RampedTexts { own: self.before.clone(), candidate: ramped(&self.candidate_id()) },
            false => RampedTexts { own: ramped(&self.id), candidate: None },
        }
    }
}

/// The versions of one rule that are in force; `None` if there is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RampedTexts {
    pub own: Option<String>,
    pub candidate: Option<String>,
}

fn fields(text: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(text).ok()
}

fn is_enforced(text: &str) -> bool {
    let Some(rule) = fields(text) else { return false };
    let has_mode = rule.get("mode").is_none_or(|mode| mode == "enforce");
    has_mode && intended_percent(&rule) > 0
}

fn intended_percent(rule: &Map<String, Value>) -> u64 {
    rule.get("enforce_percent").and_then(Value::as_u64).unwrap_or(100)
}

/// A rule under an id, enforced for a part of the share that it is to be enforced for. A rule without a key, or of one
/// user, has no shares: it is in shadow until the last step.
fn ramped_text(text: &str, id: &str, percent: u8) -> Option<String> {
    let mut rule = fields(text)?;
    rule.insert("id".to_owned(), id.into());
    if percent < 100 && is_enforced(text) {
        let key = rule.get("key").filter(|key| key.as_array().is_none_or(|key| !key.is_empty()));
        if rule.contains_key("uid") || key.is_none() {
            rule.insert("mode".to_owned(), "shadow".into());
        } else {
            let share = (intended_percent(&rule) * u64::from(percent) / 100).max(1);
            rule.insert("enforce_percent".to_owned(), share.into());
        }
    }
    Some(Value::Object(rule).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(before: Option<&str>, after: Option<&str>) -> RampedRule {
        RampedRule { id: "a".to_owned(), before: before.map(str::to_owned), after: after.map(str::to_owned) }
    }

    const OLD: &str = r#"{"id":"a","key":["ip"],"limit":"9/m"}"#;
    const NEW: &str = r#"{"id":"a","key":["ip"],"limit":"5/m"}"#;

    #[test]
    fn a_new_rule_is_enforced_for_a_share_under_its_own_id() {
        let texts = rule(None, Some(NEW)).texts_at(5);
        let own = r#"{"id":"a","key":["ip"],"limit":"5/m","enforce_percent":5}"#;
        assert_eq!(texts, RampedTexts { own: Some(own.to_owned()), candidate: None });
        assert_eq!(rule(None, Some(NEW)).texts_at(100).own.as_deref(), Some(NEW));
        let half = r#"{"id":"a","key":["ip"],"limit":"5/m","enforce_percent":50}"#;
        let own = rule(None, Some(half)).texts_at(25).own.expect("a rule");
        assert!(own.contains(r#""enforce_percent":12"#), "a quarter of the half that is intended: {own}");
    }

    #[test]
    fn an_enforced_rule_stays_in_force_beside_its_new_version() {
        let changed = rule(Some(OLD), Some(NEW));
        let texts = changed.texts_at(1);
        assert_eq!(texts.own.as_deref(), Some(OLD));
        assert!(texts.candidate.is_some_and(|text| text.contains(r#""id":"a.ramp""#)));
        assert_eq!(changed.counted_id().as_deref(), Some("a.ramp"));
        assert_eq!(rule(Some(OLD), None).texts_at(50).own.as_deref(), Some(OLD), "deleted at the end");
        let shadow = r#"{"id":"a","key":["ip"],"limit":"9/m","mode":"shadow"}"#;
        let texts = rule(Some(shadow), Some(NEW)).texts_at(1);
        assert!(texts.own.is_some_and(|own| own.contains("5/m")) && texts.candidate.is_none());
    }

    #[test]
    fn a_rule_without_shares_is_in_shadow_until_the_last_step() {
        for text in [
            r#"{"id":"a","limit":"9/m"}"#,
            r#"{"id":"a","key":[],"limit":"9/m"}"#,
            r#"{"id":"a","uid":"7","url":"/x","time":"m","requests":9}"#,
        ] {
            let own = rule(None, Some(text)).texts_at(50).own.expect("a rule");
            assert!(own.contains(r#""mode":"shadow""#), "{own}");
            assert_eq!(rule(None, Some(text)).texts_at(100).own.as_deref(), Some(text));
        }
    }
}
