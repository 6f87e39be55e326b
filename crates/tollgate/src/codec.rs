//! The bytes of a snapshot: little-endian words, length-prefixed text, and a checksum at the end.

use std::hash::Hasher;
use std::io::{self, Write};

use siphasher::sip::SipHasher13;

/// Writes words and counts them into a checksum.
pub(crate) struct Encoder<W> {
    out: W,
    checksum: SipHasher13,
}

impl<W: Write> Encoder<W> {
    pub(crate) fn new(out: W) -> Self {
        Encoder { out, checksum: SipHasher13::new() }
    }

    pub(crate) fn word(&mut self, word: u64) -> io::Result<()> {
        self.raw(&word.to_le_bytes())
    }

    pub(crate) fn text(&mut self, text: &str) -> io::Result<()> {
        self.word(text.len() as u64)?;
        self.raw(text.as_bytes())
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.checksum.write(bytes);
        self.out.write_all(bytes)
    }

    /// Ends with the checksum of all that was written.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let checksum = self.checksum.finish().to_le_bytes();
        self.out.write_all(&checksum)?;
        self.out.flush()
    }
}

/// Reads what an [`Encoder`] has written. `None` means that it has not.
pub(crate) struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// `None` if the checksum does not fit.
    pub(crate) fn verified(bytes: &'a [u8]) -> Option<Self> {
        let (rest, checksum) = bytes.split_last_chunk()?;
        let mut expected = SipHasher13::new();
        expected.write(rest);
        (expected.finish() == u64::from_le_bytes(*checksum)).then_some(Decoder { rest })
    }

    pub(crate) fn word(&mut self) -> Option<u64> {
        self.raw::<8>().map(u64::from_le_bytes)
    }

    pub(crate) fn text(&mut self) -> Option<&'a str> {
        let len = usize::try_from(self.word()?).ok()?;
        let (text, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        std::str::from_utf8(text).ok()
    }

    pub(crate) fn raw<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*bytes)
    }
}
