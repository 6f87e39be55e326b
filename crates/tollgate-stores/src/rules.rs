//! Databases of what operators change at runtime: rules, bans, allow entries and settings.
//!
//! Every change has a number of one sequence, and an entry in an append-only log; nodes follow the database by reading
//! the log. [`plan`] decides what is written, for every database.

mod change_set;
mod db;
mod edit;
mod error;
mod item;
mod list;
#[cfg(feature = "sqlite")]
pub mod local_copy;
mod node;
mod plan;
#[cfg(feature = "postgres")]
pub mod postgres;
mod ramp;
mod row;
mod spool;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod text;

pub use change_set::{ChangeSet, OnConflict, Reverted};
pub use db::{Access, RulesDb};
pub use edit::{Author, Edit, EditSummary, MAX_EDITS, Precondition};
pub use error::DbError;
pub use item::{ChangeFeed, ChangeLogEntry, ItemChange, ItemId, ItemKind, PageQuery, StoredItem, Version};
pub use list::for_each_rule;
pub use node::{AnnouncedNode, MAX_NODES};
pub use plan::CurrentItems;
pub use ramp::{MAX_RAMP_NODES, RampRow, RampWrite};
pub use spool::{RuleSpool, SpooledRule};
pub use text::{ParsedRule, RuleText, parse_ban};
pub use tollgate::internal::Enforce;
