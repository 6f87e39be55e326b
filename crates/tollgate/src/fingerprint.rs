//! Keyed fingerprints: who is counted under which limit, as 64 bits.
//!
//! Keys come from strangers, so the hash has a secret: without it nobody can make two keys collide.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

/// The secret of a process or, with a shared store, of a fleet.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; Secret::LEN]);

impl Secret {
    pub const LEN: usize = 16;

    pub const fn from_bytes(bytes: [u8; Secret::LEN]) -> Secret {
        Secret(bytes)
    }

    pub const fn bytes(&self) -> &[u8; Secret::LEN] {
        &self.0
    }

    /// A secret from the operating system's randomness.
    pub fn random() -> Secret {
        use std::hash::{BuildHasher, RandomState};
        let word = |n: u64| RandomState::new().hash_one(n).to_le_bytes();
        let mut bytes = [0; Secret::LEN];
        bytes[..8].copy_from_slice(&word(1));
        bytes[8..].copy_from_slice(&word(2));
        Secret(bytes)
    }

    /// The fingerprint of a key with these parts, for those who charge a store themselves.
    pub fn fingerprint<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Fingerprint {
        parts.into_iter().fold(self.digest(), |digest, part| digest.part(part.as_bytes())).finish()
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest(SipHasher13::new_with_key(&self.0))
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A fingerprint in the making. Parts keep their boundaries: `ab` + `c` is not `a` + `bc`.
#[derive(Clone)]
pub(crate) struct Digest(SipHasher13);

impl Digest {
    pub(crate) fn part(mut self, bytes: &[u8]) -> Digest {
        self.0.write(bytes);
        self.0.write_u64(bytes.len() as u64);
        self
    }

    pub(crate) fn finish(self) -> Fingerprint {
        Fingerprint(self.0.finish())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fingerprint(pub(crate) u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_their_boundaries_and_secrets_differ() {
        let of = |secret: &Secret, parts: &[&'static str]| secret.fingerprint(parts.iter().copied());
        let secret = Secret::from_bytes([7; 16]);
        assert_eq!(of(&secret, &["ab", "c"]), of(&secret, &["ab", "c"]));
        assert_ne!(of(&secret, &["ab", "c"]), of(&secret, &["a", "bc"]));
        assert_ne!(of(&secret, &["ab"]), of(&secret, &["ab", ""]));
        assert_ne!(of(&secret, &["ab"]), of(&Secret::random(), &["ab"]));
        assert_ne!(Secret::random(), Secret::random());
    }
}
