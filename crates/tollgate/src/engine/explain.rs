//! What a decision looks up beside counters, to explain it to operators. Nothing is charged or recorded.

use crate::ban::Ban;
use crate::engine::EngineCore;
use crate::hit::Hit;
use crate::identity::Key;
use crate::policy::{AllowSource, PolicySnapshot};
use crate::rule::Rule;
use crate::time::Time;

/// The entries of the lists that a hit is on.
#[derive(Clone, Debug)]
pub struct ListMatches {
    pub allow: Option<(Key, AllowSource)>,
    /// Without effect if the hit is on the allow list, or bans are not enforced.
    pub ban: Option<(Key, Ban)>,
}

impl EngineCore {
    /// Looks a hit up in the allow list and in the bans.
    pub fn list_matches(&self, policy: &PolicySnapshot, hit: &Hit<'_>, now: Time) -> ListMatches {
        ListMatches {
            allow: policy.allow_entry(hit).map(|(key, source)| (key.clone(), source)),
            ban: policy.banned(hit, &self.plan_context(now)),
        }
    }
}

impl PolicySnapshot {
    /// The key of a hit under a rule as text, the first of several; `None` if a part is missing.
    #[inline(never)]
    pub fn key_text(&self, hit: &Hit<'_>, rule: &Rule) -> Option<String> {
        self.key_of(hit, rule).map(|key| key.to_string())
    }
}
