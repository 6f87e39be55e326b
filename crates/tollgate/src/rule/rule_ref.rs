//! References to rules for verdicts: a decision changes no reference count that threads of other stripes change.
//!
//! A reference counts on the [`RuleOwner`] of its stripe, which keeps all rules of the policy alive.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use crate::rule::RuleInForce;
use crate::rule::set::Rules;
use crate::stripes::STRIPES;

/// A rule as it was when a verdict was made.
#[derive(Clone)]
pub struct RuleRef {
    owner: Arc<RuleOwner>,
    /// One of the owner's rules.
    rule: NonNull<RuleInForce>,
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

// SAFETY: a reference gives shared access to a rule, and rules are `Sync`; the owner is an `Arc`.
unsafe impl Send for RuleRef {}
// SAFETY: as above.
unsafe impl Sync for RuleRef {}

const _: () = {
    const fn is_shareable<T: Send + Sync>() {}
    is_shareable::<RuleInForce>();
    is_shareable::<RuleOwner>();
};

impl RuleRef {
    /// # Safety
    ///
    /// `rule` is one of the owner's rules.
    #[inline]
    pub(crate) unsafe fn new(owner: &Arc<RuleOwner>, rule: &Arc<RuleInForce>) -> RuleRef {
        RuleRef { owner: Arc::clone(owner), rule: NonNull::from(&**rule) }
    }

    #[inline]
    pub(crate) fn is(&self, rule: &Arc<RuleInForce>) -> bool {
        std::ptr::eq(self.rule.as_ptr(), Arc::as_ptr(rule))
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

impl Deref for RuleRef {
    type Target = RuleInForce;

    #[inline]
    fn deref(&self) -> &RuleInForce {
        let _alive = &self.owner;
        // SAFETY: the owner has an `Arc` of the rule, and never changes.
        unsafe { self.rule.as_ref() }
    }
}

impl fmt::Debug for RuleRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
