//! Every answer is that of the pure functions.

use crate::central::Told;
use crate::conformance;
use crate::stores::patient;
use crate::turn;

#[tokio::test]
async fn cassandra_conforms() {
    let Some((server, _turn)) = turn("conformance of Cassandra").await else { return };
    conformance::check(&Told::new(patient(&server.url("conformance")).await, 12)).await;
}
