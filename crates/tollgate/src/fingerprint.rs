//! Keyed fingerprints: a key under a limit, as 64 bits.
//!
//! Clients choose keys, so the hash has a secret: without it an attacker cannot make two keys collide. It chains
//! blocks of sixteen bytes, each through four keyed rounds of AES where the processor has them, and through
//! SipHash-1-3 elsewhere. Fingerprints leave the process only in its own saved state, which names the hash that made
//! them.
//!
//! What is known of the AES variant: with a secret whitening key before the rounds (the state, which begins with one)
//! and independent round keys, no differential of four rounds has an expected probability above 2^-113 (Keliher and Sui,
//! 2007). 2^64 of them leave the low half of the state alone, so two chosen keys of one block collide with a
//! probability of at most 2^-49 by this bound; 2^-64 is expected of a random function. This covers an attacker who
//! chooses keys and sees no fingerprints, which is ours. It is no proof for keys of many blocks or for the
//! independence of round keys that SipHash derives, and no MAC that has been reviewed: do not use it as one.
//!
//! What it gains: four blocks take 22 instructions, and 229 with a streaming SipHash-1-3. With the SipHash variant here,
//! which keeps 128 bits between blocks, an engine decision took 1590 instructions more, and one of the limiter 527 more
//! (`bench/instructions`, engine-1-rule and million-strings, which take 990 and 147).

use std::fmt;
use std::hash::Hasher;

use siphasher::sip::SipHasher13;

mod rounds;

use rounds::{BLOCK, Rounds, last_block};

/// The secret of a process or, with a central store, of a fleet.
#[derive(Clone)]
pub struct Secret {
    bytes: [u8; Secret::LEN],
    rounds: Rounds,
}

impl Secret {
    pub const LEN: usize = 16;

    pub fn from_bytes(bytes: [u8; Secret::LEN]) -> Secret {
        Secret { bytes, rounds: Rounds::new(&bytes) }
    }

    pub const fn bytes(&self) -> &[u8; Secret::LEN] {
        &self.bytes
    }

    /// A secret from the operating system's randomness.
    pub fn random() -> Secret {
        use std::hash::{BuildHasher, RandomState};
        let word = |n: u64| RandomState::new().hash_one(n).to_le_bytes();
        let mut bytes = [0; Secret::LEN];
        bytes[..8].copy_from_slice(&word(1));
        bytes[8..].copy_from_slice(&word(2));
        Secret::from_bytes(bytes)
    }

    /// The hash that makes the fingerprints on this machine.
    pub(crate) fn hash_name(&self) -> &'static str {
        self.rounds.name()
    }

    /// The secret of a saved state, if this machine has the hash that made its fingerprints.
    pub(crate) fn of_saved(bytes: [u8; Secret::LEN], hash_name: &str) -> Option<Secret> {
        let whitened = Secret::from_bytes(bytes);
        let former = Secret { bytes, rounds: whitened.rounds.clone().without_whitening() };
        [whitened, former].into_iter().find(|secret| secret.hash_name() == hash_name)
    }

    /// The fingerprint of a key with these parts, for callers that use a store directly.
    pub fn fingerprint<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Fingerprint {
        parts.into_iter().fold(self.digest(), |digest, part| digest.part(part.as_bytes())).finish()
    }

    #[inline]
    pub(crate) fn digest(&self) -> Digest<'_> {
        Digest { rounds: &self.rounds, state: self.rounds.start() }
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// An incremental fingerprint. Parts keep their boundaries: `ab` + `c` is not `a` + `bc`.
#[derive(Clone)]
pub(crate) struct Digest<'s> {
    rounds: &'s Rounds,
    state: u128,
}

impl Digest<'_> {
    #[inline(always)]
    pub(crate) fn part(self, bytes: &[u8]) -> Self {
        Digest { state: self.rounds.part(self.state, bytes), ..self }
    }

    /// Adds a short part.
    #[inline]
    pub(crate) fn short_part(self, part: ShortPart) -> Self {
        Digest { state: self.rounds.last(self.state, part.0), ..self }
    }

    #[inline]
    pub(crate) fn finish(self) -> Fingerprint {
        Fingerprint(self.state as u64)
    }
}

