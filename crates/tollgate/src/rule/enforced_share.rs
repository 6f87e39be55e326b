//! The share of a rule's keys for which it is enforced, for gradual rollouts.
//!
//! The selected keys are the same on every node and after every restart, so the hash has no secret; they differ from
//! rule to rule. A larger share includes all keys of a smaller one.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use crate::rule::RuleId;

/// In percent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EnforcedShare(u8);

impl EnforcedShare {
    pub const ALL: EnforcedShare = EnforcedShare(100);

    pub fn new(percent: u64) -> Option<EnforcedShare> {
        u8::try_from(percent)
            .ok()
            .map(EnforcedShare)
            .filter(|share| *share == EnforcedShare::ALL || share.0 < 100)
    }

    pub const fn percent(self) -> u8 {
        self.0
    }

    /// Whether the rule is enforced for a key, given by its values.
    #[inline]
    pub(crate) fn has<'v>(self, rule: &'v RuleId, values: impl Iterator<Item = &'v str>) -> bool {
        self == EnforcedShare::ALL || hundredth(rule, values) < u64::from(self.0)
    }
}

/// The percentile of a key, 0 to 99.
fn hundredth<'v>(rule: &'v RuleId, values: impl Iterator<Item = &'v str>) -> u64 {
    let mut hasher = SipHasher13::new();
    for part in std::iter::once(rule.as_str()).chain(values) {
        hasher.write(&(part.len() as u64).to_le_bytes());
        hasher.write(part.as_bytes());
    }
    ((u128::from(hasher.finish()) * 100) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEYS: u32 = 20_000;

    fn has(percent: u64, rule: &str, key: &str) -> bool {
        let share = EnforcedShare::new(percent).expect("a share");
        let rule = RuleId::new(rule).expect("an id");
        share.has(&rule, [key].into_iter())
    }

    fn count(holds: impl Fn(&str) -> bool) -> f64 {
        f64::from((0..KEYS).filter(|n| holds(&n.to_string())).count() as u32) / f64::from(KEYS) * 100.0
    }

    #[test]
    fn a_share_is_a_percentage_and_nothing_else() {
        assert_eq!(
            [0, 1, 99, 100].map(|percent| EnforcedShare::new(percent).map(EnforcedShare::percent)),
            [0, 1, 99, 100].map(Some)
        );
        assert_eq!([101, 256, u64::MAX].map(EnforcedShare::new), [None; 3]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn so_many_keys_are_in_a_share_and_rules_share_none_of_it(percent in 0u64..=100, rule in "[a-z]{1,8}") {
            let share = count(|key| has(percent, &rule, key));
            prop_assert!((share - percent as f64).abs() < 2.0, "{share} of {percent} percent");
            let other = format!("{rule}-2");
            let both = count(|key| has(percent, &rule, key) && has(percent, &other, key));
            let expected = (percent * percent) as f64 / 100.0;
            prop_assert!((both - expected).abs() < 2.0, "{both} of {expected} percent");
        }

        #[test]
        fn a_larger_share_has_all_keys_of_a_smaller_one(
            (less, more) in (0u64..=100).prop_flat_map(|less| (Just(less), less..=100)),
            key in ".{0,20}",
        ) {
            prop_assert!(!has(less, "r", &key) || has(more, "r", &key));
            prop_assert!(!has(0, "r", &key) && has(100, "r", &key));
        }
    }

    #[test]
    fn a_key_is_where_it_was_on_every_node_and_in_every_version() {
        let rule = RuleId::new("login").expect("an id");
        let shares = ["", "42", "ann@example.com"].map(|key| hundredth(&rule, [key].into_iter()));
        assert_eq!(shares, SHARES);
    }

    const SHARES: [u64; 3] = [27, 12, 2];
}
