//! The state log: a file with counters, bans and tracked keys as of the last write.
//!
//! A file is a header and frames. The header has the secret of the fingerprints and a number that identifies the file;
//! a frame is a length, a checksum and a [`Chunk`]. The checksum covers the file's number and the frame's index, so
//! that frames of another file, or left over on the disk, are not mistaken for this one's. Reading stops at the first
//! frame that is incomplete or damaged; the frames before it are used.
//!
//! A file begins with an [`Image`] of everything; later changes are appended. This module makes chunks; its caller
//! decides when to write them, and when to start the next file.

mod frames;
mod replay;
mod write;

pub use crate::codec::chunk::{Chunk, Sink};
pub use frames::Frames;
pub(super) use frames::open;
pub(super) use replay::Replay;
pub(super) use write::ChangedTracks;
pub use write::Image;
