//! A Cassandra server of one node, shared by the tests of a file that run at the same time.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::{Folder, Process, find, free_port, not_run};

/// From nothing to the first answer, on a busy machine.
const STARTED_WITHIN: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub struct Cassandra {
    pub process: Process,
    pub folder: Folder,
    pub port: u16,
}

impl Cassandra {
    /// The server; `None`, said loudly, if there is none on this machine. It is gone with its last user.
    pub fn shared(what: &str) -> Option<Arc<Cassandra>> {
        static SHARED: Mutex<Weak<Cassandra>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(running) = shared.upgrade() {
            return Some(running);
        }
        let started = Arc::new(Cassandra::start(what)?);
        *shared = Arc::downgrade(&started);
        Some(started)
    }

    pub fn start(what: &str) -> Option<Cassandra> {
        let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cassandra");
        // Written last: without it some of the jars may be missing.
        let (jars, fetched) = (home.join("lib"), home.join("version").is_file());
        let (Some(java), true) = (find("java"), fetched) else {
            not_run(what, "no Cassandra; scripts/get-cassandra fetches it from Maven Central");
            return None;
        };
        let (folder, port, storage_port) = (Folder::new(), free_port(), free_port());
        let config = folder.path("cassandra.yaml");
        fs::write(&config, settings(&folder, port, storage_port)).expect("a file can be written");
        fs::write(folder.path("logback.xml"), LOG).expect("a file can be written");
        let mut command = Command::new(java);
        command.current_dir(folder.root()).args(JVM_OPTIONS);
        command.args(OPENED.map(|module| format!("--add-opens={module}=ALL-UNNAMED")));
        command.args(EXPORTED.map(|module| format!("--add-exports={module}=ALL-UNNAMED")));
        command.arg(format!("-Dcassandra.config=file://{}", config.display()));
        command.arg(format!("-Dcassandra.storagedir={}", folder.root().display()));
        command.arg("-cp").arg(format!("{}:{}/*", folder.root().display(), jars.display()));
        command.arg("org.apache.cassandra.service.CassandraDaemon");
        let log = folder.path("log");
        let cassandra = Cassandra { process: Process::start(&mut command, &log), folder, port };
        cassandra.wait_until_it_listens(&log);
        Some(cassandra)
    }

    fn wait_until_it_listens(&self, log: &PathBuf) {
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let said = || fs::read_to_string(log).unwrap_or_default();
            assert!(start.elapsed() < STARTED_WITHIN, "cassandra does not listen:\n{}", said());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The keyspace as its superuser.
    pub fn url(&self, keyspace: &str) -> String {
        format!("cassandra://cassandra:cassandra@127.0.0.1:{}/{keyspace}", self.port)
    }
}

fn settings(folder: &Folder, port: u16, storage_port: u16) -> String {
    let at = |name: &str| folder.path(name).display().to_string();
    format!(
        "cluster_name: tollgate
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
seed_provider: [{{class_name: org.apache.cassandra.locator.SimpleSeedProvider, parameters: [{{seeds: '127.0.0.1:{storage_port}'}}]}}]
listen_address: 127.0.0.1
storage_port: {storage_port}
rpc_address: 127.0.0.1
native_transport_port: {port}
authenticator: PasswordAuthenticator
paxos_variant: v2
data_file_directories: [{data}]
commitlog_directory: {commitlog}
hints_directory: {hints}
saved_caches_directory: {caches}
cdc_raw_directory: {cdc}
commitlog_sync: periodic
commitlog_sync_period: 10000ms
commitlog_segment_size: 4MiB
memtable_heap_space: 64MiB
memtable_offheap_space: 64MiB
key_cache_size: 4MiB
counter_cache_size: 0MiB
networking_cache_size: 16MiB
concurrent_reads: 8
concurrent_writes: 8
auto_snapshot: false
",
        data = at("data"),
        commitlog = at("commitlog"),
        hints = at("hints"),
        caches = at("caches"),
        cdc = at("cdc"),
    )
}

const LOG: &str = r#"<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%date %level %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"#;

/// A small heap, a quick start, and no waiting for other nodes.
const JVM_OPTIONS: [&str; 16] = [
    "-Xms384m",
    "-Xmx512m",
    "-Xss384k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+PerfDisableSharedMem",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.net.preferIPv4Stack=true",
    "-Djdk.attach.allowAttachSelf=true",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dcassandra.ring_delay_ms=0",
    "-Dcassandra.skip_wait_for_gossip_to_settle=0",
    "-Dcassandra.superuser_setup_delay_ms=0",
    "-Dcassandra.initial_token=0",
    "-Dcassandra-foreground=yes",
    "-Dlogback.configurationFile=logback.xml",
];

/// What Cassandra reaches into on Java 17.
const EXPORTED: [&str; 7] = [
    "java.base/jdk.internal.misc",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "java.base/java.lang.ref",
    "jdk.unsupported/sun.misc",
];
const OPENED: [&str; 14] = [
    "java.base/java.lang.module",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.util.jar",
    "jdk.management/com.sun.management.internal",
    "java.base/sun.nio.ch",
    "java.base/java.io",
    "java.base/java.lang.reflect",
    "java.base/java.lang",
    "java.base/java.util",
    "java.base/java.nio",
];
