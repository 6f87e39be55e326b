//! Clients that share a budget through a real Redis.

use std::time::Duration;

use tokio::task::JoinSet;
use tollgate_client::{BuildError, Throttle, ThrottleError};
use tollgate_testkit::servers::redis::{Make, Redis};

const KEY: &str = "api.example.com";

/// A client as one of several processes.
fn client(redis: &Redis, limit: &str) -> Throttle {
    // A busy machine is slow; this is not about deadlines. A call that the limit denies fails at once: its turn is later.
    let patient = Duration::from_secs(20);
    let builder =
        Throttle::builder().limit(limit).store(&redis.url()).max_wait(patient).store_deadline(patient);
    builder.build().expect("a valid budget")
}

/// How many of these calls may be sent, all at once.
async fn sent(clients: &[Throttle], calls: usize) -> usize {
    let mut attempts = JoinSet::new();
    for n in 0..calls {
        let throttle = clients[n % clients.len()].clone();
        attempts.spawn(async move { throttle.acquire(KEY).await });
    }
    let mut sent = 0;
    while let Some(attempt) = attempts.join_next().await {
        match attempt.expect("it does not panic") {
            Ok(_) => sent += 1,
            Err(error) => assert!(matches!(error, ThrottleError::TooLate { .. }), "{error}"),
        }
    }
    sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_with_one_budget_stay_at_the_limit_together() {
    let Some(redis) = Redis::start(Make::Redis, "clients that share a budget") else { return };
    let clients = [client(&redis, "20/d"), client(&redis, "20/d")];
    assert_eq!(sent(&clients, 12).await, 12);
    assert_eq!(sent(&clients, 30).await, 8, "the rest of twenty, for both");
    let late = client(&redis, "20/d");
    assert_eq!(sent(&[late], 5).await, 0, "a third one finds nothing left");
    assert!(clients[0].acquire("another host").await.is_ok());
}

/// A regression: a call that found another one waiting for Redis failed, although the limit had room for both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_may_not_wait_use_the_whole_limit_at_once() {
    let Some(redis) = Redis::start(Make::Redis, "clients that do not wait") else { return };
    let client = client(&redis, "100/d");
    let mut calls = JoinSet::new();
    for _ in 0..120 {
        let client = client.clone();
        calls.spawn(async move { client.acquire_within(KEY, Duration::ZERO).await.is_ok() });
    }
    let sent = calls.join_all().await.into_iter().filter(|sent| *sent).count();
    assert_eq!(sent, 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_not_sent_is_given_back_to_all_clients() {
    let Some(redis) = Redis::start(Make::Redis, "clients that give calls back") else { return };
    let [one, other] = [client(&redis, "1/d"), client(&redis, "1/d")];
    let permit = one.acquire(KEY).await.expect("the first call");
    assert!(other.acquire(KEY).await.is_err());
    permit.cancel();
    // The refund is sent in the background.
    let mut attempts = 0;
    while other.acquire(KEY).await.is_err() {
        attempts += 1;
        assert!(attempts < 2_000, "the call was not given back");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A regression: without a limit, the store was ignored and nothing was shared.
#[tokio::test]
async fn a_store_without_a_limit_is_an_error() {
    let message = |built: Result<Throttle, BuildError>| built.expect_err("it has no effect").to_string();
    let store = Throttle::builder().store("redis://127.0.0.1");
    assert_eq!(message(store.build()), "store has no effect without a limit: set one");
    assert_eq!(message(Throttle::builder().burst(5).build()), "burst has no effect without a limit: set one");
}
