//! Rules: the requests that they match, the keys that they count by, and their limits.
//!
//! A rule belongs to an API, not to a user. It is validated at construction; it knows nothing of stores.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::Quota;
use crate::fingerprint::ShortPart;
use crate::identity::Attribute;
use crate::limit::Limit;
use crate::request::Target;

mod attribute_counts;
mod deny_options;
mod enforced_share;
mod in_force;
mod matcher;
mod overrides;
pub mod parse;
mod pattern;
mod rule_interner;
mod rule_ref;
mod set;
mod tracking;
mod warning;

pub use crate::collections::{CompactText, PersistentVec, SharedStr};
pub use deny_options::{DenyOptions, OwnBody};
pub use enforced_share::EnforcedShare;
pub use in_force::RuleInForce;
pub(crate) use matcher::Matches;
pub use overrides::{Override, Overrides};
pub use pattern::{HostPattern, PathCase, Pattern, RuleMethod};
pub(crate) use rule_ref::RuleOwner;
pub use rule_ref::{RuleRef, VerdictLimit, VerdictRule};
pub(crate) use set::IndexEntry;
pub use set::{MAX_MATCHES, RuleSet, RuleSetError, Rules};
pub use tracking::Tracking;
pub use warning::{USUAL_CLIENT_TIMEOUT, Warnings};

/// The name of a rule: `[A-Za-z0-9._-]{1,64}`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RuleId(SharedStr);

impl RuleId {
    pub const MAX_LEN: usize = 64;

