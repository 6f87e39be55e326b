//! A Cassandra server of one node, shared by the tests of a file that run at the same time; and a cluster of three.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use std::{fmt, fs, io};

use crate::{Folder, Process, find, free_port, not_run};

/// From nothing to the first answer, on a busy machine.
pub(crate) const STARTED_WITHIN: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub struct Cassandra {
    pub process: Process,
    pub folder: Arc<Folder>,
    pub port: u16,
    settings: Settings,
}

impl Cassandra {
    /// The server; `None`, with a message, if it is not installed. It is gone with its last user.
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
        let place = Place::free();
        Cassandra::start_at(
            what,
            Settings { seed: place.clone(), place, authenticator: "PasswordAuthenticator", token: 0 },
        )
    }

    fn start_at(what: &str, settings: Settings) -> Option<Cassandra> {
        let folder = Folder::new();
        let config = folder.path("cassandra.yaml");
        fs::write(&config, settings.text(&folder)).expect("a file can be written");
        fs::write(folder.path("logback.xml"), LOG).expect("a file can be written");
        let process = spawn(what, &folder, settings.token)?;
        let cassandra = Cassandra { process, folder, port: settings.place.port, settings };
        cassandra.eventually_it_serves();
        Some(cassandra)
    }

    /// Ends it at once, and starts it again with what it has on disk.
    pub fn restart(&mut self) {
        self.process.kill();
        self.process = spawn("a restart", &self.folder, self.settings.token).expect("it was there");
        self.eventually_it_serves();
    }

    /// It listens before its superuser exists: a login in between is refused.
    fn eventually_it_serves(&self) {
        let start = Instant::now();
        loop {
            let serves = match self.settings.authenticator {
                "PasswordAuthenticator" => self.superuser_logs_in(),
                _ => self.connect().map(drop),
            };
            let Err(error) = serves else { return };
            let log = || fs::read_to_string(self.folder.path("log")).unwrap_or_default();
            assert!(start.elapsed() < STARTED_WITHIN, "cassandra does not serve: {error}\n{}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let Place { host, port, .. } = &self.settings.place;
        TcpStream::connect((host.as_str(), *port))
    }

    /// A handshake of the native protocol, version 4.
    fn superuser_logs_in(&self) -> io::Result<()> {
        const STARTUP: u8 = 0x01;
        const AUTHENTICATE: u8 = 0x03;
        const AUTH_RESPONSE: u8 = 0x0f;
        const AUTH_SUCCESS: u8 = 0x10;
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        call(&mut stream, STARTUP, b"\0\x01\0\x0bCQL_VERSION\0\x053.0.0", AUTHENTICATE)?;
        call(&mut stream, AUTH_RESPONSE, b"\0\0\0\x14\0cassandra\0cassandra", AUTH_SUCCESS)
    }

    /// The keyspace as its superuser.
    pub fn url(&self, keyspace: &str) -> String {
        format!("cassandra://cassandra:cassandra@127.0.0.1:{}/{keyspace}", self.port)
    }
}

/// Sends a frame; an error unless the answer has the expected opcode.
fn call(stream: &mut TcpStream, opcode: u8, body: &[u8], expected: u8) -> io::Result<()> {
    let length = u32::try_from(body.len()).expect("a body of a few bytes");
    stream.write_all(&[&[4, 0, 0, 0, opcode], &length.to_be_bytes()[..], body].concat())?;
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let mut answer = vec![0; u32::from_be_bytes([head[5], head[6], head[7], head[8]]) as usize];
    stream.read_exact(&mut answer)?;
    let is_expected = head[4] == expected;
    is_expected.then_some(()).ok_or_else(|| io::Error::other(String::from_utf8_lossy(&answer).into_owned()))
}

/// Three nodes on addresses of their own, without users.
#[derive(Debug)]
pub struct CassandraCluster {
    pub nodes: Vec<Cassandra>,
}

impl CassandraCluster {
    pub fn start(what: &str) -> Option<CassandraCluster> {
        let first = Place::free();
        let mut nodes = Vec::new();
        for n in 0..3i64 {
            let place = Place { host: format!("127.0.0.{}", n + 1), ..first.clone() };
            let token = (n - 1) * (i64::MAX / 2);
            let seed = first.clone();
            nodes.push(Cassandra::start_at(
                what,
                Settings { place, seed, authenticator: "AllowAllAuthenticator", token },
            )?);
        }
        Some(CassandraCluster { nodes })
    }

    pub fn url(&self, keyspace: &str) -> String {
        let places = self.nodes.iter().map(|node| node.settings.place.to_string());
        format!("cassandra://{}/{keyspace}", places.collect::<Vec<_>>().join(","))
    }
}

/// Where a node listens: for clients, and for other nodes.
#[derive(Clone, Debug)]
struct Place {
    host: String,
    port: u16,
    storage_port: u16,
}

impl Place {
    fn free() -> Place {
        Place { host: "127.0.0.1".to_owned(), port: free_port(), storage_port: free_port() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[derive(Debug)]
struct Settings {
    place: Place,
    seed: Place,
    authenticator: &'static str,
    token: i64,
}

fn spawn(what: &str, folder: &Folder, token: i64) -> Option<Process> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cassandra");
    // Written last: without it some of the jars may be missing.
    let jars = home.join("lib");
    let fetched = home.join("version").is_file();
    let (Some(java), true) = (find("java"), fetched) else {
        not_run(what, "no Cassandra; scripts/get-cassandra fetches it from Maven Central");
        return None;
    };
    let mut command = Command::new(java);
    command.current_dir(folder.root()).args(JVM_OPTIONS);
    command.args(OPENED.map(|module| format!("--add-opens={module}=ALL-UNNAMED")));
    command.args(EXPORTED.map(|module| format!("--add-exports={module}=ALL-UNNAMED")));
    command.arg(format!("-Dcassandra.initial_token={token}"));
    command.arg(format!("-Dcassandra.config=file://{}", folder.path("cassandra.yaml").display()));
    command.arg(format!("-Dcassandra.storagedir={}", folder.root().display()));
    command.arg("-cp").arg(format!("{}:{}/*", folder.root().display(), jars.display()));
    command.arg("org.apache.cassandra.service.CassandraDaemon");
    Some(Process::start(&mut command, &folder.path("log")))
}

impl Settings {
    fn text(&self, folder: &Folder) -> String {
        let at = |name: &str| folder.path(name).display().to_string();
        let Settings { place: Place { host, port, storage_port }, seed, authenticator, .. } = self;
        format!(
            "cluster_name: tollgate
num_tokens: 1
auto_bootstrap: false
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
seed_provider: [{{class_name: org.apache.cassandra.locator.SimpleSeedProvider, parameters: [{{seeds: '{seed_host}:{storage_port}'}}]}}]
listen_address: {host}
storage_port: {storage_port}
rpc_address: {host}
native_transport_port: {port}
authenticator: {authenticator}
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
            seed_host = seed.host,
            data = at("data"),
            commitlog = at("commitlog"),
            hints = at("hints"),
            caches = at("caches"),
            cdc = at("cdc"),
        )
    }
}

const LOG: &str = r#"<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%date %level %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"#;

/// A small heap, a quick start, and no waiting for other nodes.
const JVM_OPTIONS: [&str; 15] = [
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
