//! A request whose counters are on several servers of a Cluster: all are charged, or none.

use futures_util::future::join_all;
use tollgate::internal::Shape;
use tollgate_stores::counters::name::Naming;
use tollgate_testkit::central::{FIXED, hit, left, limit, now, own, shared, together};
use tollgate_testkit::eventually;
use tollgate_testkit::servers::cluster::RedisCluster;
use tollgate_testkit::servers::redis::{Make, Redis, command};
use tollgate_testkit::stores::redis::{GivenTime, ready};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_hit_that_lost_a_race_is_counted_once() {
    let what = "denied hits that count on Redis";
    let (Some(one), Some(cluster)) = (Redis::start(Make::Redis, what), RedisCluster::start(what)) else {
        return;
    };
    for url in [one.url(), cluster.url()] {
        let nodes = [GivenTime(ready(&url).await.0), GivenTime(ready(&url).await.0)];
        together::check_counted(&nodes).await;
    }
}

#[tokio::test]
async fn denied_hits_do_not_drain_a_shared_limit_on_another_server() {
    let Some(servers) = RedisCluster::start("requests across slots of Redis Cluster") else { return };
    let store = ready(&servers.url()).await;
    let everybody = shared("api", limit("1000/h", FIXED));
    for user in 0..20 {
        let mine = own("login", &format!("user:{user}"), limit("2/h", FIXED));
        let admitted = async || store.charge(&[everybody.clone(), mine.clone()], now()).await.admitted;
        assert_eq!(
            [admitted().await, admitted().await, admitted().await, admitted().await],
            [true, true, false, false]
        );
    }
    assert_eq!(left(&store, &everybody).await, 1000 - 2 * 20);

    // And the other way round: a shared limit that denies takes nothing from its users.
    let full = shared("full", limit("1/h", FIXED));
    hit(&store, &full).await.expect("it is charged");
    for user in 0..20 {
        let mine = own("search", &format!("user:{user}"), limit("2/h", Shape::SlidingLog));
        let charges = [mine.clone(), full.clone()];
        let outcome = store.charge(&charges, now()).await;
        assert!(!outcome.admitted && outcome.receipt(&charges).is_none());
        assert_eq!(left(&store, &mine).await, 2);
    }

    // A cluster that is addressed as one server: the error names the right scheme.
    let one = ready(&servers.servers[0].url()).await;
    let mut errors = Vec::new();
    for user in 0..20 {
        let mine = own("login", &format!("user:{user}"), limit("2/h", FIXED));
        errors.extend(hit(&one, &mine).await.err().map(|error| error.to_string()));
    }
    assert!(
        !errors.is_empty() && errors.iter().all(|error| error.contains("write redis+cluster://")),
        "{errors:?}"
    );
}

#[tokio::test]
async fn slots_that_move_are_followed_and_nothing_is_charged_twice() {
    let Some(servers) = RedisCluster::start("moving slots of Redis Cluster") else { return };
    let store = ready(&servers.url()).await;
    let mine = own("login", "user:1", limit("1000/h", FIXED));
    let other = own("search", "user:1", limit("1000/h", FIXED));
    let name = Naming::Plain.name(&mine.counter().id, &mine.counter().limit);
    hit(&store, &mine).await.expect("it is charged");
    hit(&store, &other).await.expect("it is charged");
    let from = servers.primary_of(&name);
    let to = (from + 1) % 3;
    let port = |n: usize| servers.servers[n].port;
    let id = |n: usize| command(port(n), &["CLUSTER", "MYID"]).lines().nth(1).expect("an id").to_owned();
    let slot = command(port(0), &["CLUSTER", "KEYSLOT", &name]).trim().trim_start_matches(':').to_owned();

    // Migrating: the old server redirects (ASK) for keys that have left.
    assert_eq!(command(port(to), &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]), "+OK\r\n");
    assert_eq!(command(port(from), &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]), "+OK\r\n");
    assert_eq!(hit(&store, &mine).await.expect("not moved yet").remaining, 998);
    let moved = command(port(from), &["MIGRATE", "127.0.0.1", &port(to).to_string(), &name, "0", "5000"]);
    assert_eq!(moved, "+OK\r\n");
    assert_eq!(hit(&store, &mine).await.expect("ASK is followed").remaining, 997);

    // One key has left and the other has not: a call that requests for both share is refused (TRYAGAIN).
    let both = join_all((0..20).map(|n| hit(&store, if n % 2 == 0 { &mine } else { &other }))).await;
    let lowest = |of: usize| {
        let results = both.iter().skip(of).step_by(2);
        results.map(|hit| hit.as_ref().expect("each is charged alone").remaining).min()
    };
    assert_eq!([lowest(0), lowest(1)], [Some(987), Some(989)]);

    // Moved for good.
    let name = Naming::Plain.name(&other.counter().id, &other.counter().limit);
    command(port(from), &["MIGRATE", "127.0.0.1", &port(to).to_string(), &name, "0", "5000"]);
    for n in [to, from] {
        assert_eq!(command(port(n), &["CLUSTER", "SETSLOT", &slot, "NODE", &id(to)]), "+OK\r\n");
    }
    assert_eq!(hit(&store, &mine).await.expect("MOVED is followed").remaining, 986);
    assert_eq!(hit(&store, &mine).await.expect("and remembered").remaining, 985);
    eventually("no server keeps the slot but the new one", || {
        command(port(from), &["CLUSTER", "COUNTKEYSINSLOT", &slot]) == ":0\r\n"
    });
}
