//! LEB128 varints.

/// The longest encoding of a `u64`.
pub(crate) const MAX_VARINT_BYTES: u64 = 10;

/// Appends numbers in little-endian base 128, seven bits per byte.
pub(crate) fn push_varints<const N: usize>(bytes: &mut Vec<u8>, numbers: [u64; N]) {
    for mut number in numbers {
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
    }
}

/// Takes a number from the front; `None` if the bytes are not a valid varint.
pub(crate) fn pop_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for index in 0..MAX_VARINT_BYTES {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        let bits = u64::from(byte & 0x7f);
        number |= bits.checked_shl(7 * index as u32).filter(|shifted| shifted >> (7 * index) == bits)?;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}