    pub fn new(text: &str) -> Option<RuleId> {
        let fits = (1..=Self::MAX_LEN).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        fits.then(|| RuleId(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for RuleId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A rule: its pattern, its limits and its other settings. There may be a million rules, so a rule is small and shares
/// common parts with other rules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    pub id: RuleId,
    pub pattern: Pattern,
    /// The one user that this rule is for; for that user it replaces the general rule.
    pub uid: Option<CompactText>,
    pub limits: Arc<Limits>,
    /// Separate from the limits, because limits vary more than the other settings.
    pub settings: Arc<RuleSettings>,
}

/// How a rule is applied, and to which keys; a rule dereferences to its settings.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RuleSettings {
    pub method: RuleMethod,
    /// The attributes that are counted together, in the order of their names; empty: one counter for all clients.
    pub key: Vec<Attribute>,
    pub missing_key: MissingKey,
    pub ambiguous_key: AmbiguousKey,
    pub overrides: Overrides,
    pub cost: u64,
    pub mode: RuleMode,
    /// For keys outside this share the rule is in shadow.
    pub enforced: EnforcedShare,
    /// What is recorded of each key, if the rule tracks.
    pub track: Option<Tracking>,
    pub on_exceed: OnExceed,
    /// The failure mode, if the rule has its own.
    pub on_store_error: Option<OnStoreError>,
    pub count_denied: bool,
    pub count_when: CountWhen,
    /// The response header that contains the cost of the request, in lower case.
    pub cost_from: Option<Box<str>>,
    pub ban: Option<BanPolicy>,
    /// The response to denied clients, if the rule sets one.
    pub deny: Option<Box<DenyOptions>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MissingKey {
    /// The rule does not apply.
    #[default]
    Skip,
    Deny,
    /// All requests that lack the key share one counter.
    Shared,
}

/// What several values for one key mean.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AmbiguousKey {
    Deny,
    /// Each value is charged, or none.
    Each,
}

impl AmbiguousKey {
    /// The default: several values are handled as strictly as a missing one.
    pub fn default_for(missing: MissingKey) -> AmbiguousKey {
        match missing {
            MissingKey::Deny => AmbiguousKey::Deny,
            MissingKey::Skip | MissingKey::Shared => AmbiguousKey::Each,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum RuleMode {
    #[default]
    Enforce,
    /// Counted and reported, never decisive.
    Shadow,
    Off,
}

impl RuleMode {
    pub const fn name(self) -> &'static str {
        match self {
            RuleMode::Enforce => "enforce",
            RuleMode::Shadow => "shadow",
            RuleMode::Off => "off",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OnExceed {
    #[default]
    Reject,
    Hold,
    Queue,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OnStoreError {
    #[default]
    Open,
    Closed,
    Local,
}

/// The responses after which a hit counts, where the response is known.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum CountWhen {
    #[default]
    Always,
    Success,
    Failure,
    Status(Vec<u16>),
}

/// When denials become a ban, and for how long.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BanPolicy {
    pub key: Vec<Attribute>,
    pub after: u32,
    pub within: Duration,
    pub first: Duration,
    pub max: Duration,
}

/// One limit of a rule, with its quota.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleLimit {
    pub limit: Limit,
    pub quota: Quota,
    /// A hash of [`Limit::counter_label`], which distinguishes its counters from those of the rule's other limits.
    pub(crate) counter_hash: ShortPart,
}

impl RuleLimit {
    pub fn new(limit: Limit) -> RuleLimit {
        RuleLimit {
            limit,
            quota: Quota::new(&limit),
            counter_hash: ShortPart::of_text(&limit.counter_label()),
        }
    }
}

/// Everything else is derived from the limit.
impl Hash for RuleLimit {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.limit.hash(state);
    }
}

/// The limits of a rule: the same for all keys, or chosen by the value of an attribute.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Limits {
    /// Most rules have one.
    Same(SmallVec<[RuleLimit; 1]>),
    By {
        attribute: Attribute,
        values: Vec<(Box<str>, Box<[RuleLimit]>)>,
        default: Option<Box<[RuleLimit]>>,
    },
}

impl Limits {
    /// The limits for a request; `None` if there are none for the value of its attribute.
    pub fn resolve(&self, value: impl FnOnce(&Attribute) -> Option<String>) -> Option<&[RuleLimit]> {
        match self {
            Limits::Same(limits) => Some(limits),
            Limits::By { attribute, values, default } => {
                let value = value(attribute);
                let listed = values.iter().find(|(name, _)| Some(name.as_ref()) == value.as_deref());
                listed.map(|(_, limits)| limits).or(default.as_ref()).map(AsRef::as_ref)
            }
        }
    }

    pub fn all(&self) -> impl Iterator<Item = &RuleLimit> {
        let (same, by, default) = match self {
            Limits::Same(limits) => (limits.as_slice(), [].as_slice(), None),
            Limits::By { values, default, .. } => ([].as_slice(), values.as_slice(), default.as_ref()),
        };
        let by = by.iter().flat_map(|(_, limits)| limits);
        same.iter().chain(by).chain(default.into_iter().flatten())
    }
}

impl CountWhen {
    /// Whether a hit counts after a response with this status.
    pub fn counts(&self, status: u16) -> bool {
        match self {
            CountWhen::Always => true,
            CountWhen::Success => status < 400,
            CountWhen::Failure => status >= 400,
            CountWhen::Status(statuses) => statuses.contains(&status),
        }
    }
}

impl Deref for Rule {
    type Target = RuleSettings;

    fn deref(&self) -> &RuleSettings {
        &self.settings
    }
}

impl RuleSettings {
    /// Whether the cost of a hit is known only after its response.
    pub fn settles_later(&self) -> bool {
        self.count_when != CountWhen::Always || self.cost_from.is_some()
    }
}

impl Rule {
    /// The `match:` of the rule; empty if it matches every request.
    pub fn match_text(&self) -> String {
        match self.method.name() {
            Some(method) => format!("{method} {}", self.pattern),
            None => self.pattern.to_string(),
        }
    }

    /// Whether a request matches, whatever its identities.
    #[inline(always)]
    pub(crate) fn matches(&self, target: &Target<'_>, case: PathCase) -> bool {
        self.method.name().is_none_or(|own| pattern::covers(own, target.method()))
            && self.pattern.matches(target.host(), target.path(), case)
    }

    /// Whether both match the same requests.
    pub(crate) fn has_pattern_of(&self, other: &Rule) -> bool {
        self.pattern == other.pattern && self.method == other.method
    }

    /// The attributes that are needed of a request: the key, and the one that chooses the limits.
    pub fn attributes(&self) -> impl Iterator<Item = &Attribute> {
        let by = match &*self.limits {
            Limits::Same(_) => None,
            Limits::By { attribute, .. } => Some(attribute),
        };
        self.key.iter().chain(by)
    }

    /// These attributes, and those of the key that it bans.
    pub fn all_attributes(&self) -> impl Iterator<Item = &Attribute> {
        self.attributes().chain(self.ban.iter().flat_map(|ban| &ban.key))
    }

    /// The limits, if they are the same for all keys.
    #[inline(always)]
    pub(crate) fn only_limits(&self) -> Option<&[RuleLimit]> {
        match &*self.limits {
            Limits::Same(limits) if self.overrides.is_empty() => Some(limits),
            _ => None,
        }
    }

    /// Every limit that a key of this rule may be charged under.
    pub fn all_limits(&self) -> impl Iterator<Item = &RuleLimit> {
        self.limits.all().chain(self.overrides.limits())
    }

    /// The longest time for which a state of this rule matters.
    pub fn max_state_lifetime(&self) -> Duration {
        self.all_limits().map(|each| each.limit.max_state_lifetime()).max().unwrap_or_default()
    }
}
