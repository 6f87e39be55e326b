//! Rules: which requests they are about, whom they tell apart, and what they promise.
//!
//! A rule belongs to an API, not to a user. It is valid once it exists; it knows nothing of stores.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::Quota;
use crate::fingerprint::Short;
use crate::identity::Attribute;
use crate::limit::Limit;

mod in_force;
mod index;
mod matcher;
mod once;
mod overrides;
pub mod parse;
mod pattern;
mod pool;
mod set;
mod share;
mod slots;
mod text;
mod tracking;
mod warning;

pub use in_force::RuleInForce;
use in_force::Whereabouts;
pub(crate) use index::Index;
pub use overrides::{Override, Overrides};
pub use pattern::{HostPattern, Pattern};
pub(crate) use set::Numbered;
pub use set::{MAX_MATCHES, RuleSet, RuleSetError, Rules};
pub use share::Share;
pub use slots::Slots;
pub use text::Text;
pub use tracking::Tracking;
pub use warning::{USUAL_CLIENT_TIMEOUT, Warnings};

/// The name of a rule: `[A-Za-z0-9._-]{1,64}`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RuleId(Text);

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

/// A rule is what it is about, and its terms. There may be a million of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    pub id: RuleId,
    pub pattern: Pattern,
    /// The one user whom this rule is for; it stands in for the general rule there.
    pub uid: Option<Text>,
    /// Rules with the same terms share them.
    pub terms: Arc<Terms>,
}

/// What a rule promises, and to whom; read as if it were part of the rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Terms {
    /// What is counted together, in the order of the names; empty counts everybody together.
    pub key: Vec<Attribute>,
    pub missing_key: MissingKey,
    pub limits: Limits,
    pub overrides: Overrides,
    pub cost: u64,
    pub mode: Mode,
    /// For the keys outside of it the rule is in shadow.
    pub enforced: Share,
    /// What is remembered of each key, where the rule asks for it.
    pub track: Option<Tracking>,
    pub on_exceed: OnExceed,
    /// The failure mode, where the rule has its own.
    pub on_store_error: Option<OnStoreError>,
    pub count_denied: bool,
    pub count_when: CountWhen,
    /// The header of a response that says what its request has cost, in lower case.
    pub cost_from: Option<Box<str>>,
    pub ban: Option<BanPolicy>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MissingKey {
    /// The rule does not apply.
    #[default]
    Skip,
    Deny,
    /// All requests that lack the key share one counter.
    Shared,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    #[default]
    Enforce,
    /// Counted and shown, never decisive.
    Shadow,
    Off,
}

impl Mode {
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Enforce => "enforce",
            Mode::Shadow => "shadow",
            Mode::Off => "off",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnExceed {
    #[default]
    Reject,
    Hold,
    Queue,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnStoreError {
    #[default]
    Open,
    Closed,
    Local,
}

/// After which responses a hit counts, where the response is seen.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum CountWhen {
    #[default]
    Always,
    Success,
    Failure,
    Status(Vec<u16>),
}

/// When denials become a ban, and for how long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BanPolicy {
    pub key: Vec<Attribute>,
    pub after: u32,
    pub within: Duration,
    pub first: Duration,
    pub max: Duration,
}

/// One limit of a rule, ready to count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleLimit {
    pub limit: Limit,
    pub quota: Quota,
    /// What tells its counters from those of the rule's other limits, in words and as a mark.
    pub counter: Box<str>,
    pub(crate) mark: Short,
}

impl RuleLimit {
    pub fn new(limit: Limit) -> RuleLimit {
        let counter = limit.counter();
        RuleLimit { limit, quota: Quota::new(&limit), mark: Short::mark(&counter), counter: counter.into() }
    }
}

/// The limits of a rule: the same for all, or by the value of an attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Limits {
    Same(Box<[RuleLimit]>),
    By { attribute: Attribute, values: Vec<(Box<str>, Box<[RuleLimit]>)>, default: Option<Box<[RuleLimit]>> },
}

impl Limits {
    /// The limits for a request; `None` if its attribute has no limits here.
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
            Limits::Same(limits) => (Some(limits), [].as_slice(), None),
            Limits::By { values, default, .. } => (None, values.as_slice(), default.as_ref()),
        };
        let by = by.iter().flat_map(|(_, limits)| limits);
        same.into_iter().flatten().chain(by).chain(default.into_iter().flatten())
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
    type Target = Terms;

    fn deref(&self) -> &Terms {
        &self.terms
    }
}

/// By what mostly tells them apart.
impl Hash for Terms {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.key, self.cost, self.mode.name()).hash(state);
        self.all_limits().for_each(|each| each.limit.hash(state));
    }
}

impl Terms {
    /// Whether what a hit has cost is known only after its response.
    pub fn settles_later(&self) -> bool {
        self.count_when != CountWhen::Always || self.cost_from.is_some()
    }

    /// What is asked of a request: the key, and the attribute that chooses the limits.
    pub fn attributes(&self) -> impl Iterator<Item = &Attribute> {
        let by = match &self.limits {
            Limits::Same(_) => None,
            Limits::By { attribute, .. } => Some(attribute),
        };
        self.key.iter().chain(by)
    }

    /// Every limit that a key of this rule may meet.
    pub fn all_limits(&self) -> impl Iterator<Item = &RuleLimit> {
        self.limits.all().chain(self.overrides.limits())
    }

    /// How long a state of this rule can matter.
    pub fn longest_span(&self) -> Duration {
        self.all_limits().map(|each| each.limit.longest_memory()).max().unwrap_or_default()
    }
}
