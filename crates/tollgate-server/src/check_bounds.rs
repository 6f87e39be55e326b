//! Bounds of a check, whatever the protocol. Larger values are rejected.

pub const MAX_VALUE_BYTES: usize = 4_096;
pub const MAX_PATH_BYTES: usize = 16 << 10;
pub const MAX_COST: u64 = 1_000_000_000;
