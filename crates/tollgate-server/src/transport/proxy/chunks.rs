//! The chunked transfer coding (RFC 9112, 7.1), a step at a time. It mirrors hyper's decoder.

/// The next expected element of a chunked body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkState {
    Size { digits: bool, size: u64 },
    Space { size: u64 },
    Extension { size: u64 },
    SizeEnd { size: u64 },
    Data { left: u64 },
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
}

/// The number of bytes of `read` that belong to the next `left` bytes.
pub fn shorter(read: &[u8], left: u64) -> usize {
    usize::try_from(left).map_or(read.len(), |left| left.min(read.len()))
}

pub enum ChunkStep {
    /// The next state, and the number of bytes consumed.
    Next(ChunkState, usize),
    /// The body's last byte was consumed.
    Ended,
    Malformed,
}

impl ChunkState {
    pub const START: ChunkState = ChunkState::Size { digits: false, size: 0 };

    /// Processes the next bytes, of which there is at least one.
    pub fn add(self, read: &[u8]) -> ChunkStep {
        let byte = read[0];
        let next = match (self, byte) {
            (ChunkState::Data { left }, _) => {
                let used = shorter(read, left);
                let left = left - used as u64;
                return ChunkStep::Next(
                    if left == 0 { ChunkState::DataCr } else { ChunkState::Data { left } },
                    used,
                );
            }
            (ChunkState::Size { digits: true, size } | ChunkState::Space { size }, b' ' | b'\t') => {
                ChunkState::Space { size }
            }
            (ChunkState::Size { digits: true, size } | ChunkState::Space { size }, b';') => {
                ChunkState::Extension { size }
            }
            (
                ChunkState::Size { digits: true, size }
                | ChunkState::Space { size }
                | ChunkState::Extension { size },
                b'\r',
            ) => ChunkState::SizeEnd { size },
            (ChunkState::Size { size, .. }, digit) => {
                let digit = char::from(digit).to_digit(16).map(u64::from);
                let size = digit.and_then(|digit| size.checked_mul(16)?.checked_add(digit));
                match size {
                    Some(size) => ChunkState::Size { digits: true, size },
                    None => return ChunkStep::Malformed,
                }
            }
            (ChunkState::Extension { .. }, b'\n') => return ChunkStep::Malformed,
            (ChunkState::Extension { size }, _) => ChunkState::Extension { size },
            (ChunkState::SizeEnd { size: 0 }, b'\n') => ChunkState::TrailerStart,
            (ChunkState::SizeEnd { size }, b'\n') => ChunkState::Data { left: size },
            (ChunkState::DataCr, b'\r') => ChunkState::DataLf,
            (ChunkState::DataLf, b'\n') => ChunkState::START,
            (ChunkState::TrailerStart, b'\r') => ChunkState::EndLf,
            (ChunkState::Trailer, b'\r') => ChunkState::TrailerLf,
            (ChunkState::TrailerStart | ChunkState::Trailer, _) => ChunkState::Trailer,
            (ChunkState::TrailerLf, b'\n') => ChunkState::TrailerStart,
            (ChunkState::EndLf, b'\n') => return ChunkStep::Ended,
            _ => return ChunkStep::Malformed,
        };
        ChunkStep::Next(next, 1)
    }
}
