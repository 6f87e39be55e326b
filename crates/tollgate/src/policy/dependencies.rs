//! What must be known of a request before it can be decided.

use crate::identity::Attribute;
use crate::policy::PolicySnapshot;
use crate::request::Target;

impl PolicySnapshot {
    /// Whether the decision on a target depends on an attribute that `picks` selects: in the key of a rule for it, as
    /// the source of an identity in the key, or in a list of keys.
    pub fn depends_on(&self, target: &Target<'_>, picks: impl Fn(&Attribute) -> bool) -> bool {
        let identities = &self.settings.identity;
        let looks_at = |attribute: &Attribute| {
            picks(attribute) || identities.iter().any(|(name, source)| name == attribute && picks(source))
        };
        if self.listed_attributes().any(looks_at) {
            return true;
        }
        // Rules for one user are skipped: the general rule with the same pattern depends on the same attribute.
        let matching = self.rules.matching(target, || None::<&str>);
        matching.iter().any(|rule| rule.all_attributes().any(looks_at))
    }
}
