//! The rules in force: found by target, known by id.

use std::collections::HashMap;
use std::sync::Arc;

use thiserror::Error;

use crate::identity::Attribute;
use crate::request::Target;
use crate::rule::matcher::{Matcher, Matches, Standing};
use crate::rule::{Mode, Rule, RuleId};

/// No request is charged under more rules than this.
pub const MAX_MATCHES: usize = 64;

#[derive(Default)]
pub struct RuleSet {
    rules: Vec<Arc<Rule>>,
    by_id: HashMap<RuleId, u32>,
    matcher: Matcher,
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RuleSetError {
    #[error("rule id '{0}' is used twice")]
    Duplicate(RuleId),
    #[error("{count} rules on '{pattern}': at most {MAX_MATCHES} may match one request")]
    TooManyMatches { pattern: String, count: usize },
    #[error(
        "rule {rule} has an override for {range}: write one address, or an IPv6 network of /{ipv6_prefix}"
    )]
    Range { rule: RuleId, range: String, ipv6_prefix: u8 },
    #[error("more than {} rules", u32::MAX)]
    TooMany,
}

impl RuleSet {
    pub fn new(rules: Vec<Rule>) -> Result<RuleSet, RuleSetError> {
        u32::try_from(rules.len()).map_err(|_| RuleSetError::TooMany)?;
        let mut set = RuleSet { by_id: HashMap::with_capacity(rules.len()), ..RuleSet::default() };
        for (n, rule) in rules.into_iter().enumerate() {
            if set.by_id.insert(rule.id.clone(), n as u32).is_some() {
                return Err(RuleSetError::Duplicate(rule.id));
            }
            if rule.mode != Mode::Off {
                let count = set.matcher.insert(&rule.pattern, &standing(&rule), n as u32);
                if count > MAX_MATCHES {
                    let pattern = match rule.pattern.to_string() {
                        pattern if pattern.is_empty() => "every request".to_owned(),
                        pattern => pattern,
                    };
                    return Err(RuleSetError::TooManyMatches { pattern, count });
                }
            }
            set.rules.push(Arc::new(rule));
        }
        Ok(set)
    }

    /// The numbers of the rules that apply to a target, in their order. There may be more of them than
    /// [`MAX_MATCHES`]: no rule alone says so.
    pub(crate) fn matching<U: AsRef<str>>(
        &self,
        target: &Target<'_>,
        user: impl Fn() -> Option<U>,
    ) -> Matches {
        self.matcher.find(target, user)
    }

    pub fn number(&self, id: &str) -> Option<usize> {
        self.by_id.get(&RuleId::new(id)?).map(|n| *n as usize)
    }

    /// All rules, in their order.
    pub fn rules(&self) -> &[Arc<Rule>] {
        &self.rules
    }
}

fn standing(rule: &Rule) -> Standing<'_> {
    match &rule.uid {
        Some(uid) if rule.mode == Mode::Shadow => Standing::Beside { uid },
        Some(uid) => Standing::Own { uid },
        None if rule.key == [Attribute::User] => Standing::General,
        None => Standing::Common,
    }
}
