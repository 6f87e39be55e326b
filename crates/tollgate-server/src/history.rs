//! The configuration in force and those before it.
//!
//! A key that was not touched since a change of its limit still holds state under the former one, so a
//! snapshot must tell the former rules too. Must not know how states are kept.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tollgate::{Policy, Time};

use crate::config::Config;

/// The engine follows no longer chains.
const MAX_FORMER: usize = 4;

#[derive(Clone, Serialize, Deserialize)]
pub struct History {
    /// The configuration in force, as it was written.
    text: String,
    /// Oldest first.
    former: Vec<Former>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Former {
    text: String,
    replaced_at_ns: u64,
}

impl History {
    pub fn new(text: String) -> History {
        History { text, former: Vec::new() }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// A configuration with the same rules takes the place of the one in force.
    pub fn reworded(&self, text: String) -> History {
        History { text, former: self.former.clone() }
    }

    /// A configuration with other rules comes into force.
    pub fn followed_by(&self, text: String, now: Time) -> History {
        let surplus = (self.former.len() + 1).saturating_sub(MAX_FORMER);
        let mut former = self.former[surplus..].to_vec();
        former.push(Former { text: self.text.clone(), replaced_at_ns: now.nanos() });
        History { text, former }
    }

    pub fn write(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers are valid JSON")
    }

    pub fn read(saved: &str) -> Option<History> {
        serde_json::from_str(saved).ok()
    }

    /// The policy in force as the successor of those before it.
    pub fn policy(&self) -> Option<Policy> {
        let parse = |text: &str| Config::parse(text, Path::new("")).ok()?.take_policy().ok();
        let texts = self.former.iter().map(|former| &former.text).skip(1).chain([&self.text]);
        let Some(oldest) = self.former.first() else { return parse(&self.text) };
        self.former.iter().zip(texts).try_fold(parse(&oldest.text)?, |policy, (former, next)| {
            Some(parse(next)?.succeed(&policy, Time::from_nanos(former.replaced_at_ns)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(limit: u32) -> String {
        format!("rules: [{{ id: a, limit: {limit}/m }}]")
    }

    #[test]
    fn a_history_is_bounded_and_reads_back() {
        let mut history = History::new(rules(0));
        for n in 1..10 {
            history = history.followed_by(rules(n), Time::from_nanos(u64::from(n)));
        }
        let history =
            History::read(&history.reworded("rules: []".to_owned()).write()).expect("it was written");
        let former: Vec<_> = history.former.iter().map(|former| former.text.clone()).collect();
        assert_eq!(former, [5, 6, 7, 8].map(rules));
        assert_eq!(history.text(), "rules: []");
        assert_eq!(history.policy().expect("valid").generation(), 5);
        assert!(History::read("rules: []").is_none());
    }
}
