//! Every answer is that of the pure functions.

use crate::central::Told;
use crate::conformance;
use crate::servers::cassandra::Cassandra;
use crate::stores::patient;

#[tokio::test]
async fn cassandra_conforms() {
    let Some(server) = Cassandra::shared("conformance of Cassandra") else { return };
    conformance::check(&Told::new(patient(&server.url("conformance")).await, 12)).await;
}
