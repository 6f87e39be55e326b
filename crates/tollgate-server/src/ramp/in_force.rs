//! The ramp as it is in force on this node.

use std::collections::{HashMap, HashSet};

use crate::ramp::{RampSetting, RampedRule};

/// The setting, without the rules that were edited since: an edit ends the ramp of its rule.
#[derive(Clone, Debug)]
pub struct RampInForce {
    pub setting: RampSetting,
    edited: HashSet<String>,
    index: HashMap<String, usize>,
    candidates: HashSet<String>,
}

impl RampInForce {
    pub fn new(setting: RampSetting, previous: Option<&RampInForce>) -> RampInForce {
        let same = previous.filter(|previous| previous.setting.id == setting.id);
        let edited = same.map(|previous| previous.edited.clone()).unwrap_or_default();
        let index = setting.rules.iter().enumerate().map(|(n, rule)| (rule.id.clone(), n)).collect();
        let kept = setting.rules.iter().filter(|rule| rule.keeps_before());
        let candidates = kept.map(RampedRule::candidate_id).collect();
        RampInForce { setting, edited, index, candidates }
    }

    /// The rules that are still ramped.
    pub fn rules(&self) -> impl Iterator<Item = &RampedRule> {
        self.setting.rules.iter().filter(|rule| !self.edited.contains(&rule.id))
    }

    pub fn rule(&self, id: &str) -> Option<&RampedRule> {
        let rule = self.index.get(id).map(|n| &self.setting.rules[*n]);
        rule.filter(|rule| !self.edited.contains(&rule.id))
    }

    /// Whether this is the id under which a new version is enforced beside the old one.
    pub fn is_candidate(&self, id: &str) -> bool {
        self.candidates.contains(id)
    }

    pub fn end_rule(&mut self, id: &str) {
        self.edited.insert(id.to_owned());
    }
}
