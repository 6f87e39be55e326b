//! What goes wrong between a store and its server: a clear error, no crash, and nothing falls open by accident.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use tollgate::{Limit, Shape};
use tollgate_stores::counters::StoreError;
use tollgate_stores::counters::name::Naming;

use crate::hits::{FIXED, hit, left, limit, own, ready, shared, usual};
use crate::servers::redis::{Make, Redis};
use crate::servers::{SOON, free_port};

fn five() -> Limit {
    limit("5/h", Shape::GCRA)
}

/// What a charge says on a store at `url`, once it says `part`; every answer must come in its time.
async fn check_error(url: &str, part: &str) {
    let store = usual(url);
    let start = Instant::now();
    loop {
        let asked = Instant::now();
        let outcome = store.charge(&[own("login", "user:1", five())]).await;
        assert!(asked.elapsed() < Duration::from_secs(2), "an answer in its time");
        let error = outcome.parts[0].as_ref().expect_err("no answer").to_string();
        assert!(outcome.receipt.is_none() && !error.contains("hunter2"), "{error}");
        if error.contains(part) {
            break;
        }
        assert!(start.elapsed() < SOON, "'{error}' does not say '{part}'");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(store.health()[0].trouble.as_ref().is_some_and(|trouble| trouble.contains(part)));
}

#[tokio::test]
async fn a_wrong_password_is_told() {
    let arguments = ["--requirepass", "right", "--user", "me", "on", ">mine", "~tg1:*", "+@all"];
    let Some(server) = Redis::start_with(Make::Redis, "logins to Redis", &arguments) else { return };
    let at = |login: &str| format!("redis://{login}127.0.0.1:{}", server.port);
    check_error(&at(":hunter2@"), "WRONGPASS").await;
    check_error(&at("me:hunter2@"), "WRONGPASS").await;
    check_error(&at(""), "NOAUTH").await;
    for login in [":right@", "me:mine@"] {
        let store = ready(&at(login)).await;
        assert!(hit(&store, &own("login", login, five())).await.is_ok());
    }
}

#[tokio::test]
async fn a_wrong_database_is_told_and_a_right_one_is_used() {
    let Some(server) = Redis::start(Make::Redis, "databases of Redis") else { return };
    check_error(&format!("{}/99", server.url()), "DB index is out of range").await;
    let (third, first) = (ready(&format!("{}/3", server.url())).await, ready(&server.url()).await);
    let charge = own("login", "user:1", five());
    hit(&third, &charge).await.expect("it is charged");
    assert_eq!((left(&third, &charge).await, left(&first, &charge).await), (4, 5));
}

#[tokio::test]
async fn a_replica_is_refused() {
    let Some(primary) = Redis::start(Make::Redis, "replicas of Redis") else { return };
    let port = primary.port.to_string();
    let Some(replica) = Redis::start_with(Make::Redis, "replicas", &["--replicaof", "127.0.0.1", &port])
    else {
        return;
    };
    check_error(&replica.url(), "it is a replica").await;
}

#[tokio::test]
async fn a_primary_that_becomes_a_replica_refuses_and_is_left() {
    let Some(server) = Redis::start(Make::Redis, "demoted primaries of Redis") else { return };
    let store = ready(&server.url()).await;
    let charge = own("login", "user:1", five());
    hit(&store, &charge).await.expect("it is charged");
    server.ask(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
    let error = hit(&store, &charge).await.expect_err("it takes no writes").to_string();
    assert!(error.contains("READONLY"), "{error}");
    let start = Instant::now();
    while !hit(&store, &charge).await.expect_err("still a replica").to_string().contains("it is a replica") {
        assert!(start.elapsed() < SOON);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.ask(&["REPLICAOF", "NO", "ONE"]);
    store.ready(SOON).await.expect("it is back");
}

#[tokio::test]
async fn a_key_of_the_wrong_type_has_no_answer_and_the_others_do() {
    let Some(server) = Redis::start(Make::Redis, "values of other kinds on Redis") else { return };
    let store = ready(&server.url()).await;
    let shapes = [Shape::GCRA, FIXED, Shape::SlidingLog, Shape::SlidingCounter];
    for (n, shape) in shapes.into_iter().enumerate() {
        let (bad, good) =
            (own("bad", "user:1", limit("5/h", shape)), own("good", "user:1", limit("9/h", FIXED)));
        let name = Naming::Plain.name(&bad.counter, &bad.limit);
        for words in [["LPUSH", &name, "x"], ["SET", &name, "of another program"]] {
            server.ask(&["DEL", &name]);
            server.ask(&words);
            let outcome = store.charge(&[bad.clone(), good.clone()]).await;
            let error = outcome.parts[0].as_ref().expect_err("no answer");
            assert!(matches!(error, StoreError::Refused { .. }), "{error}");
            assert!(error.to_string().contains(&name) && error.to_string().contains("WRONGTYPE"), "{error}");
            assert!(outcome.parts[1].is_ok());
            assert_eq!(outcome.receipt.map(|receipt| receipt.items.len()), Some(1));
        }
        assert_eq!(left(&store, &good).await, 9 - 2 * (n as u64 + 1));
    }
}

#[tokio::test]
async fn a_full_memory_refuses_and_charges_nothing() {
    let Some(server) = Redis::start(Make::Redis, "a full Redis") else { return };
    let store = ready(&server.url()).await;
    let (mine, all) = (own("login", "user:1", five()), shared("api", limit("5/h", Shape::SlidingLog)));
    assert_eq!(server.ask(&["CONFIG", "SET", "maxmemory", "1"]), "+OK\r\n");
    for part in store.charge(&[mine.clone(), all.clone()]).await.parts {
        let error = part.expect_err("no room").to_string();
        assert!(error.contains("OOM"), "{error}");
    }
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!((left(&store, &mine).await, left(&store, &all).await), (5, 5));
}

#[tokio::test]
async fn nobody_there_is_told_at_once() {
    check_error(&format!("redis://127.0.0.1:{}", free_port()), "refused").await;
    check_error(&format!("redis+unix:///tmp/tollgate-no-such-{}.sock", free_port()), "No such file").await;
    check_error(&format!("redis+cluster://127.0.0.1:{}", free_port()), "refused").await;
    check_error(&format!("redis+sentinel://127.0.0.1:{}/main", free_port()), "refused").await;
}

#[tokio::test]
async fn a_server_that_answers_garbage_is_told() {
    check_error(
        &serve(|mut stream| stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").is_ok()),
        "protocol",
    )
    .await;
    check_error(&serve(|mut stream| stream.write_all(&[0xFF; 4096]).is_ok()), "protocol").await;
    let loading = b"-LOADING Redis is loading the dataset in memory\r\n";
    check_error(&serve(|mut stream| stream.write_all(loading).is_ok()), "LOADING").await;
}

#[tokio::test]
async fn a_server_that_accepts_and_never_answers_is_told() {
    check_error(&serve(|_| true), "does not answer").await;
}

#[tokio::test]
async fn a_server_that_hangs_up_is_told() {
    check_error(&serve(|_| false), "closed the connection").await;
}

/// A server that does `each` for everything it reads, for as long as that says so; it ends with the test.
fn serve(each: impl Fn(&std::net::TcpStream) -> bool + Copy + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut bytes = [0; 65536];
                while stream.read(&mut bytes).is_ok_and(|read| read > 0) && each(&stream) {}
            });
        }
    });
    format!("redis://127.0.0.1:{port}")
}
