//! The ramp of a guarded apply as the database has it: a setting, which nodes follow like any other item, and a row
//! with its progress, which only the node that runs it writes.
//!
//! A node runs the ramp while it holds the lease of the row. Every write of the row names the revision that it is
//! based on, so of two nodes with a lease, one of them expired, only one succeeds.

use serde_json::Value;

use crate::rules::{Edit, ItemId, ItemKind, Precondition, Version};
use tollgate::Time;

/// Nodes with counts of one ramp.
pub const MAX_RAMP_NODES: usize = 1_000;

impl ItemId {
    /// The rules that are being ramped.
    pub fn ramp() -> ItemId {
        ItemId::new(ItemKind::Setting, "ramp")
    }
}

impl Edit {
    /// Sets the ramp; the text is an object with an `id`.
    pub fn ramp(text: String, expected: Precondition) -> Edit {
        Edit { item: ItemId::ramp(), expected, text: Some(text) }
    }
}

/// The id in the text of the setting.
pub(super) fn ramp_id(text: &str) -> Option<String> {
    let setting: Value = serde_json::from_str(text).ok()?;
    setting["id"].as_str().map(str::to_owned)
}

/// The progress of a ramp.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RampRow {
    pub id: String,
    pub revision: u64,
    /// The version of the apply.
    pub change: Version,
    /// The node that runs it, until the lease ends.
    pub owner: String,
    pub lease_until: Time,
    /// Its state, as the server writes it.
    pub state: String,
}

/// A write of the row, in one transaction with edits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RampWrite {
    /// A new ramp replaces the last one; `change` and `revision` are set by the database.
    Start(RampRow),
    /// The row must have the revision that is given, which is incremented.
    Update(RampRow),
}
