//! The keyspace and the table, created on request.

use std::collections::BTreeMap;
use std::time::Duration;

use scylla::client::session::Session;
use scylla::serialize::row::SerializeRow;
use scylla::statement::{Consistency, Statement};
use tokio::time::timeout;

use super::address::{CassandraAddress, Tablets};
use super::link::{self, error_chain};
use crate::counters::StoreError;

/// Replication factor per datacenter, if it has this many servers.
const REPLICAS: usize = 3;
/// For all of the initialization.
const INIT_TIMEOUT: Duration = Duration::from_secs(60);
const WITHOUT_TABLETS: &str = " AND tablets = {'enabled': false}";

/// The name of the counter table, with its keyspace.
pub(super) fn table(address: &CassandraAddress) -> String {
    format!("\"{}\".tollgate_counters", address.keyspace)
}

/// Creates the keyspace and the table if they are missing. Existing ones are not changed.
pub async fn init(address: &CassandraAddress) -> Result<(), StoreError> {
    let server = address.name();
    let refused = |reason| StoreError::Refused { server: server.clone(), reason };
    let made = async {
        let unreachable = |reason| StoreError::Unreachable { server: server.clone(), reason };
        let session = link::connect(address).await.map_err(unreachable)?;
        create(&session, address).await.map_err(refused)
    };
    timeout(INIT_TIMEOUT, made).await.unwrap_or(Err(StoreError::Deadline { server: server.clone() }))
}

async fn create(session: &Session, address: &CassandraAddress) -> Result<(), String> {
    let known = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?";
    let missing = read_system(session, known, (&address.keyspace,)).await?.is_none();
    if missing {
        let tablets = tablets_option(address.tablets, &supported_features(session).await?);
        let keyspace = keyspace_statement(&address.keyspace, &nodes_by_datacenter(session), tablets);
        let made = session.query_unpaged(keyspace, ()).await;
        made.map_err(|error| keyspace_error(address, &error_chain(&error)))?;
    }
    // gc_grace_seconds: how long a server may be down and still receive the deletions that it missed.
    let table_name = table(address);
    let table = format!(
        "CREATE TABLE IF NOT EXISTS {table_name} (owner text, counter text, version bigint, nonce bigint, state blob, \
         PRIMARY KEY (owner, counter)) WITH gc_grace_seconds = 10800 \
         AND comment = 'tollgate: one row a counter; owner keeps the counters of one user together'",
    );
    session.query_unpaged(table, ()).await.map_err(|error| error_chain(&error))?;
    check_transactions(session, &table_name).await
}

fn keyspace_error(address: &CassandraAddress, reason: &str) -> String {
    match address.tablets {
        Tablets::Default => reason.to_owned(),
        Tablets::On | Tablets::Off => {
            format!(
                "{reason}; the option tablets is for ScyllaDB 6.0 and later: leave it out on other servers"
            )
        }
    }
}

/// Runs a transaction that changes nothing: without transactions a keyspace cannot store counters.
async fn check_transactions(session: &Session, table: &str) -> Result<(), String> {
    let nothing = format!("DELETE FROM {table} WHERE owner = 'nobody' AND counter = 'nothing' IF EXISTS");
    let tried = session.query_unpaged(nothing, ()).await;
    tried.map(|_| ()).map_err(|error| transaction_error(&error_chain(&error)))
}

fn transaction_error(reason: &str) -> String {
    let way_out = match reason.to_ascii_lowercase().contains("tablets") {
        true => "; drop the keyspace and create it again with tablets=off, or use ScyllaDB 2025.4 or later",
        false => "",
    };
    format!("a lightweight transaction in the keyspace fails: {reason}{way_out}")
}

fn nodes_by_datacenter(session: &Session) -> BTreeMap<String, usize> {
    let mut nodes = BTreeMap::new();
    for node in session.get_cluster_state().get_nodes_info() {
        *nodes.entry(node.datacenter.clone().unwrap_or_default()).or_default() += 1;
    }
    nodes
}

