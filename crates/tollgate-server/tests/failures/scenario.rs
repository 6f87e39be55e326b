//! Servers that are killed under load, one kind each.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tollgate_testkit::servers::cassandra::{Cassandra, CassandraCluster};
use tollgate_testkit::servers::cluster::RedisCluster;
use tollgate_testkit::servers::memcached::Memcached;
use tollgate_testkit::servers::postgres::Postgres;
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::servers::sentinel::SentinelGroup;
use tollgate_testkit::{Folder, Process, Server, eventually, find, free_port, not_run, tollgate};

use crate::load::{Load, ObservedRequest, rules};

/// A supervisor would start a dead server again after this time.
const RESTARTED_AFTER: Duration = Duration::from_secs(2);
/// Decisions are as usual again when none has failed for so long.
const CALM: Duration = Duration::from_secs(1);
/// Decisions are as usual again within this time, on a busy machine and with a Cassandra that starts.
const BACK_WITHIN: Duration = Duration::from_secs(180);

/// The result of a failure.
pub struct Death {
    pub what: &'static str,
    /// Until the servers themselves could serve again.
    pub recovered_after: Duration,
    pub recovery: String,
    pub died: Instant,
    pub seen: Vec<ObservedRequest>,
}

/// How servers recover from a death by themselves.
enum Recovery {
    /// Those that are left can serve already.
    Unneeded(&'static str),
    /// This has just happened.
    By(&'static str),
}

/// Kills under load. `kill` returns when the servers have recovered by themselves.
/// A load under which decisions are as usual.
struct SteadyLoad {
    what: &'static str,
    load: Load,
}

impl SteadyLoad {
    fn start(what: &'static str, address: SocketAddr) -> SteadyLoad {
        let load = Load::start(address);
        eventually("decisions are as usual", || is_calm(&load, Instant::now() - CALM));
        SteadyLoad { what, load }
    }

    fn die(self, kill: impl FnOnce() -> Recovery) -> Death {
        let SteadyLoad { what, load } = self;
        let died = Instant::now();
        let recovery = kill();
        let recovered_after = died.elapsed();
        let start = Instant::now();
        while !is_calm(&load, (Instant::now() - CALM).max(died)) || start.elapsed() < CALM {
            assert!(start.elapsed() < BACK_WITHIN, "decisions never are as usual again");
            thread::sleep(Duration::from_millis(20));
        }
        let recovery = match recovery {
            Recovery::Unneeded(how) => how.to_owned(),
            Recovery::By(how) => format!("{how} after {:.1} s", recovered_after.as_secs_f64()),
        };
        Death { what, recovered_after, recovery, died, seen: load.stop() }
    }
}

fn die(what: &'static str, address: SocketAddr, kill: impl FnOnce() -> Recovery) -> Death {
    SteadyLoad::start(what, address).die(kill)
}

fn is_calm(load: &Load, since: Instant) -> bool {
    let seen = load.since(since);
    seen.len() > 10 && !seen.iter().any(ObservedRequest::is_failure)
}

/// How long a decision may take.
#[derive(Clone, Copy)]
pub enum Deadline {
    /// As it is by default: for figures.
    Default,
    /// So long that a busy machine does not miss it: for tests that no decision fails.
    Patient,
}

/// A node that counts there, once it does.
fn node(counters: &str, deadline: Deadline) -> Server {
    let deadline = match deadline {
        Deadline::Default => "",
        Deadline::Patient => "store_deadline: 2s\n",
    };
    let node = Server::start(&format!("counters: {counters}\n{deadline}{}", rules()));
    eventually("every rule is counted there", || {
        (0..20).all(|n| {
            let hit = serde_json::json!({ "path": "/open/below", "user": format!("probe-{n}") });
            node.check(&hit).json()["reason"] == "ok"
        })
    });
    node
}

pub fn redis() -> Option<Death> {
    let what = "the only Redis (AOF)";
    let keeps = ["--appendonly", "yes"];
    let mut redis = Redis::start_with(Make::Redis, what, &keeps)?;
    let node = node(&redis.url(), Deadline::Default);
    Some(die(what, node.http, || {
        redis.process.kill();
        thread::sleep(RESTARTED_AFTER);
        redis.restart(&keeps);
        Recovery::By("started again")
    }))
}

pub fn sentinel() -> Option<Death> {
    let what = "the Redis primary of a Sentinel group, `down-after` 1 s";
    let mut group = SentinelGroup::start(what)?;
    let node = node(&group.url(), Deadline::Default);
    let load = SteadyLoad::start(what, node.http);
    group.wait_for_replicas();
    Some(load.die(|| {
        group.servers[0].process.kill();
        group.wait_for_promotion();
        Recovery::By("replica promoted")
    }))
}

/// The death, and which users are kept by the server that dies.
pub fn cluster(deadline: Deadline) -> Option<(Death, impl Fn(&str) -> bool)> {
    let what = "one of three Redis Cluster primaries, `cluster-node-timeout` 1.5 s";
    let mut cluster = RedisCluster::start(what)?;
    let node = node(&cluster.url(), deadline);
    let owners = |cluster: &RedisCluster| {
        let users = ["at", "below"].map(|kind| (0..crate::load::KEYS).map(move |n| format!("{kind}-{n}")));
        let owner = |user: String| (cluster.primary_of(&format!("{{user:{user}}}")), user);
        users.into_iter().flatten().map(owner).collect::<Vec<_>>()
    };
    let owners = owners(&cluster);
    let dies = 0;
    let death = die(what, node.http, || {
        cluster.servers[dies].process.kill();
        cluster.wait_for_takeover(dies);
        Recovery::By("replica elected")
    });
    Some((death, move |user: &str| owners.iter().any(|(owner, known)| *owner == dies && known == user)))
}

pub fn memcached() -> Option<Death> {
    let what = "one of three Memcached";
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Memcached::start(what)?);
    }
    let places: Vec<_> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
    let node = node(&format!("memcached://{}", places.join(",")), Deadline::Default);
    Some(die(what, node.http, || {
        servers[0].process.kill();
        thread::sleep(RESTARTED_AFTER);
        servers[0].restart();
        Recovery::By("started again without its counters,")
    }))
}

