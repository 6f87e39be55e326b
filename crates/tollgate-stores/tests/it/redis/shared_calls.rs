//! Requests that wait at the same time share a call of the script, and are decided as if each had its own.

use futures_util::future::join_all;
use tollgate::internal::Shape;
use tollgate::internal::store::Charge;
use tollgate_stores::counters::CentralOutcome;
use tollgate_stores::counters::name::Naming;
use tollgate_stores::counters::redis::RedisStore;
use tollgate_testkit::central::{FIXED, hit, left, limit, now, own, shared};
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::stores::redis::ready;

fn user(n: usize) -> Charge {
    own("each", &format!("user:{n}"), limit("5/h", Shape::GCRA))
}

/// Charges requests at the same time.
async fn charge_at_once(store: &RedisStore, requests: &[Vec<Charge>]) -> Vec<CentralOutcome> {
    join_all(requests.iter().map(|charges| store.charge(charges, now()))).await
}

/// How often the server has run a script.
fn calls(server: &Redis) -> usize {
    let stats = server.command(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |line| line.split(',').next().and_then(|calls| calls.parse().ok()).expect("a number"))
}

#[tokio::test]
async fn requests_at_the_same_time_take_a_few_calls() {
    for make in [Make::Redis, Make::Valkey] {
        let Some(server) = Redis::start(make, "shared calls of Redis") else { continue };
        let store = ready(&server.url()).await;
        hit(&store, &user(0)).await.expect("it is charged");
        let before = calls(&server);
        let requests: Vec<_> = (1..=200).map(|n| vec![user(n)]).collect();
        let outcomes = charge_at_once(&store, &requests).await;
        assert!(outcomes.iter().all(|outcome| outcome.admitted && outcome.limits[0].outcome().is_some()));
        // Four, unless this thread is suspended in between: deadlines are no further apart than a millisecond.
        let calls = calls(&server) - before;
        assert!((4..100).contains(&calls), "{calls} calls for 200 requests");
    }
}

#[tokio::test]
async fn each_request_of_a_call_is_all_or_none_and_sees_those_before_it() {
    let Some(server) = Redis::start(Make::Redis, "shared calls of Redis") else { return };
    let store = ready(&server.url()).await;
    let all = shared("api", limit("3/h", FIXED));
    for shape in [Shape::GCRA, FIXED, Shape::SlidingLog, Shape::SlidingCounter] {
        store.reset(all.counter(), now()).await.expect("it is deleted");
        let own = |n: usize| own("own", &format!("user:{n}"), limit("7/h", shape));
        let requests: Vec<_> = (0..6).map(|n| vec![own(n), all.clone()]).collect();
        let outcomes = charge_at_once(&store, &requests).await;
        let admitted: Vec<_> = outcomes.iter().map(|outcome| outcome.admitted).collect();
        assert_eq!(admitted, [true, true, true, false, false, false], "{shape:?}");
        for n in 0..6 {
            assert_eq!(left(&store, &own(n)).await, if n < 3 { 6 } else { 7 }, "{shape:?} {n}");
            store.reset(own(n).counter(), now()).await.expect("it is deleted");
        }
    }
    let same: Vec<_> = (0..7).map(|_| vec![user(0)]).collect();
    let outcomes = charge_at_once(&store, &same).await;
    let remaining: Vec<_> =
        outcomes.iter().map(|outcome| outcome.limits[0].outcome().expect("an answer").remaining).collect();
    assert_eq!(remaining, [4, 3, 2, 1, 0, 0, 0]);
}

#[tokio::test]
async fn a_request_that_fails_takes_no_other_with_it() {
    let Some(server) = Redis::start(Make::Redis, "shared calls of Redis") else { return };
    let store = ready(&server.url()).await;
    let bad = user(1);
    let name = Naming::Plain.name(&bad.counter().id, &bad.counter().limit);
    server.command(&["LPUSH", &name, "x"]);
    for _ in 0..5 {
        hit(&store, &user(2)).await.expect("it is charged");
    }
    let requests: Vec<_> = (0..4).map(|n| vec![user(n)]).collect();
    let outcomes = charge_at_once(&store, &requests).await;
    let error = outcomes[1].limits[0].error().expect("no answer").to_string();
    assert!(error.contains(&name) && error.contains("WRONGTYPE"), "{error}");
    let admitted: Vec<_> = outcomes.iter().map(|outcome| outcome.limits[0].outcome().is_some()).collect();
    assert_eq!(admitted, [true, false, true, true]);
    assert!(outcomes[0].admitted && !outcomes[2].admitted && outcomes[3].admitted);
    // Without memory, what needs none is decided.
    assert_eq!(server.command(&["CONFIG", "SET", "maxmemory", "1"]), "+OK\r\n");
    let outcomes = charge_at_once(&store, &requests).await;
    assert!(outcomes[2].limits[0].outcome().is_some() && !outcomes[2].admitted);
    for n in [0, 3] {
        let error = outcomes[n].limits[0].error().expect("no room").to_string();
        assert!(error.contains("OOM"), "{error}");
    }
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!((left(&store, &user(0)).await, left(&store, &user(3)).await), (4, 4));
}
