//! A database of what an operator changes while traffic flows: rules, bans, allow entries and settings.
//!
//! Every change has a number of one sequence, and an entry in a log that is only appended to; the log is
//! also what nodes read to follow. What is written is decided once, by [`plan`], for every database.

#[cfg(feature = "sqlite")]
pub mod copy;
mod db;
mod edit;
mod error;
mod item;
mod list;
mod plan;
#[cfg(feature = "postgres")]
pub mod postgres;
mod row;
mod spool;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod text;

pub use db::{Access, RulesDb};
pub use edit::{Author, Edit, Edited, Expected, MAX_EDITS};
pub use error::DbError;
pub use item::{Change, Feed, Item, Kind, Logged, Page, Stored, Version};
pub use list::each_rule;
pub use plan::Current;
pub use spool::{RuleSpool, Spooled};
pub use text::{ReadRule, RuleText, ban_of};
pub use tollgate::Enforce;
