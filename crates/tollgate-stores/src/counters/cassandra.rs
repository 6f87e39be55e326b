//! Cassandra and ScyllaDB: one row per counter, changed by lightweight transactions.
//!
//! The counters of one owner share a partition: a transaction on several of them applies all or none. Rows expire by
//! TTL. The nodes' clocks decide. Only [`init`] creates the tables.

mod address;
mod clock;
mod limits;
mod link;
mod rows;
mod schema;
mod store;

pub use address::CassandraAddress;
pub use clock::server_time;
pub use limits::{UnsupportedCassandraLimit, check_limit};
pub use schema::init;
pub use store::{CassandraSetup, CassandraStore};
