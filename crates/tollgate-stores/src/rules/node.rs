//! Nodes that announce themselves in the rules database, so that they find each other.
//!
//! The table is created when the first node announces itself, not by a migration: programs that do not know it go on
//! using the database.

use tollgate::Time;

/// Rows of the table. In a larger fleet those that announced themselves last are listed.
pub const MAX_NODES: usize = 256;

/// A node, as it announced itself last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AnnouncedNode {
    pub id: u32,
    /// Its admin address, as other nodes reach it; there is one row per address.
    pub address: String,
    /// Of the program.
    pub version: String,
    /// Of its policy.
    pub generation: u64,
    /// The version of the rules database that is in force there.
    pub rules_version: Option<String>,
    pub seen: Time,
}

/// Integers of both databases are signed.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
