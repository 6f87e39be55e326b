//! Nodes that follow a rules database: a change is in force on all of them within a second, none is lost, and the
//! last good rules stay in force whatever happens to the database.

mod api;
mod audit;
mod bans;
mod cold_start;
mod editor;
mod fleet;
mod local_copy;
mod outage;
mod pending_edits;
mod ramp;
mod sqlite;