fn make_tables(counters: &str) {
    let folder = Folder::new();
    let file = folder.configure(&format!("counters: {counters}\n"));
    let init = || tollgate(&["store", "init", "-c", file.to_str().expect("a path")]);
    eventually("a new server knows its first user", || init().code == Some(0));
}

pub fn cassandra() -> Option<Death> {
    let what = "the only Cassandra";
    let mut server = Cassandra::start(what)?;
    let counters = server.url("limits");
    make_tables(&counters);
    let node = node(&counters, Deadline::Default);
    Some(die(what, node.http, || {
        server.process.kill();
        thread::sleep(RESTARTED_AFTER);
        server.restart();
        Recovery::By("started again, ready")
    }))
}

pub fn cassandra_of_three() -> Option<Death> {
    let what = "one of three Cassandra nodes, three copies";
    let mut cluster = CassandraCluster::start(what)?;
    let counters = cluster.url("limits");
    make_tables(&counters);
    let node = node(&counters, Deadline::Default);
    Some(die(what, node.http, || {
        cluster.nodes[2].process.kill();
        Recovery::Unneeded("a quorum is left")
    }))
}

/// The servers have recovered when rules can be edited again.
pub fn postgres() -> Option<Death> {
    let what = "the PostgreSQL primary with the rules";
    let mut primary = Postgres::start(what)?;
    let standby = primary.standby();
    let address = format!("{}?replica={}", primary.url(), standby.host());
    let node = Server::start(&format!("rules_db: {address}\n{}", rules()));
    let edit = |n: usize| {
        let rule = format!(r#"{{"id":"edit-{n}","match":"/edit","limit":"5/m"}}"#);
        node.admin("PUT", &format!("/v1/rules/edit-{n}"), rule).status
    };
    eventually("rules can be edited", || matches!(edit(0), 200 | 201));
    Some(die(what, node.http, || {
        primary.kill();
        assert!(edit(1) >= 500, "an edit fails clearly");
        thread::sleep(RESTARTED_AFTER);
        standby.promote();
        let mut n = 2;
        eventually("rules can be edited again", || {
            n += 1;
            matches!(edit(n), 200 | 201)
        });
        Recovery::By("standby promoted, rules can be edited")
    }))
}

/// One of three nodes that share a Redis, behind HAProxy.
pub fn node_of_three(deadline: Deadline) -> Option<Death> {
    let what = "one of three Tollgate nodes behind HAProxy";
    let Some(haproxy) = find("haproxy") else {
        not_run(what, "no haproxy; it comes with the Debian package haproxy");
        return None;
    };
    let redis = Redis::start(Make::Redis, what)?;
    let mut nodes: Vec<_> = (0..3).map(|_| node(&redis.url(), deadline)).collect();
    let folder = Folder::new();
    let port = free_port();
    let servers: Vec<_> =
        nodes.iter().enumerate().map(|(n, node)| format!("  server node{n} {}\n", node.http)).collect();
    let config = folder.path("haproxy.cfg");
    fs::write(&config, format!("{HAPROXY}  bind 127.0.0.1:{port}\n{}", servers.concat())).expect("a file");
    let mut balancer = Command::new(haproxy);
    let _balancer = Process::start(balancer.arg("-db").arg("-f").arg(&config), &folder.path("haproxy.log"));
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    eventually("the load balancer listens", || TcpStream::connect(address).is_ok());
    Some(die(what, address, || {
        nodes.remove(0).kill();
        Recovery::Unneeded("the others take its requests")
    }))
}

/// As in examples/several-nodes: what was not sent to a node goes to another one.
const HAPROXY: &str = "defaults
  mode http
  timeout connect 1s
  timeout client 30s
  timeout server 30s
  option redispatch 1
  retries 3
  retry-on conn-failure
listen tollgates
  balance roundrobin
  default-server check inter 500ms fall 3 rise 1
";
