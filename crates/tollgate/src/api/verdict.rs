//! The answer of the engine.

use std::time::Duration;

use crate::headers::{HeaderStyle, headers};
use crate::store::ChargeReceipt;
use crate::time::Time;
use crate::verdict::{EngineVerdict, LimitVerdict, Reason};

/// Whether a hit is admitted, why, and what its sender should know.
#[derive(Debug)]
pub struct Verdict {
    inner: EngineVerdict,
}

/// What one limit of one rule says about a hit.
#[derive(Clone, Copy, Debug)]
pub struct LimitStatus<'v> {
    inner: &'v LimitVerdict,
}

/// The right to refund a charge, or to correct its cost. Using it consumes it.
#[derive(Debug)]
pub struct Receipt {
    pub(crate) inner: ChargeReceipt,
}

impl Verdict {
    pub(super) fn new(inner: EngineVerdict) -> Verdict {
        Verdict { inner }
    }

    /// Whether the hit is admitted.
    pub fn is_allowed(&self) -> bool {
        self.inner.allowed
    }

    /// Why.
    pub fn reason(&self) -> Reason {
        self.inner.reason
    }

    /// Until the same hit would be admitted; `None` if it is admitted now, or never will be.
    pub fn retry_after(&self) -> Option<Duration> {
        self.inner.retry_after
    }

    /// How long an admitted hit is to be held: not zero for a leaky bucket that is in use.
    pub fn delay(&self) -> Duration {
        self.inner.delay
    }

    /// The limit that decided: on denial the one with the longest wait, else the one with the least remaining.
    pub fn reported(&self) -> Option<LimitStatus<'_>> {
        self.inner.reported().map(|inner| LimitStatus { inner })
    }

    /// Every limit that was checked, in the order of the rules.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = LimitStatus<'_>> {
        self.inner.limits().iter().map(|inner| LimitStatus { inner })
    }

    /// When the ban of a banned hit ends; [`Time::MAX`] if it never does.
    pub fn banned_until(&self) -> Option<Time> {
        self.inner.ban.as_deref().map(|(_, ban)| ban.until)
    }

    /// A sentence for the sender of a hit that was denied.
    pub fn message(&self) -> Option<String> {
        self.inner.message()
    }

    /// HTTP headers for the response, names in lower case.
    ///
    /// ```
    /// use tollgate::{Engine, HeaderStyle, Hit};
    ///
    /// let engine = Engine::from_yaml("rules: [{id: all, limit: 5/m}]")?;
    /// let headers = engine.check(&Hit::by("ann")).headers(HeaderStyle::Ietf);
    /// assert_eq!(headers[0], ("ratelimit-policy", "\"all\";q=5;w=60".to_owned()));
    /// # Ok::<(), tollgate::EngineError>(())
    /// ```
    pub fn headers(&self, style: HeaderStyle) -> Vec<(&'static str, String)> {
        headers(&self.inner, style).iter().map(|(name, value)| (name, value.to_owned())).collect()
    }

    /// For refunding or settling what was charged, if anything was.
    pub fn into_receipt(mut self) -> Option<Receipt> {
        self.inner.take_receipt().map(|inner| Receipt { inner })
    }
}

impl<'v> LimitStatus<'v> {
    /// The id of the rule.
    pub fn rule(&self) -> &'v str {
        self.inner.rule.id.as_str()
    }

    /// The limit as it is written, such as `5/m`.
    pub fn limit(&self) -> String {
        self.inner.limit.to_string()
    }

    /// Whether it counts for the verdict: not so for a rule in shadow mode.
    pub fn is_enforced(&self) -> bool {
        self.inner.is_enforced()
    }

    /// Whether this limit would admit the hit.
    pub fn is_allowed(&self) -> bool {
        self.inner.is_allowed()
    }

    /// What is left after this hit.
    pub fn remaining(&self) -> u64 {
        self.inner.remaining()
    }

    /// Until the whole limit is available again.
    pub fn reset_after(&self) -> Duration {
        self.inner.reset_after()
    }

    /// Until this limit would admit the hit.
    pub fn retry_after(&self) -> Option<Duration> {
        self.inner.retry_after()
    }
}
