//! Every option of an address, against a real Cassandra as far as it has it.

use tollgate::internal::Shape;
use tollgate_stores::counters::{StoreError, cassandra};
use tollgate_testkit::SOON;
use tollgate_testkit::central::strange::check_error;
use tollgate_testkit::central::{hit, left, limit, now, own};
use tollgate_testkit::servers::cassandra::Cassandra;
use tollgate_testkit::stores::cassandra::{initialise, patient, query, setup, usual};

use crate::cassandra::exclusive;

/// What SimpleSnitch calls the datacenter.
const DATACENTER: &str = "datacenter1";

fn address(server: &Cassandra, scheme: &str, keyspace: &str, options: &str) -> String {
    let url = server.url(keyspace);
    format!("{}?{options}", url.replacen("cassandra://", &format!("{scheme}://"), 1))
}

async fn init(url: &str) -> Result<(), StoreError> {
    cassandra::init(&setup(url).address).await
}

#[tokio::test]
async fn counters_are_charged_under_every_option() {
    let Some((server, _exclusive)) = exclusive("options of an address").await else { return };
    let local = format!("serial=local_serial&datacenter={DATACENTER}&consistency=local_quorum");
    let global = format!("serial=serial&datacenter={DATACENTER}");
    for (scheme, options) in [
        ("cassandra", "consistency=one"),
        ("cassandra", "consistency=quorum&serial=serial"),
        ("cassandra", "consistency=each_quorum"),
        ("cassandra", "consistency=all"),
        ("cassandra", "consistency=local_one"),
        ("cassandra", local.as_str()),
        ("cassandra", global.as_str()),
        ("scylla", ""),
        ("scylla", "shard_aware_port=off"),
        ("scylla", "shard_aware_port=on"),
        ("scylla", local.as_str()),
    ] {
        let store = patient(&address(&server, scheme, "options", options)).await;
        let charge = own("options", "user:1", limit("5/d", Shape::GCRA));
        for used in 1..=2 {
            let part = hit(&store, &charge).await;
            let part = part.unwrap_or_else(|error| panic!("{scheme}, {options}: {error}"));
            assert_eq!(part.remaining, 5 - used, "{scheme}, {options}");
        }
        assert_eq!(left(&store, &charge).await, 3, "{scheme}, {options}");
        assert_eq!(store.reset(charge.counter(), now()).await, Ok(true), "{scheme}, {options}");
    }
}

/// The server reports a failure after the transaction was agreed on: a serial read finds the nonce.
#[tokio::test]
async fn a_transaction_that_lacks_replicas_for_its_commit_is_looked_up_and_counts() {
    let Some((server, _exclusive)) = exclusive("consistency without replicas").await else { return };
    for (options, used) in [("consistency=two", 1), ("consistency=three", 3)] {
        let store = patient(&address(&server, "cassandra", "alone", options)).await;
        let charge = own("alone", "user:1", limit("9/d", Shape::GCRA));
        for used in [used, used + 1] {
            let part = hit(&store, &charge).await.unwrap_or_else(|error| panic!("{options}: {error}"));
            assert_eq!(part.remaining, 9 - used, "{options}");
        }
        assert_eq!(left(&store, &charge).await, 9 - used - 1, "{options}");
    }
}

#[tokio::test]
async fn a_misspelt_datacenter_is_reported_with_the_existing_ones() {
    let Some((server, _exclusive)) = exclusive("datacenters of Cassandra").await else { return };
    initialise(&server.url("places")).await;
    let url = address(&server, "cassandra", "places", "datacenter=datacentre1");
    let says = format!("datacenter=datacentre1: the cluster has {DATACENTER}");
    check_error(usual(&url), &says, SOON).await;
    let message = init(&url).await.expect_err("no such datacenter").to_string();
    assert!(message.contains(&says), "{message}");
}

#[tokio::test]
async fn tablets_are_rejected_by_a_server_without_them() {
    let Some((server, _exclusive)) = exclusive("tablets on Cassandra").await else { return };
    initialise(&server.url("before")).await;
    for options in ["tablets=on", "tablets=off"] {
        let message =
            init(&address(&server, "scylla", "tablets", options)).await.expect_err(options).to_string();
        assert!(message.starts_with("scylla at 127.0.0.1"), "{message}");
        assert!(message.contains("the option tablets is for ScyllaDB"), "{message}");
    }
    // A keyspace that is there is not made, whatever the option.
    init(&address(&server, "scylla", "before", "tablets=off")).await.expect("what is there stays");
}

#[tokio::test]
async fn the_keyspace_names_every_datacenter() {
    let Some((server, _exclusive)) = exclusive("replication of the keyspace").await else { return };
    initialise(&server.url("copies")).await;
    let query_text = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = 'copies'";
    let rows = query(&server, query_text).await.expect("rows");
    let (replication,): (std::collections::HashMap<String, String>,) = rows.first_row().expect("one row");
    assert_eq!(replication.get(DATACENTER).map(String::as_str), Some("1"), "{replication:?}");
}
