//! One step of the hash: maps a state and a block to a state that is unpredictable without the key.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

/// The keyed step, by AES where the processor has it.
#[derive(Clone)]
pub(super) struct Rounds {
    keys: RoundKeys,
    /// For the last block of a part: separates it from all other blocks.
    last_keys: RoundKeys,
    /// The state before the first block, which it whitens: `aesenc` adds its key only after the S-boxes.
    start: u128,
    mark: u64,
    aes: bool,
}

type RoundKeys = [u128; Rounds::COUNT];

pub(super) const BLOCK: usize = 16;

impl Rounds {
    /// See the header of [`fingerprint`](super) for what four rounds guarantee.
    const COUNT: usize = 4;

    /// The round keys are derived from the secret by SipHash.
    pub(super) fn new(secret: &[u8; 16]) -> Rounds {
        let word = |n: u64| {
            let mut hasher = SipHasher13::new_with_key(secret);
            hasher.write_u64(n);
            u128::from(hasher.finish())
        };
        let key = |n: usize| word(2 * n as u64) << 64 | word(2 * n as u64 + 1);
        let last_keys = std::array::from_fn(|n| key(Self::COUNT + n));
        let start = key(2 * Self::COUNT);
        let mark = word(2 * (2 * Self::COUNT as u64 + 1)) as u64;
        Rounds { keys: std::array::from_fn(key), last_keys, start, mark, aes: has_aes() }
    }

    /// As fingerprints were made up to version 0.1: for saved states of that time.
    pub(super) fn without_whitening(self) -> Rounds {
        Rounds { start: 0, mark: !self.mark, ..self }
    }

    #[inline]
    pub(super) fn start(&self) -> u128 {
        self.start
    }

    /// Distinguishes secrets.
    #[inline(always)]
    pub(super) fn mark(&self) -> u64 {
        self.mark
    }

    pub(super) fn name(&self) -> &'static str {
        match (self.aes, self.start) {
            (true, 0) => "aes, low half",
            (true, _) => "aes, whitened, low half",
            (false, 0) => "siphash, low half",
            (false, _) => "siphash, whitened, low half",
        }
    }

    /// Adds a part in blocks; the last one has at most fifteen bytes, and its length.
    #[inline(always)]
    pub(super) fn part(&self, state: u128, bytes: &[u8]) -> u128 {
        #[cfg(all(target_arch = "x86_64", not(tollgate_portable)))]
        if self.aes {
            // SAFETY: `aes` is set only where the processor has these instructions.
            return self.part_by(
                |keys, state, block| unsafe { step_by_aes(keys, state, block) },
                state,
                bytes,
            );
        }
        self.part_by(step_by_siphash, state, bytes)
    }

    /// Adds the last block of a part.
    #[inline(always)]
    pub(super) fn last(&self, state: u128, block: u128) -> u128 {
        #[cfg(all(target_arch = "x86_64", not(tollgate_portable)))]
        if self.aes {
            // SAFETY: as above.
            return unsafe { step_by_aes(&self.last_keys, state, block) };
        }
        step_by_siphash(&self.last_keys, state, block)
    }

    #[inline(always)]
    fn part_by(&self, step: impl Fn(&RoundKeys, u128, u128) -> u128, mut state: u128, bytes: &[u8]) -> u128 {
        let mut rest = bytes;
        while let Some((block, after)) = rest.split_first_chunk::<BLOCK>() {
            state = step(&self.keys, state, u128::from_le_bytes(*block));
            rest = after;
        }
        step(&self.last_keys, state, last_block(rest))
    }
}

/// Up to fifteen bytes, and their number in the sixteenth.
#[inline(always)]
pub(super) fn last_block(bytes: &[u8]) -> u128 {
    let length = bytes.len();
    debug_assert!(length < BLOCK);
    // Two overlapping loads are faster than a copy of unknown length.
    let (low, high) = if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        let last = u64::from_le_bytes(*last);
        (u64::from_le_bytes(*first), last >> 1 >> (8 * (BLOCK - length) - 1))
    } else if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let first = u32::from_le_bytes(*first);
        let last = u32::from_le_bytes(*last);
        (u64::from(first) | u64::from(last) << (8 * (length - 4)), 0)
    } else {
        (bytes.iter().rev().fold(0, |block, byte| block << 8 | u64::from(*byte)), 0)
    };
    u128::from(high | (length as u64) << 56) << 64 | u128::from(low)
}

#[cold]
fn step_by_siphash(keys: &RoundKeys, state: u128, block: u128) -> u128 {
    let half = |key: u128| {
        let mut hasher = SipHasher13::new_with_key(&key.to_le_bytes());
        hasher.write(&state.to_le_bytes());
        hasher.write(&block.to_le_bytes());
        u128::from(hasher.finish())
    };
    half(keys[0]) << 64 | half(keys[1])
}

fn has_aes() -> bool {
    #[cfg(all(target_arch = "x86_64", not(tollgate_portable)))]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(not(all(target_arch = "x86_64", not(tollgate_portable))))]
    false
}

/// Inline assembly: functions with target features are not inlined into callers without them.
///
/// # Safety
///
/// The processor has the instructions.
#[cfg(all(target_arch = "x86_64", not(tollgate_portable)))]
#[inline(always)]
unsafe fn step_by_aes(keys: &RoundKeys, state: u128, block: u128) -> u128 {
    use std::arch::x86_64::__m128i;
    // SAFETY: both types are sixteen bytes, and all bit patterns are valid.
    let mut mixed = unsafe { std::mem::transmute::<u128, __m128i>(state ^ block) };
    // SAFETY: the processor has the instructions, and the keys, all of which are read, are aligned.
    unsafe {
        std::arch::asm!(
            "aesenc {mixed}, [{keys}]",
            "aesenc {mixed}, [{keys} + 16]",
            "aesenc {mixed}, [{keys} + 32]",
            "aesenc {mixed}, [{keys} + 48]",
            mixed = inout(xmm_reg) mixed,
            keys = in(reg) keys.as_ptr(),
            options(pure, readonly, nostack, preserves_flags),
        );
        // SAFETY: as above.
        std::mem::transmute::<__m128i, u128>(mixed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_depends_on_state_bytes_and_key_either_way() {
        for aes in [has_aes(), false] {
            let rounds = |secret: u8| Rounds { aes, ..Rounds::new(&[secret; 16]) };
            for bytes in [&[7; 3][..], &[7; 9], &[7; 16], &[7; 40]] {
                let part = rounds(1).part(5, bytes);
                assert_eq!(part, rounds(1).part(5, bytes));
                assert_ne!(part, rounds(2).part(5, bytes));
                assert_ne!(part, rounds(1).part(6, bytes));
                assert_ne!(part, rounds(1).part(5, &bytes[1..]));
            }
            assert_eq!(rounds(1).part(5, &[7; 9]), rounds(1).last(5, last_block(&[7; 9])));
        }
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
}
