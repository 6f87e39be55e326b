//! Rules of a ramp: which versions of them are in force.
//!
//! A rule is ramped while its text in the database is the one that the apply has written; any other edit ends its ramp.

use tollgate_stores::rules::ItemId;

use crate::ramp::{RampInForce, RampSetting, RampedRule};
use crate::rules_follower::apply::{PolicyUpdate, UpdateSource, parse_rule};

impl PolicyUpdate<'_> {
    /// Puts the text of a rule in force, or the versions that its ramp has meanwhile.
    pub(super) fn put_rule_text(&mut self, id: &str, text: &str) -> Result<(), String> {
        match self.ramped_rule(id) {
            Some(rule) if rule.after.as_deref() == Some(text) => self.put_ramped(&rule),
            Some(rule) => {
                self.end_rule(&rule);
                self.put_text(text)
            }
            None => self.put_text(text),
        }
    }

    pub(super) fn remove_rule(&mut self, id: &str) -> Result<(), String> {
        if self.ramp.as_ref().is_some_and(|ramp| ramp.is_candidate(id)) {
            return Ok(());
        }
        match self.ramped_rule(id) {
            Some(rule) if rule.after.is_none() => self.put_ramped(&rule),
            Some(rule) => {
                self.end_rule(&rule);
                self.remove_item(&ItemId::rule(id))
            }
            None => self.remove_item(&ItemId::rule(id)),
        }
    }

    /// Begins a ramp, or takes its next step.
    pub(super) fn set_ramp(&mut self, text: &str) -> Result<(), String> {
        let mut ramp = RampInForce::new(RampSetting::parse(text)?, self.ramp.as_ref());
        let left: Vec<_> = self.ramp.iter().flat_map(RampInForce::rules).cloned().collect();
        for rule in left.into_iter().filter(|rule| ramp.rule(&rule.id).is_none()) {
            self.restore(&rule)?;
        }
        let rules: Vec<_> = ramp.rules().cloned().collect();
        if self.source == UpdateSource::Load {
            for rule in rules.iter().filter(|rule| !self.is_as_applied(rule)) {
                ramp.end_rule(&rule.id);
            }
        }
        let rules: Vec<_> = ramp.rules().cloned().collect();
        self.ramp = Some(ramp);
        rules.iter().try_for_each(|rule| self.put_ramped(rule))
    }

    /// Puts all rules of the ramp in force as they are written.
    pub(super) fn end_ramp(&mut self) {
        let rules: Vec<_> = self.ramp.take().iter().flat_map(RampInForce::rules).cloned().collect();
        for rule in rules {
            if let Err(why) = self.restore(&rule) {
                tracing::error!("rules database: rule {} is not in force here: {why}", rule.id);
            }
        }
    }

    fn ramped_rule(&self, id: &str) -> Option<RampedRule> {
        self.ramp.as_ref()?.rule(id).cloned()
    }

    /// Whether a rule that was loaded is the one that the apply has written.
    fn is_as_applied(&self, rule: &RampedRule) -> bool {
        let Some(after) = &rule.after else { return true };
        let in_force = self.policy().rule(&rule.id);
        let applied = parse_rule(after).ok();
        applied.is_some() && in_force.map(|in_force| &***in_force) == applied.as_ref()
    }

    fn put_ramped(&mut self, rule: &RampedRule) -> Result<(), String> {
        let percent = self.ramp.as_ref().map_or(100, |ramp| ramp.setting.percent);
        let texts = rule.texts_at(percent);
        match texts.own {
            Some(own) => self.put_text(&own)?,
            None => self.remove_item(&ItemId::rule(&rule.id))?,
        }
        match texts.candidate {
            Some(candidate) => self.put_text(&candidate),
            None => Ok(()),
        }
    }

    /// The rule as it is written, without the version beside it.
    fn restore(&mut self, rule: &RampedRule) -> Result<(), String> {
        self.remove_candidate(rule);
        match &rule.after {
            Some(after) => self.put_text(after),
            None => self.remove_item(&ItemId::rule(&rule.id)),
        }
    }

    fn end_rule(&mut self, rule: &RampedRule) {
        self.remove_candidate(rule);
        if let Some(ramp) = &mut self.ramp {
            ramp.end_rule(&rule.id);
        }
    }

    fn remove_candidate(&mut self, rule: &RampedRule) {
        if rule.keeps_before() {
            self.remove_item(&ItemId::rule(&rule.candidate_id())).ok(); // a removal always succeeds
        }
    }

    fn put_text(&mut self, text: &str) -> Result<(), String> {
        let rule = parse_rule(text).map_err(|problems| problems.to_string())?;
        self.put_rule(rule)
    }
}
