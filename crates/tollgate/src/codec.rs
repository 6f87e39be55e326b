//! The bytes of a saved state: little-endian numbers and length-prefixed text.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

pub(crate) mod chunk;

#[derive(Default)]
pub(crate) struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    pub(crate) fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    pub(crate) fn short(&mut self, short: u16) {
        self.raw(&short.to_le_bytes());
    }

    pub(crate) fn word(&mut self, word: u64) {
        self.raw(&word.to_le_bytes());
    }

    pub(crate) fn words(&mut self, words: impl IntoIterator<Item = u64>) {
        words.into_iter().for_each(|word| self.word(word));
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.word(text.len() as u64);
        self.raw(text.as_bytes());
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads what an [`Encoder`] has written. `None` if the bytes are not valid.
pub(crate) struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Decoder { rest: bytes }
    }

    /// Bytes that end with their checksum; `None` if it does not match.
    pub(crate) fn verified(bytes: &'a [u8]) -> Option<Self> {
        let (rest, checksum) = bytes.split_last_chunk()?;
        (checksum_of((0, 0), rest) == u64::from_le_bytes(*checksum)).then_some(Decoder { rest })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.raw().map(|[byte]| byte)
    }

    pub(crate) fn short(&mut self) -> Option<u16> {
        self.raw().map(u16::from_le_bytes)
    }

    pub(crate) fn word(&mut self) -> Option<u64> {
        self.raw().map(u64::from_le_bytes)
    }

    pub(crate) fn text(&mut self) -> Option<&'a str> {
        let len = usize::try_from(self.word()?).ok()?;
        std::str::from_utf8(self.slice(len)?).ok()
    }

    pub(crate) fn slice(&mut self, len: usize) -> Option<&'a [u8]> {
        let (slice, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(slice)
    }

    pub(crate) fn raw<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*bytes)
    }
}

/// A checksum against corruption, not against forgery.
pub(crate) fn checksum_of((key0, key1): (u64, u64), bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(key0, key1);
    hasher.write(bytes);
    hasher.finish()
}
