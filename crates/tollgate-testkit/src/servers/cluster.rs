//! A Redis Cluster of six: three primaries, each with a replica.

use super::redis::{Make, Redis, command, try_command};
use crate::eventually;

#[derive(Debug)]
pub struct RedisCluster {
    pub servers: Vec<Redis>,
}

const SERVERS: usize = 6;
const PRIMARIES: usize = 3;
const SLOTS: usize = 16384;

impl RedisCluster {
    /// As docs/stores.md recommends: slots that are served stay available while others are not. `None`, said
    /// loudly, where there is no Redis.
    pub fn start(what: &str) -> Option<RedisCluster> {
        RedisCluster::start_with(what, "no")
    }

    /// With `cluster-require-full-coverage` as given; Redis' own default is `yes`.
    pub fn start_with(what: &str, full_coverage: &str) -> Option<RedisCluster> {
        let mut arguments = vec![
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "1500",
            "--cluster-config-file",
            "nodes",
        ];
        arguments.extend(["--cluster-require-full-coverage", full_coverage]);
        let mut servers = Vec::new();
        for _ in 0..SERVERS {
            servers.push(start_server(what, &arguments)?);
        }
        let cluster = RedisCluster { servers };
        cluster.join();
        Some(cluster)
    }

    /// Divides the slots, joins the servers and gives each primary a replica, as an operator would.
    fn join(&self) {
        let first = &self.servers[0];
        for (n, server) in self.servers.iter().enumerate().take(PRIMARIES) {
            let from = n * SLOTS / PRIMARIES;
            let to = (n + 1) * SLOTS / PRIMARIES - 1;
            let done = server.command(&["CLUSTER", "ADDSLOTSRANGE", &from.to_string(), &to.to_string()]);
            assert_eq!(done, "+OK\r\n");
            server.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(n + 1).to_string()]);
        }
        for server in &self.servers[1..] {
            let bus = server.command(&["CONFIG", "GET", "cluster-port"]);
            let bus = bus.lines().last().expect("a port");
            first.command(&["CLUSTER", "MEET", "127.0.0.1", &server.port.to_string(), bus]);
        }
        eventually("all servers know each other", || {
            self.servers
                .iter()
                .all(|server| server.command(&["CLUSTER", "NODES"]).matches("connected").count() == SERVERS)
        });
        for n in PRIMARIES..SERVERS {
            let id = self.servers[n - PRIMARIES].command(&["CLUSTER", "MYID"]);
            let id = id.lines().nth(1).expect("an id").to_owned();
            eventually("a replica is taken", || {
                self.servers[n].command(&["CLUSTER", "REPLICATE", &id]) == "+OK\r\n"
            });
        }
        eventually("the cluster is whole and its replicas follow", || {
            self.servers
                .iter()
                .all(|server| server.command(&["CLUSTER", "INFO"]).contains("cluster_state:ok"))
                && self.servers[..PRIMARIES]
                    .iter()
                    .all(|server| server.command(&["INFO", "replication"]).contains("state=online"))
        });
    }

    pub fn url(&self) -> String {
        let places: Vec<_> = self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        format!("redis+cluster://{}", places.join(","))
    }

    /// The index in `servers` of the primary that has a key.
    pub fn primary_of(&self, key: &str) -> usize {
        let slot = command(self.servers[0].port, &["CLUSTER", "KEYSLOT", key]);
        let slot: usize = slot.trim().trim_start_matches(':').parse().expect("a slot");
        (0..PRIMARIES)
            .find(|n| (n * SLOTS / PRIMARIES..(n + 1) * SLOTS / PRIMARIES).contains(&slot))
            .expect("a primary")
    }

    /// Waits until the replica of primary `n` has taken over.
    pub fn wait_for_takeover(&self, n: usize) {
        let replica = self.servers[n + PRIMARIES].port;
        eventually("the replica takes over", || {
            try_command(replica, &["ROLE"]).is_ok_and(|role| role.contains("master"))
                && try_command(replica, &["CLUSTER", "INFO"])
                    .is_ok_and(|info| info.contains("cluster_state:ok"))
        });
    }
}

/// A server whose second port, for the others, is a free one too.
fn start_server(what: &str, arguments: &[&str]) -> Option<Redis> {
    let bus = crate::free_port().to_string();
    let mut arguments = arguments.to_vec();
    arguments.extend(["--cluster-port", &bus]);
    Redis::start_with(Make::Redis, what, &arguments)
}
