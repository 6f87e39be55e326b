//! A primary with two replicas, watched by three sentinels.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use super::redis::{Make, Redis, command, try_command};
use crate::{Folder, Process, eventually, find, free_port, not_run};

#[derive(Debug)]
pub struct SentinelGroup {
    pub servers: Vec<Redis>,
    sentinels: Vec<Sentinel>,
}

#[derive(Debug)]
struct Sentinel {
    _process: Process,
    _folder: Arc<Folder>,
    port: u16,
}

pub const SERVICE: &str = "main";

impl SentinelGroup {
    /// `None`, with a message, without Redis or Sentinel.
    pub fn start(what: &str) -> Option<SentinelGroup> {
        let Some(program) = find("redis-sentinel") else {
            not_run(what, "no redis-sentinel; it comes with the Debian package redis-sentinel");
            return None;
        };
        let primary = Redis::start(Make::Redis, what)?;
        let port = primary.port.to_string();
        let mut servers = vec![primary];
        for _ in 0..2 {
            servers.push(Redis::start_with(Make::Redis, what, &["--replicaof", "127.0.0.1", &port])?);
        }
        let sentinels = (0..3).map(|_| Sentinel::start(&program, servers[0].port)).collect();
        let group = SentinelGroup { servers, sentinels };
        eventually("both replicas follow", || {
            group.servers[0].command(&["INFO", "replication"]).matches("state=online").count() == 2
        });
        eventually("all sentinels know each other and the replicas", || {
            group.sentinels.iter().all(|sentinel| {
                let reply = command(sentinel.port, &["SENTINEL", "MASTER", SERVICE]);
                let knows =
                    |field: &str, value: &str| reply.contains(&format!("{field}\r\n$1\r\n{value}\r\n"));
                knows("num-slaves", "2") && knows("num-other-sentinels", "2")
            })
        });
        Some(group)
    }

    pub fn url(&self) -> String {
        let places: Vec<_> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis+sentinel://{}/{SERVICE}", places.join(","))
    }

    /// The port of the primary that the sentinels announce.
    pub fn primary(&self) -> u16 {
        let reply = command(self.sentinels[0].port, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]);
        reply.lines().last().and_then(|port| port.trim().parse().ok()).expect("an address")
    }

    /// Waits until the replicas have what the first server has now. Replication does not wait for them, so a primary that
    /// dies without this may take counters with it.
    pub fn wait_for_replicas(&self) {
        let info = || self.servers[0].command(&["INFO", "replication"]);
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let offset = |info: &str| number(info.split("master_repl_offset:").nth(1)?.lines().next()?);
        let now = offset(&info()).expect("a primary has an offset");
        let has_all = |replica: &str| {
            let behind = replica.split("offset=").nth(1);
            behind.and_then(|rest| number(rest.split(',').next()?)).is_some_and(|offset| offset >= now)
        };
        eventually("both replicas have all counters", || {
            info().lines().filter(|line| line.contains("state=online") && has_all(line)).count() == 2
        });
    }

    /// Waits until one of the replicas has become a primary: the earliest moment at which a write can succeed.
    pub fn wait_for_promotion(&self) {
        eventually("a replica is promoted", || {
            // A promotion closes the connections of clients, this one among them.
            let promoted = |server: &Redis| {
                try_command(server.port, &["ROLE"]).is_ok_and(|role| role.contains("master"))
            };
            self.servers[1..].iter().any(promoted)
        });
    }

    /// Waits until another server than `old` is called the primary by all, and is one.
    pub fn wait_for_other_primary(&self, old: u16) -> u16 {
        let is_primary = |port| try_command(port, &["ROLE"]).is_ok_and(|role| role.contains("master"));
        eventually("the sentinels fail over", || self.primary() != old && is_primary(self.primary()));
        self.primary()
    }
}

impl Sentinel {
    fn start(program: &std::path::Path, primary: u16) -> Sentinel {
        let folder = Folder::new();
        let port = free_port();
        let config = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor {SERVICE} 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds {SERVICE} 1000\nsentinel failover-timeout {SERVICE} 5000\n"
        );
        let file = folder.path("sentinel.conf");
        fs::write(&file, config).expect("a configuration can be written");
        let process =
            Process::start(Command::new(program).arg(&file).current_dir(folder.root()), &folder.path("log"));
        eventually("a sentinel listens", || try_command(port, &["PING"]).is_ok());
        Sentinel { _process: process, _folder: folder, port }
    }
}
