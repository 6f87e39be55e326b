//! The frames of a state log.

use std::hash::{BuildHasher, RandomState};

use crate::codec::{Decoder, Encoder, checksum_of};
use crate::engine::log::Chunk;
use crate::engine::saved_state::{LOG_VERSION, MAGIC, SavedStateError};
use crate::fingerprint::Secret;

/// The length and the checksum before a chunk.
const FRAME_HEAD: usize = size_of::<u32>() + size_of::<u64>();

/// The position in a file: what the checksum of its next frame covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frames {
    file: u64,
    count: u64,
}

impl Frames {
    /// Starts a file; returns its header, too.
    pub(crate) fn begin(secret: &Secret) -> (Frames, Vec<u8>) {
        let file = RandomState::new().hash_one(0);
        let mut header = Encoder::default();
        header.raw(&MAGIC);
        header.word(LOG_VERSION);
        header.word(file);
        header.raw(secret.bytes());
        header.text(secret.hash_name());
        let mut header = header.into_bytes();
        header.extend(checksum_of((0, 0), &header).to_le_bytes());
        (Frames { file, count: 0 }, header)
    }

    /// The bytes of the next frame. Call [`advance`](Self::advance) once they are written.
    pub fn frame(&self, chunk: &Chunk) -> Vec<u8> {
        let chunk = chunk.bytes();
        let length = u32::try_from(chunk.len()).expect("a chunk holds at most one state above its bound");
        let mut frame = Vec::with_capacity(FRAME_HEAD + chunk.len());
        frame.extend(length.to_le_bytes());
        frame.extend(self.checksum(chunk).to_le_bytes());
        frame.extend(chunk);
        frame
    }

    /// The length of a frame.
    pub fn bytes_of(chunk: &Chunk) -> u64 {
        (FRAME_HEAD + chunk.bytes().len()) as u64
    }

    pub fn advance(&mut self) {
        self.count += 1;
    }

    fn checksum(&self, chunk: &[u8]) -> u64 {
        checksum_of((self.file, self.count), chunk)
    }
}

/// A state log that is being read.
pub(crate) struct Opened<'a> {
    pub(crate) secret: Secret,
    frames: Frames,
    bytes: &'a [u8],
    at: usize,
}

/// Reads the header.
pub(crate) fn open(bytes: &[u8]) -> Result<Opened<'_>, SavedStateError> {
    let mut from = Decoder::new(bytes);
    let mut read = || {
        from.raw::<{ MAGIC.len() + size_of_val(&LOG_VERSION) }>()?;
        let header = (from.word()?, from.raw()?, from.text()?);
        Some((header, from.word()?))
    };
    let ((file, secret, hash), checksum) = read().ok_or(SavedStateError::Checksum)?;
    let length = MAGIC.len() + 3 * size_of::<u64>() + Secret::LEN + hash.len();
    if checksum_of((0, 0), &bytes[..length]) != checksum {
        return Err(SavedStateError::Checksum);
    }
    let secret = Secret::of_saved(secret, hash).ok_or(SavedStateError::Hash)?;
    let frames = Frames { file, count: 0 };
    Ok(Opened { secret, frames, bytes, at: length + size_of::<u64>() })
}

impl<'a> Opened<'a> {
    /// The next chunk; `None` at the end, or where the file is damaged.
    pub(crate) fn next(&self) -> Option<&'a [u8]> {
        let mut from = Decoder::new(self.bytes.get(self.at..)?);
        let length = u32::from_le_bytes(from.raw()?);
        let checksum = from.word()?;
        let chunk = from.slice(usize::try_from(length).ok()?)?;
        (self.frames.checksum(chunk) == checksum).then_some(chunk)
    }

    /// Continues after a chunk that was read.
    pub(crate) fn advance(&mut self, chunk: &[u8]) {
        self.at += FRAME_HEAD + chunk.len();
        self.frames.advance();
    }

    /// Where the next frame may be appended, and the length up to there.
    pub(crate) fn end(&self) -> (Frames, u64) {
        (self.frames, self.at as u64)
    }
}
