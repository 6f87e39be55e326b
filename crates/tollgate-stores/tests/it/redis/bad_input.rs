//! Failures between a store and its server: a clear error, no panic, and no request admitted by accident.

use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tollgate::internal::{Limit, Shape};
use tollgate_stores::counters::StoreError;
use tollgate_stores::counters::name::Naming;
use tollgate_testkit::central::strange::{self, serve, serve_counted};
use tollgate_testkit::central::{FIXED, hit, left, limit, now, own, shared};
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::stores::redis::{ready, usual};
use tollgate_testkit::{Folder, SOON, eventually, free_port};

fn five() -> Limit {
    limit("5/h", Shape::GCRA)
}

/// A charge fails, and soon its reason contains `part`.
async fn check_error(url: &str, part: &str) {
    strange::check_error(usual(url), part, Duration::from_secs(2)).await;
}

#[tokio::test]
async fn a_wrong_password_is_reported() {
    let Some(server) = Redis::start_with(Make::Redis, "logins to Redis", &["--requirepass", "right"]) else {
        return;
    };
    // What the documentation says is enough.
    let needed = "ping select role time script|load evalsha asking cluster|slots \
                  get set del strlen getrange setrange append pexpire";
    let rights: Vec<_> = needed.split_whitespace().map(|command| format!("+{command}")).collect();
    let user: Vec<_> = ["AUTH", "right"].into_iter().collect();
    let mut setuser = vec!["ACL", "SETUSER", "me", "on", ">mine", "~tg1:*"];
    setuser.extend(rights.iter().map(String::as_str));
    assert!(server.commands(&[&user, &setuser]).ends_with("+OK\r\n+OK\r\n"));
    let at = |login: &str| format!("redis://{login}127.0.0.1:{}", server.port);
    check_error(&at(":hunter2@"), "WRONGPASS").await;
    check_error(&at("me:hunter2@"), "WRONGPASS").await;
    check_error(&at(""), "NOAUTH").await;
    let folder = Folder::new();
    let password = folder.write("password", "hunter2\n");
    let from_file = format!("{}?password_file={}", at("me@"), password.display());
    check_error(&from_file, "WRONGPASS").await;
    folder.write("password", "mine\n");
    hit(&ready(&from_file).await, &own("login", "user:file", five()))
        .await
        .expect("the file has the password now");
    std::fs::remove_file(&password).expect("the file exists");
    check_error(&from_file, "password_file").await;
    for login in [":right@", "me:mine@"] {
        let store = ready(&at(login)).await;
        for shape in [Shape::GCRA, FIXED, Shape::SlidingLog, Shape::SlidingCounter] {
            let charge = own("login", login, limit("5/h", shape));
            assert!(hit(&store, &charge).await.is_ok() && hit(&store, &charge).await.is_ok());
            assert_eq!(store.reset(charge.counter(), now()).await, Ok(true));
        }
    }
}

#[tokio::test]
async fn a_wrong_database_is_reported_and_a_right_one_is_used() {
    let Some(server) = Redis::start(Make::Redis, "databases of Redis") else { return };
    check_error(&format!("{}/99", server.url()), "DB index is out of range").await;
    let third = ready(&format!("{}/3", server.url())).await;
    let first = ready(&server.url()).await;
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
    server.command(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
    let error = hit(&store, &charge).await.expect_err("it takes no writes").to_string();
    assert!(error.contains("READONLY"), "{error}");
    let start = Instant::now();
    while !hit(&store, &charge).await.expect_err("still a replica").to_string().contains("it is a replica") {
        assert!(start.elapsed() < SOON);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.command(&["REPLICAOF", "NO", "ONE"]);
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
        let name = Naming::Plain.name(&bad.counter().id, &bad.counter().limit);
        for words in [["LPUSH", &name, "x"], ["SET", &name, "of another program"]] {
            server.command(&["DEL", &name]);
            server.command(&words);
            let charges = [bad.clone(), good.clone()];
            let outcome = store.charge(&charges, now()).await;
            let error = outcome.limits[0].error().expect("no answer");
            assert!(matches!(error, StoreError::Refused { .. }), "{error}");
            assert!(error.to_string().contains(&name) && error.to_string().contains("WRONGTYPE"), "{error}");
            assert!(outcome.limits[1].outcome().is_some());
            assert_eq!(outcome.receipt(&charges).map(|receipt| receipt.items().len()), Some(1));
        }
        assert_eq!(left(&store, &good).await, 9 - 2 * (n as u64 + 1));
    }
}

#[tokio::test]
async fn a_full_memory_refuses_and_charges_nothing() {
    let Some(server) = Redis::start(Make::Redis, "a full Redis") else { return };
    let store = ready(&server.url()).await;
    let mine = own("login", "user:1", five());
    let all = shared("api", limit("5/h", Shape::SlidingLog));
    assert_eq!(server.command(&["CONFIG", "SET", "maxmemory", "1"]), "+OK\r\n");
    for part in store.charge(&[mine.clone(), all.clone()], now()).await.limits {
        let error = part.error().expect("no room").to_string();
        assert!(error.contains("OOM"), "{error}");
    }
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!((left(&store, &mine).await, left(&store, &all).await), (5, 5));
}

#[tokio::test]
async fn an_unreachable_server_is_reported_at_once() {
    check_error(&format!("redis://127.0.0.1:{}", free_port()), "refused").await;
    check_error(&format!("redis+unix:///tmp/tollgate-no-such-{}.sock", free_port()), "No such file").await;
    check_error(&format!("redis+cluster://127.0.0.1:{}", free_port()), "refused").await;
    check_error(&format!("redis+sentinel://127.0.0.1:{}/main", free_port()), "refused").await;
}

fn at(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}

#[tokio::test]
async fn a_server_that_answers_garbage_is_reported() {
    let http = serve(|mut stream| stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").is_ok());
    check_error(&at(http), "protocol").await;
    check_error(&at(serve(|mut stream| stream.write_all(&[0xFF; 4096]).is_ok())), "protocol").await;
    let loading = b"-LOADING Redis is loading the dataset in memory\r\n";
    check_error(&at(serve(|mut stream| stream.write_all(loading).is_ok())), "LOADING").await;
}

#[tokio::test]
async fn a_server_that_accepts_and_never_answers_is_reported() {
    let (port, connections) = serve_counted(|_| true);
    check_error(&at(port), "does not answer").await;
    eventually("no connection is left behind", || connections.load(Ordering::Relaxed) == 0);
}

#[tokio::test]
async fn a_server_that_closes_the_connection_is_reported() {
    check_error(&at(serve(|_| false)), "closed the connection").await;
}

/// A server closes idle connections: that is not an outage.
#[tokio::test]
async fn a_lost_connection_is_reestablished() {
    let Some(server) = Redis::start(Make::Redis, "cut connections to Redis") else { return };
    let store = ready(&server.url()).await;
    let charge = own("login", "user:1", limit("1000/h", FIXED));
    for _ in 0..10 {
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        let start = Instant::now();
        while hit(&store, &charge).await.is_err() {
            assert!(start.elapsed() < SOON);
        }
    }
    assert_eq!(store.health()[0].opened, 0);
}
