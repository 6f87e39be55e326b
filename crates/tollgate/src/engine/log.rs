//! The state log: a file that holds counters, bans and tracked keys as they were a moment ago.
//!
//! A file is a header and frames. The header names the secret of the fingerprints and a number of this file; a frame is
//! a length, a checksum and a [`Chunk`]. The checksum covers the file's number and the frame's index, so that frames of
//! another file, or left over on the disk, are not taken for this one's. Reading stops at the first frame that is
//! incomplete or damaged: what stands before it is used.
//!
//! A file begins with an [`Image`] of everything; what changes afterwards is appended. Chunks are made here; whoever
//! writes them decides when, and when to begin the next file.

mod frames;
mod replay;
mod write;

pub use crate::codec::chunk::{Chunk, Sink};
pub use frames::Frames;
pub(super) use frames::open;
pub(super) use replay::Replay;
pub(super) use write::ChangedTracks;
pub use write::Image;
