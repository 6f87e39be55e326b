//! Cassandra and ScyllaDB: one row a counter, changed by lightweight transactions.
//!
//! The counters of one owner share a partition: a transaction on several of them takes all or none. Rows
//! expire by themselves. The nodes' clocks decide. The tables are made by [`init`], and by nothing else.

mod address;
mod limits;
mod link;
mod rows;
mod schema;
mod store;

pub use address::CassandraAddress;
pub use limits::{UnsupportedCassandraLimit, check_limit};
pub use schema::init;
pub use store::{CassandraSetup, CassandraStore};