/// The features that all servers of a ScyllaDB cluster support; empty for Cassandra, which has no such column.
async fn supported_features(session: &Session) -> Result<String, String> {
    let column = "SELECT column_name FROM system_schema.columns WHERE keyspace_name = 'system' \
                  AND table_name = 'local' AND column_name = 'supported_features'";
    if read_system(session, column, ()).await?.is_none() {
        return Ok(String::new());
    }
    let features = "SELECT supported_features FROM system.local WHERE key = 'local'";
    Ok(read_system(session, features, ()).await?.unwrap_or_default())
}

/// The text in the first row of a result. System tables are local to every server: consistency ONE is enough.
async fn read_system(
    session: &Session,
    text: &str,
    values: impl SerializeRow,
) -> Result<Option<String>, String> {
    let mut statement = Statement::new(text);
    statement.set_consistency(Consistency::One);
    let answer = session.query_unpaged(statement, values).await.map_err(|error| error_chain(&error))?;
    let rows = answer.into_rows_result().map_err(|error| error_chain(&error))?;
    let row = rows.maybe_first_row::<(Option<String>,)>().map_err(|error| error_chain(&error))?;
    Ok(row.map(|(text,)| text.unwrap_or_default()))
}

/// Disables tablets where they are the default but have no transactions: ScyllaDB 6.0 to 2025.3.
fn tablets_option(tablets: Tablets, features: &str) -> &'static str {
    let has = |feature| features.split(',').any(|known| known.trim() == feature);
    match tablets {
        Tablets::On => " AND tablets = {'enabled': true}",
        Tablets::Off => WITHOUT_TABLETS,
        Tablets::Default if has("TABLETS") && !has("LWT_WITH_TABLETS") => WITHOUT_TABLETS,
        Tablets::Default => "",
    }
}

/// Three replicas per datacenter, or as many as it has servers.
fn keyspace_statement(keyspace: &str, nodes: &BTreeMap<String, usize>, tablets: &str) -> String {
    let copies: String = nodes
        .iter()
        .map(|(datacenter, nodes)| {
            format!(", '{}': {}", datacenter.replace('\'', "''"), (*nodes).clamp(1, REPLICAS))
        })
        .collect();
    format!(
        "CREATE KEYSPACE IF NOT EXISTS \"{}\" WITH replication = {{'class': 'NetworkTopologyStrategy'{copies}}}{tablets}",
        keyspace
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_datacenter_has_three_copies_or_as_many_as_servers() {
        let made = |nodes: &[(&str, usize)]| {
            let nodes = nodes.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
            keyspace_statement("k", &nodes, WITHOUT_TABLETS)
        };
        let start =
            "CREATE KEYSPACE IF NOT EXISTS \"k\" WITH replication = {'class': 'NetworkTopologyStrategy', ";
        let end = " AND tablets = {'enabled': false}";
        assert_eq!(made(&[("dc1", 1)]), format!("{start}'dc1': 1}}{end}"));
        assert_eq!(made(&[("dc1", 9), ("o'dc", 2)]), format!("{start}'dc1': 3, 'o''dc': 2}}{end}"));
    }

    #[test]
    fn tablets_are_off_by_default_only_where_they_have_no_transactions() {
        let default = |features| tablets_option(Tablets::Default, features);
        assert_eq!(default(""), "", "Cassandra, and ScyllaDB before 6.0");
        assert_eq!(default("LWT,TABLETS,CDC"), WITHOUT_TABLETS, "ScyllaDB 6.0 to 2025.3");
        assert_eq!(default("LWT,TABLETS,LWT_WITH_TABLETS"), "", "ScyllaDB from 2025.4");
        assert_eq!(tablets_option(Tablets::Off, ""), WITHOUT_TABLETS);
        assert_eq!(tablets_option(Tablets::On, "TABLETS"), " AND tablets = {'enabled': true}");
    }

    #[test]
    fn a_keyspace_without_transactions_is_reported_with_a_hint() {
        let scylla =
            "Cannot use LightWeight Transactions for table k.t: LWT is not yet supported with tablets";
        let error = transaction_error(scylla);
        assert!(
            error.contains(scylla) && error.contains("tablets=off") && error.contains("2025.4"),
            "{error}"
        );
        assert!(!transaction_error("timed out").contains("tablets"));
    }
}
