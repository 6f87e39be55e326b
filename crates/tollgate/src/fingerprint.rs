//! Keyed fingerprints: who is counted under which limit, as 64 bits.
//!
//! Keys come from strangers, so the hash has a secret: without it nobody can make two keys collide. It
//! chains blocks of sixteen bytes, each through four keyed rounds of AES where the processor has them,
//! and through SipHash-1-3 elsewhere. Fingerprints never leave the process but into its own snapshot,
//! which says which of the two made them.

use std::fmt;

mod rounds;

use rounds::Rounds;

/// The secret of a process or, with a shared store, of a fleet.
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

    /// Which hash makes the fingerprints on this machine.
    pub(crate) fn hash_name(&self) -> &'static str {
        self.rounds.name()
    }

    /// The fingerprint of a key with these parts, for those who charge a store themselves.
    pub fn fingerprint<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Fingerprint {
        parts.into_iter().fold(self.digest(), |digest, part| digest.part(part.as_bytes())).finish()
    }

    #[inline]
    pub(crate) fn digest(&self) -> Digest<'_> {
        Digest { rounds: &self.rounds, state: 0 }
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

/// A fingerprint in the making. Parts keep their boundaries: `ab` + `c` is not `a` + `bc`.
#[derive(Clone)]
pub(crate) struct Digest<'s> {
    rounds: &'s Rounds,
    state: u128,
}

impl Digest<'_> {
    /// Takes a part in blocks; the last one of fifteen bytes at most, with its length.
    #[inline]
    pub(crate) fn part(mut self, bytes: &[u8]) -> Self {
        let mut rest = bytes;
        while let Some((block, after)) = rest.split_first_chunk::<BLOCK>() {
            self.state = self.rounds.absorb(self.state, u128::from_le_bytes(*block));
            rest = after;
        }
        self.state = self.rounds.absorb_last(self.state, last_block(rest));
        self
    }

    /// Takes a number as a part.
    #[inline]
    pub(crate) fn number(mut self, number: u64) -> Self {
        self.state = self.rounds.absorb_last(self.state, u128::from(number) | (BLOCK as u128) << 120);
        self
    }

    #[inline]
    pub(crate) fn finish(self) -> Fingerprint {
        Fingerprint((self.state ^ self.state >> 64) as u64)
    }
}

const BLOCK: usize = 16;

/// Up to fifteen bytes, and in the sixteenth how many.
#[inline]
fn last_block(bytes: &[u8]) -> u128 {
    let length = bytes.len();
    // Two reads that overlap are faster than a copy of unknown length.
    let low = if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        let (first, last) = (u64::from_le_bytes(*first), u64::from_le_bytes(*last));
        let above = (u128::from(last) << 64) >> (8 * (BLOCK - length));
        u128::from(first) | (above >> 64 << 64)
    } else if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        u128::from(first) | u128::from(last) << (8 * (length - 4))
    } else {
        bytes.iter().rev().fold(0, |block, byte| block << 8 | u128::from(*byte))
    };
    low | (length as u128) << 120
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fingerprint(pub(crate) u64);

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
    fn a_last_block_is_its_bytes_and_their_number() {
        for length in 0..BLOCK {
            let bytes: Vec<u8> = (1..=length as u8).collect();
            let mut block = [0; BLOCK];
            block[..length].copy_from_slice(&bytes);
            block[BLOCK - 1] = length as u8;
            assert_eq!(last_block(&bytes), u128::from_le_bytes(block), "{length}");
        }
    }

    #[test]
    fn keys_of_all_lengths_and_their_neighbours_differ_in_all_bits() {
        let secret = Secret::from_bytes([3; 16]);
        let mut seen = HashSet::new();
        let (mut ones, mut count) = ([0u32; 64], 0);
        for length in 0..70 {
            for changed in 0..length.max(1) {
                let mut key = vec![b'x'; length];
                if let Some(byte) = key.get_mut(changed) {
                    *byte = b'y';
                }
                let Fingerprint(print) = secret.digest().part(&key).finish();
                assert!(seen.insert(print), "{length} {changed}");
                count += 1;
                (0..64).for_each(|bit| ones[bit] += (print >> bit & 1) as u32);
            }
        }
        assert!(ones.iter().all(|ones| (count * 2 / 5..count * 3 / 5).contains(ones)), "{ones:?} of {count}");
        assert_ne!(secret.digest().number(7).finish(), secret.digest().part(&7u64.to_le_bytes()).finish());
    }
}
