//! Long values in bans: a prefix to show, and a fingerprint of the whole.
//!
//! Clients choose values of some keys, up to the length of a header, and a ban stores its key in memory, in the rules
//! database, in the log and in the central store. Invariants: abridging is idempotent, so that a key from a list can
//! be used to lift the ban; the form is the same on every node.

use std::borrow::Cow;
use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};

use crate::identity::Key;

/// Longer values are abridged, in bytes.
pub(crate) const MAX_UNABRIDGED: usize = 256;
/// The prefix of an abridged value, in bytes.
const PREFIX: usize = 64;

/// A value in the form that bans use.
pub(crate) fn abridged(value: Cow<'_, str>) -> Cow<'_, str> {
    if value.len() <= MAX_UNABRIDGED {
        return value;
    }
    let prefix = &value[..value.floor_char_boundary(PREFIX)];
    Cow::Owned(format!("{prefix}…{:032x}", fingerprint(&value)))
}

/// 128 bits, without a secret because nodes share none. Values with the same prefix and hash would share their bans.
fn fingerprint(value: &str) -> u128 {
    let mut hasher = SipHasher24::new();
    hasher.write(value.as_bytes());
    hasher.finish128().as_u128()
}

impl Key {
    /// The key in the form that bans use: as requests are looked up by, with long values abridged.
    pub fn as_banned(self, ipv6_prefix: u8) -> Key {
        self.grouped_in_combination(ipv6_prefix).map_values(|value| abridged(value.into()).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_value_within_the_bound_stays_as_it_is() {
        let whole = "ä".repeat(MAX_UNABRIDGED / 2);
        assert_eq!(abridged((&*whole).into()), whole);
    }

    #[test]
    fn the_form_is_stable_across_versions_and_machines() {
        let long = format!("Bearer {}", "x".repeat(3_900));
        let expected = format!("Bearer {}…5a3286730aa38c70ec2e44c5b65e7886", "x".repeat(57));
        assert_eq!(abridged(long.into()), expected);
    }

    #[test]
    fn values_that_differ_behind_the_prefix_differ() {
        let of = |n: u32| abridged(format!("{}{n}", "x".repeat(3_900)).into());
        assert_ne!(of(1), of(2));
        assert_eq!(of(1).len(), PREFIX + "…".len() + 32);
    }

    proptest! {
        /// A listed key parses to the same key, whatever the attribute's normal form.
        #[test]
        fn an_abridged_key_reads_back_as_itself(
            name in prop::sample::select(&["user", "email", "header:x-id", "json:id", "query:q", "cookie:c", "jwt:sub"][..]),
            start in "[ -~äΣß😀]{0,70}",
            rest in "[ -~äΣß😀]{1,9}",
        ) {
            let text = format!("{start}{}", rest.repeat(MAX_UNABRIDGED));
            let encoded: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
            prop_assume!(encoded.len() < Key::MAX_LEN - 20);
            if let Ok(key) = Key::parse(&format!("{name}:{encoded}")) {
                let banned = key.as_banned(64);
                prop_assert!(banned.to_string().len() <= 3 * MAX_UNABRIDGED + 20);
                prop_assert_eq!(Key::parse(&banned.to_string()).map(|read| read.as_banned(64)), Ok(banned));
            }
        }
    }
}
