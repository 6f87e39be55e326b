//! What fuzz targets need of the library's internals.

use crate::codec::Encoder;

/// A snapshot's contents with the checksum that fits them.
pub fn checksummed(contents: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(contents.len() + size_of::<u64>());
    let mut out = Encoder::new(&mut bytes);
    out.raw(contents).and_then(|()| out.finish()).expect("a vector takes all that is written");
    bytes
}
