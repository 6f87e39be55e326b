//! The keyspace and the table: made on request.

use std::time::Duration;

use scylla::client::session::Session;
use tokio::time::timeout;

use super::address::CassandraAddress;
use super::link::{self, text_of};
use crate::counters::StoreError;

/// Copies that a keyspace of ours has of every row, where there are as many servers.
const REPLICAS: usize = 3;
/// The time that all of it may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the counters are, in their keyspace.
pub(super) fn table(address: &CassandraAddress) -> String {
    format!("\"{}\".tollgate_counters", address.keyspace)
}

/// Makes the keyspace and the table where they are missing. What is there stays as it is.
pub async fn init(address: &CassandraAddress) -> Result<(), StoreError> {
    let server = address.name();
    let refused = |reason| StoreError::Refused { server: server.clone(), reason };
    let made = async {
        let unreachable = |reason| StoreError::Unreachable { server: server.clone(), reason };
        let session = link::connect(address).await.map_err(unreachable)?;
        create(&session, address).await.map_err(refused)
    };
    timeout(PATIENCE, made).await.unwrap_or(Err(StoreError::Deadline { server: server.clone() }))
}

async fn create(session: &Session, address: &CassandraAddress) -> Result<(), String> {
    let known = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?";
    let found = session.query_unpaged(known, (&address.keyspace,)).await.map_err(|error| text_of(&error))?;
    let missing = found.into_rows_result().map_or(true, |rows| rows.rows_num() == 0);
    if missing {
        let copies = session.get_cluster_state().get_nodes_info().len().clamp(1, REPLICAS);
        let keyspace = format!(
            "CREATE KEYSPACE IF NOT EXISTS \"{}\" WITH replication = \
             {{'class': 'NetworkTopologyStrategy', 'replication_factor': {copies}}}",
            address.keyspace
        );
        session.query_unpaged(keyspace, ()).await.map_err(|error| text_of(&error))?;
    }
    // Expired rows are gone after as long as a server may be away and still be told what it missed.
    let table = format!(
        "CREATE TABLE IF NOT EXISTS {} (owner text, counter text, version bigint, nonce bigint, state blob, \
         PRIMARY KEY (owner, counter)) WITH gc_grace_seconds = 10800 \
         AND comment = 'tollgate: one row a counter; owner keeps the counters of one user together'",
        table(address)
    );
    session.query_unpaged(table, ()).await.map_err(|error| text_of(&error))?;
    Ok(())
}
