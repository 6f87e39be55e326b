//! One step of the hash: a state and a block in, a state out that nobody can foretell without the key.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

/// The keyed step, by AES where the processor has it.
#[derive(Clone)]
pub(super) struct Rounds {
    keys: [u128; Rounds::COUNT],
    /// For the last block of a part: no other block can pass for one.
    last_keys: [u128; Rounds::COUNT],
    aes: bool,
}

impl Rounds {
    /// Four rounds of AES leave no differential more likely than 2^-113.
    const COUNT: usize = 4;

    /// The keys of the rounds are drawn from the secret by SipHash.
    pub(super) fn new(secret: &[u8; 16]) -> Rounds {
        let word = |n: u64| {
            let mut hasher = SipHasher13::new_with_key(secret);
            hasher.write_u64(n);
            u128::from(hasher.finish())
        };
        let key = |n: usize| word(2 * n as u64) << 64 | word(2 * n as u64 + 1);
        let last_keys = std::array::from_fn(|n| key(Self::COUNT + n));
        Rounds { keys: std::array::from_fn(key), last_keys, aes: has_aes() }
    }

    pub(super) fn name(&self) -> &'static str {
        if self.aes { "aes" } else { "siphash" }
    }

    #[inline]
    pub(super) fn absorb(&self, state: u128, block: u128) -> u128 {
        self.step(&self.keys, state, block)
    }

    #[inline]
    pub(super) fn absorb_last(&self, state: u128, block: u128) -> u128 {
        self.step(&self.last_keys, state, block)
    }

    #[inline]
    fn step(&self, keys: &[u128; Rounds::COUNT], state: u128, block: u128) -> u128 {
        #[cfg(target_arch = "x86_64")]
        if self.aes {
            // SAFETY: `aes` is set only where the processor has these instructions.
            return unsafe { step_by_aes(keys, state, block) };
        }
        step_by_siphash(keys, state, block)
    }
}

fn step_by_siphash(keys: &[u128; Rounds::COUNT], state: u128, block: u128) -> u128 {
    let half = |key: u128| {
        let mut hasher = SipHasher13::new_with_key(&key.to_le_bytes());
        hasher.write(&state.to_le_bytes());
        hasher.write(&block.to_le_bytes());
        u128::from(hasher.finish())
    };
    half(keys[0]) << 64 | half(keys[1])
}

fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "aes")]
fn step_by_aes(keys: &[u128; Rounds::COUNT], state: u128, block: u128) -> u128 {
    use std::arch::x86_64::{__m128i, _mm_aesenc_si128};
    // SAFETY: both types are sixteen bytes without meaning of their own.
    let vector = |bits: u128| unsafe { std::mem::transmute::<u128, __m128i>(bits) };
    let mixed = keys.iter().fold(vector(state ^ block), |mixed, key| _mm_aesenc_si128(mixed, vector(*key)));
    // SAFETY: as above.
    unsafe { std::mem::transmute::<__m128i, u128>(mixed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_depends_on_state_block_and_key_either_way() {
        for aes in [has_aes(), false] {
            let rounds = |secret: u8| Rounds { aes, ..Rounds::new(&[secret; 16]) };
            let step = rounds(1).absorb(5, 7);
            assert_eq!(step, rounds(1).absorb(5, 7));
            assert_ne!(step, rounds(2).absorb(5, 7));
            assert_ne!(step, rounds(1).absorb(6, 7));
            assert_ne!(step, rounds(1).absorb(5, 8));
        }
    }
}
