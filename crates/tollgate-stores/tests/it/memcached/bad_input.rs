//! Failures between a store and its server: a clear error, no panic, and no request admitted by accident.

use std::fs;
use std::io::Write;
use std::time::Duration;

use tollgate::internal::Shape;
use tollgate_stores::counters::StoreError;
use tollgate_stores::counters::name::Naming;
use tollgate_testkit::central::strange::{check_error, serve};
use tollgate_testkit::central::{FIXED, SHAPES, Store, hit, limit, now, own};
use tollgate_testkit::servers::memcached::Memcached;
use tollgate_testkit::stores::memcached::{patient, usual};
use tollgate_testkit::{Folder, free_port};

/// The deadline, on a busy machine.
const IN_TIME: Duration = Duration::from_secs(2);

async fn check(port: u16, part: &str) {
    check_error(usual(&format!("memcached://127.0.0.1:{port}")), part, IN_TIME).await;
}

#[tokio::test]
async fn an_unreachable_server_is_reported() {
    check(free_port(), "refused").await;
    check_error(usual("memcached://no-such-host.invalid"), "lookup", IN_TIME).await;
}

#[tokio::test]
async fn a_server_that_answers_garbage_is_reported() {
    check(serve(|mut stream| stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").is_ok()), "HTTP/1.1 400")
        .await;
    check(serve(|mut stream| stream.write_all(&[0xFF; 4096]).is_ok()), "not a memcached response").await;
    check(serve(|mut stream| stream.write_all(b"ERROR\r\n").is_ok()), "1.6 or later").await;
    // It answers the handshake, and nothing else.
    check(serve(|mut stream| stream.write_all(b"MN\r\n").is_ok()), "not a memcached response").await;
}

#[tokio::test]
async fn a_server_that_accepts_and_never_answers_is_reported() {
    check(serve(|_| true), "does not answer").await;
}

#[tokio::test]
async fn a_server_that_closes_the_connection_is_reported() {
    check(serve(|_| false), "closed the connection").await;
}

#[tokio::test]
async fn a_wrong_password_is_reported() {
    let folder = Folder::new();
    let users = folder.path("users");
    fs::write(&users, "me:mine\n").expect("a file can be written");
    let users = users.display().to_string();
    let Some(server) = Memcached::start_with("logins to memcached", &["-Y", &users]) else { return };
    let at = |login: &str| format!("memcached://{login}127.0.0.1:{}", server.port);
    check_error(usual(&at("me:hunter2@")), "rejects the user or the password", IN_TIME).await;
    check_error(usual(&at("")), "requires a user", IN_TIME).await;
    hit(&patient(&at("me:mine@")), &own("login", "user:1", limit("5/h", Shape::GCRA)))
        .await
        .expect("it is ours");
}

#[tokio::test]
async fn a_key_of_the_wrong_type_has_no_answer_and_the_others_do() {
    let Some(server) = Memcached::start("values of other kinds on memcached") else { return };
    let store = patient(&server.url());
    let at = now();
    for shape in SHAPES {
        let (bad, good) =
            (own("bad", "user:1", limit("5/d", shape)), own("good", "user:1", limit("99/d", FIXED)));
        let seconds = at.secs();
        let name = Naming::Plain.name(&bad.counter().id, &bad.counter().limit);
        for suffix in [String::new(), format!(":{}", seconds / 86_400), format!(":s{seconds}")] {
            server.command(&format!("ms {name}{suffix} 5 T60\r\nstuff\r\nmn"), "MN");
        }
        let charges = [bad, good];
        let outcome = store.charge(&charges, at).await;
        let error = outcome.limits[0].error().expect("no answer");
        assert!(matches!(error, StoreError::Refused { .. }), "{shape:?}: {error}");
        assert!(outcome.limits[1].outcome().is_some());
        assert_eq!(outcome.receipt(&charges).map(|receipt| receipt.items().len()), Some(1));
    }
    assert_eq!(store.trouble(), None);
}
