//! Which limits a row can store.

use thiserror::Error;
use tollgate::internal::Limit;

use crate::counters::state;

/// Every charge writes the whole state: a larger one would miss the deadline.
const MAX_STATE_BYTES: u64 = 256 * 1024;

/// Why Cassandra cannot represent a limit.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum UnsupportedCassandraLimit {
    #[error(
        "a {algorithm} of {limit} needs up to {bytes} bytes a key, all written with every charge, and a row on \
         Cassandra has 262144: use sliding-counter, a coarser resolution, or coarser levels"
    )]
    StateTooLarge { algorithm: &'static str, limit: Limit, bytes: u64 },
}

/// Whether Cassandra can represent a limit exactly; if not, why.
pub fn check_limit(limit: &Limit) -> Result<(), UnsupportedCassandraLimit> {
    match state::max_bytes(limit) {
        bytes if bytes <= MAX_STATE_BYTES => Ok(()),
        bytes => Err(UnsupportedCassandraLimit::StateTooLarge {
            algorithm: limit.shape().name(),
            limit: *limit,
            bytes,
        }),
    }
}
