//! Failures between a store and its server: a clear error, no panic, and no request admitted by accident.

use std::io::Write;
use std::time::Duration;

use tollgate::internal::Shape;
use tollgate_stores::counters::{StoreError, cassandra};
use tollgate_testkit::central::strange::{check_error, serve};
use tollgate_testkit::central::{hit, limit, own};
use tollgate_testkit::free_port;
use tollgate_testkit::stores::cassandra::{initialise, patient, query, setup, usual};

use crate::cassandra::exclusive;

/// The deadline, on a busy machine.
const IN_TIME: Duration = Duration::from_secs(3);

async fn check(port: u16, part: &str) {
    check_error(usual(&format!("cassandra://127.0.0.1:{port}/limits")), part, IN_TIME).await;
}

#[tokio::test]
async fn an_unreachable_server_is_reported() {
    check(free_port(), "refused").await;
    check_error(usual("cassandra://no-such-host.invalid/limits"), "resolve", IN_TIME).await;
}

#[tokio::test]
async fn a_server_that_answers_garbage_is_reported() {
    check(serve(|mut stream| stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").is_ok()), "frame").await;
    check(serve(|mut stream| stream.write_all(&[0xFF; 4096]).is_ok()), "frame").await;
}

#[tokio::test]
async fn a_server_that_accepts_and_never_answers_is_reported() {
    check(serve(|_| true), "does not answer").await;
}

#[tokio::test]
async fn a_wrong_password_is_reported() {
    let Some((server, _exclusive)) = exclusive("logins to Cassandra").await else { return };
    initialise(&server.url("logins")).await;
    let at = |login: &str| format!("cassandra://{login}127.0.0.1:{}/logins", server.port);
    check_error(usual(&at("cassandra:hunter2@")), "cassandra and/or password are incorrect", IN_TIME).await;
    check_error(usual(&at("")), "uthenticat", IN_TIME).await;
}

#[tokio::test]
async fn a_missing_keyspace_is_reported_and_the_store_works_once_it_exists() {
    let Some((server, _exclusive)) = exclusive("keyspaces of Cassandra").await else { return };
    initialise(&server.url("another")).await;
    let url = server.url("not_yet_there");
    let store = usual(&url);
    check_error(store.clone(), "tollgate store init", IN_TIME).await;
    cassandra::init(&setup(&url).address).await.expect("it is made");
    cassandra::init(&setup(&url).address).await.expect("what is there stays");
    store.ready(tollgate_testkit::SOON).await.expect("it is found");
}

#[tokio::test]
async fn a_row_of_another_program_has_no_answer_and_the_others_do() {
    let Some((server, _exclusive)) = exclusive("foreign rows on Cassandra").await else { return };
    let url = server.url("foreign");
    let store = patient(&url).await;
    let bad = limit("5/d", Shape::GCRA);
    let good = limit("9/d", Shape::GCRA);
    let bad = own("bad", "user:1", bad);
    let good = own("good", "user:2", good);
    hit(&store, &bad).await.expect("it is charged");
    query(
        &server,
        "UPDATE foreign.tollgate_counters SET state = 0xffff \
                  WHERE owner = 'user:1' AND counter = 'tg1:default:bad:{user:1}:gcra-d'",
    )
    .await;
    let charges = [bad, good];
    let outcome = store.charge(&charges, tollgate_testkit::central::now()).await;
    let error = outcome.limits[0].error().expect("no answer");
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    assert!(outcome.limits[1].outcome().is_some());
    assert_eq!(outcome.receipt(&charges).map(|receipt| receipt.items().len()), Some(1));
}