impl<'s> Digest<'s> {
    /// The digest so far, to be resumed later under the same secret.
    pub(crate) fn to_saved(&self) -> SavedDigest {
        SavedDigest { secret_mark: self.rounds.mark(), state: self.state }
    }
}

/// The state of a digest.
#[derive(Clone, Copy)]
pub(crate) struct SavedDigest {
    secret_mark: u64,
    state: u128,
}

impl SavedDigest {
    /// `None` if it was made under another secret.
    #[inline(always)]
    pub(crate) fn resume<'s>(&self, secret: &'s Secret) -> Option<Digest<'s>> {
        let rounds = &secret.rounds;
        (self.secret_mark == rounds.mark()).then_some(Digest { rounds, state: self.state })
    }
}

/// A part that fits one block: up to fifteen bytes, or a number. The encoding is injective.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ShortPart(pub(crate) u128);

impl ShortPart {
    #[inline(always)]
    pub(crate) fn bytes(bytes: &[u8]) -> Option<ShortPart> {
        (bytes.len() < BLOCK).then(|| ShortPart(last_block(bytes)))
    }

    /// A hash of a text that clients cannot choose.
    pub(crate) fn of_text(text: &str) -> ShortPart {
        let mut hasher = SipHasher13::new();
        hasher.write(text.as_bytes());
        ShortPart::number(hasher.finish())
    }

    #[inline]
    pub(crate) fn number(number: u64) -> ShortPart {
        ShortPart(u128::from(number) | (BLOCK as u128) << 120)
    }

    /// Half as many bits, where collisions are harmless.
    #[inline(always)]
    pub(crate) fn fold64(self) -> u64 {
        (self.0 ^ self.0 >> 64) as u64
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fingerprint(pub(crate) u64);

impl Fingerprint {
    /// As a number, for a caller that stores it; [`from_bits`](Self::from_bits) restores it.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    pub fn from_bits(bits: u64) -> Fingerprint {
        Fingerprint(bits)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn parts_keep_their_boundaries_and_secrets_differ() {
        let of = |secret: &Secret, parts: &[&'static str]| secret.fingerprint(parts.iter().copied());
        let secret = Secret::from_bytes([7; 16]);
        assert_eq!(of(&secret, &["ab", "c"]), of(&secret, &["ab", "c"]));
        assert_ne!(of(&secret, &["ab", "c"]), of(&secret, &["a", "bc"]));
        assert_ne!(of(&secret, &["ab"]), of(&secret, &["ab", ""]));
        assert_ne!(of(&secret, &["ab"]), of(&secret, &["ab\0"]));
        let looks_like_a_last_block = "ab\0\0\0\0\0\0\0\0\0\0\0\0\0\u{2}";
        assert_ne!(of(&secret, &[looks_like_a_last_block]), of(&secret, &["ab", ""]));
        assert_ne!(of(&secret, &["ab"]), of(&Secret::random(), &["ab"]));
        assert_ne!(Secret::random(), Secret::random());
    }

    #[test]
    fn keys_of_all_lengths_and_their_neighbours_differ_in_all_bits() {
        let secret = Secret::from_bytes([3; 16]);
        let mut seen = HashSet::new();
        let mut ones = [0u32; 64];
        let mut count = 0;
        for length in 0..70 {
            for changed in 0..length.max(1) {
                let mut key = vec![b'x'; length];
                if let Some(byte) = key.get_mut(changed) {
                    *byte = b'y';
                }
                let Fingerprint(fingerprint) = secret.digest().part(&key).finish();
                assert!(seen.insert(fingerprint), "{length} {changed}");
                count += 1;
                (0..64).for_each(|bit| ones[bit] += (fingerprint >> bit & 1) as u32);
            }
        }
        assert!(ones.iter().all(|ones| (count * 2 / 5..count * 3 / 5).contains(ones)), "{ones:?} of {count}");
        let seven = 7u64.to_le_bytes();
        assert_ne!(
            secret.digest().short_part(ShortPart::number(7)).finish(),
            secret.digest().part(&seven).finish()
        );
        let short = ShortPart::bytes(&seven).expect("eight bytes are short");
        assert_eq!(secret.digest().short_part(short).finish(), secret.digest().part(&seven).finish());
    }
}
