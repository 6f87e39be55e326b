//! Changes to inputs: bits, bytes, numbers, words of the format, repetitions, and parts of other inputs.

use fastrand::Rng;

/// Changes made to one input, at the most.
const MAX_CHANGES: usize = 6;
/// Times that a part is repeated, at the most: quadratic work shows, and inputs stay small.
const MAX_REPEATS: usize = 64;
/// Bytes that many formats give a meaning to.
const SPECIAL: &[u8] = b"\0\t\n\r !\"#$%&'()*+,-./:;<=>?@[\\]_{|}~\x7f\x80\xc3\xff0a";
const NUMBERS: [&str; 9] = [
    "0",
    "-1",
    "1e999",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775808",
    "18446744073709551615",
    "ffffffffffffffff",
];

/// A changed copy of `input`, of at most `max` bytes. `other` is spliced in now and then.
pub fn mutate(rng: &mut Rng, input: &[u8], other: &[u8], words: &[&str], max: usize) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..rng.usize(1..=MAX_CHANGES) {
        change(rng, &mut bytes, other, words);
        bytes.truncate(max);
    }
    bytes
}

fn change(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8], words: &[&str]) {
    let at = rng.usize(0..=bytes.len());
    let end = at + rng.usize(0..=(bytes.len() - at).min(32));
    match rng.u8(0..10) {
        0 => _ = bytes.drain(at..end),
        1 => insert(bytes, at, &[SPECIAL[rng.usize(0..SPECIAL.len())]]),
        2 => insert(bytes, at, &[rng.u8(..)]),
        3 if at < bytes.len() => bytes[at] ^= 1 << rng.u8(0..8),
        4 if at < bytes.len() => bytes[at] = SPECIAL[rng.usize(0..SPECIAL.len())],
        5 if !words.is_empty() => insert(bytes, at, words[rng.usize(0..words.len())].as_bytes()),
        6 => insert(bytes, at, NUMBERS[rng.usize(0..NUMBERS.len())].as_bytes()),
        7 => {
            let part = bytes[at..end].repeat(rng.usize(1..=MAX_REPEATS));
            insert(bytes, at, &part);
        }
        8 if !other.is_empty() => {
            let from = rng.usize(0..other.len());
            let to = rng.usize(from..=other.len());
            insert(bytes, at, &other[from..to]);
        }
        _ => {
            let part = bytes[at..end].to_vec();
            let to = rng.usize(0..=bytes.len());
            insert(bytes, to, &part);
        }
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, part: &[u8]) {
    bytes.splice(at..at, part.iter().copied());
}
