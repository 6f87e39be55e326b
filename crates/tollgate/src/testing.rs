//! Internals of the library for fuzz targets, and for tests that bound critical sections.

use crate::codec::checksum_of;
use crate::engine::EngineCore;
use crate::engine::log::{Chunk, Frames, Image};
use crate::fingerprint::Secret;
pub use crate::sync::steps;
use crate::time::Time;

/// A state log of one chunk with these contents, with valid checksums.
pub fn state_log(secret: &Secret, chunk: &[u8]) -> Vec<u8> {
    let (frames, mut bytes) = Frames::begin(secret);
    bytes.extend(frames.frame(&Chunk::of(chunk.to_vec())));
    bytes
}

/// The contents of the chunks of an engine's image.
pub fn chunks(engine: &EngineCore, now: Time) -> Vec<Vec<u8>> {
    let mut chunks = Vec::new();
    let mut keep = |chunk: Chunk| {
        chunks.push(chunk.bytes().to_vec());
        Ok(())
    };
    engine.write_image(&mut Image::default(), u64::MAX, now, &mut keep).expect("a vector takes all chunks");
    chunks
}

/// A saved state of an older format: its contents with a valid checksum.
pub fn old_snapshot(contents: &[u8]) -> Vec<u8> {
    let checksum = checksum_of((0, 0), contents);
    [contents, &checksum.to_le_bytes()].concat()
}
