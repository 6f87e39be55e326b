//! References to rules for verdicts: a decision changes no reference count that threads of other stripes change.
//!
//! A verdict counts once on the [`RuleOwner`] of its stripe, which keeps all rules of the policy alive, however many
//! of them its limits refer to.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use crate::limit::Limit;
use crate::rule::set::Rules;
use crate::rule::{RuleInForce, RuleLimit};
use crate::stripes::STRIPES;

/// A rule as it was when a verdict was made. It is kept alive by the verdict, which it cannot be taken from: it has no
/// `Clone`, and its verdict shows it by reference only.
pub struct VerdictRule(NonNull<RuleInForce>);

/// A limit of such a rule.
pub struct VerdictLimit(NonNull<RuleLimit>);

/// A rule as it was when a verdict was made, for longer than the verdict.
pub struct RuleRef {
    rule: VerdictRule,
    _owner: Arc<RuleOwner>,
}

/// The rules of a policy, shared by the verdicts of one stripe of threads. Aligned, so that the reference counts of two
/// of them are in different cache lines.
#[repr(align(128))]
pub(crate) struct RuleOwner {
    _rules: Rules,
}

/// The owners of a set of rules, one per stripe, created on first use. A copy of the set creates its own.
#[derive(Default)]
pub(crate) struct RuleOwners(OnceLock<Box<[OnceLock<Arc<RuleOwner>>; STRIPES]>>);

// SAFETY: it gives shared access to a rule, and rules are `Sync`.
unsafe impl Send for VerdictRule {}
// SAFETY: as above.
unsafe impl Sync for VerdictRule {}

// SAFETY: it gives shared access to a limit, and limits are `Sync`.
unsafe impl Send for VerdictLimit {}
// SAFETY: as above.
unsafe impl Sync for VerdictLimit {}

const _: () = {
    const fn is_shareable<T: Send + Sync>() {}
    is_shareable::<RuleInForce>();
    is_shareable::<RuleLimit>();
    is_shareable::<RuleOwner>();
};

impl VerdictRule {
    /// # Safety
    ///
    /// The rule outlives every use: it is stored together with an owner of it.
    #[inline]
    pub(crate) unsafe fn new(rule: &Arc<RuleInForce>) -> VerdictRule {
        VerdictRule(NonNull::from(&**rule))
    }

    /// Whether both are the same version of one rule.
    #[inline]
    pub(crate) fn is(&self, other: &VerdictRule) -> bool {
        self.0 == other.0
    }

    /// # Safety
    ///
    /// `owner` owns the rule.
    pub(crate) unsafe fn to_ref(&self, owner: &Arc<RuleOwner>) -> RuleRef {
        RuleRef { rule: VerdictRule(self.0), _owner: Arc::clone(owner) }
    }
}

impl VerdictLimit {
    /// # Safety
    ///
    /// It is a limit of a rule that outlives every use.
    #[inline]
    pub(crate) unsafe fn new(limit: &RuleLimit) -> VerdictLimit {
        VerdictLimit(NonNull::from(limit))
    }

    /// The limit with its quota.
    #[inline]
    pub(crate) fn with_quota(&self) -> &RuleLimit {
        // SAFETY: it is part of a rule that is stored together with its owner, and rules never change.
        unsafe { self.0.as_ref() }
    }
}

impl RuleOwners {
    /// The owner of these rules for a stripe of threads.
    #[inline]
    pub(crate) fn get(&self, stripe: usize, rules: &Rules) -> &Arc<RuleOwner> {
        let owners = self.0.get_or_init(|| Box::new([const { OnceLock::new() }; STRIPES]));
        owners[stripe % STRIPES].get_or_init(|| Arc::new(RuleOwner { _rules: rules.clone() }))
    }

    /// To be called before the rules change.
    pub(crate) fn clear(&mut self) {
        self.0.take();
    }
}

impl Clone for RuleOwners {
    fn clone(&self) -> RuleOwners {
        RuleOwners::default()
    }
}

impl Deref for VerdictRule {
    type Target = RuleInForce;

    #[inline]
    fn deref(&self) -> &RuleInForce {
        // SAFETY: it is stored together with an owner of the rule, which never changes.
        unsafe { self.0.as_ref() }
    }
}

impl Deref for VerdictLimit {
    type Target = Limit;

    #[inline]
    fn deref(&self) -> &Limit {
        &self.with_quota().limit
    }
}

impl Deref for RuleRef {
    type Target = RuleInForce;

    #[inline]
    fn deref(&self) -> &RuleInForce {
        &self.rule
    }
}

impl fmt::Debug for VerdictRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl fmt::Debug for VerdictLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl fmt::Display for VerdictLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl fmt::Debug for RuleOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RuleOwner")
    }
}
