//! What must be known of a request before it can be decided.

use std::cell::Cell;

use crate::identity::Attribute;
use crate::policy::PolicySnapshot;
use crate::request::Target;

impl PolicySnapshot {
    /// Whether the decision on a target depends on an attribute that `picks` selects: in the key of a rule for it, as
    /// the source of an identity in the key, or in a list of keys. `banned` are the attributes of bans beside those of
    /// the policy.
    pub fn depends_on(
        &self,
        target: &Target<'_>,
        banned: &[Attribute],
        picks: impl Fn(&Attribute) -> bool,
    ) -> bool {
        let identities = &self.settings.identity;
        let looks_at = |attribute: &Attribute| {
            picks(attribute) || identities.iter().any(|(name, source)| name == attribute && picks(source))
        };
        if self.listed_attributes().chain(banned).any(looks_at) {
            return true;
        }
        // Rules for single users are not found, but the matcher asks for the user where there are some.
        let has_rules_for_single_users = Cell::new(false);
        let user = || {
            has_rules_for_single_users.set(true);
            None::<&str>
        };
        let matching = self.rules.matching(target, user);
        matching.iter().any(|rule| rule.all_attributes().any(looks_at))
            || (has_rules_for_single_users.get() && looks_at(&Attribute::User))
    }
}
