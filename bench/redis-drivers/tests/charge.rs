//! What redis-rs 1.8 and fred 10.1 do with a charge (here `INCR`) when its slot has moved, and when the connection is lost
//! after the server has executed it. Needs `redis-server` and `redis-cli`.
//!
//! A rate limiter needs both at once: a redirect is followed, because nothing was executed, and a charge whose outcome
//! is unknown is not sent again, because it would count twice. In both drivers one setting governs the two.

use std::net::TcpListener as StdListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fred::prelude::{Builder, ClientLike, Config, KeysInterface, ReconnectPolicy, Server, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const KEY: &str = "charge";
const PATIENCE: Duration = Duration::from_secs(10);

struct RedisServer {
    port: u16,
    child: Child,
    folder: std::path::PathBuf,
}

impl RedisServer {
    fn start(options: &[&str]) -> RedisServer {
        let port =
            StdListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
        let folder = std::env::temp_dir().join(format!("redis-drivers-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
            .arg(&folder)
            .args(options)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server starts");
        let server = RedisServer { port, child, folder };
        server.wait_until("PONG", &["ping"]);
        server
    }

    fn cli(&self, words: &[&str]) -> String {
        let ran = Command::new("redis-cli").args(["-p", &self.port.to_string()]).args(words).output();
        String::from_utf8_lossy(&ran.expect("redis-cli runs").stdout).trim().to_owned()
    }

    fn wait_until(&self, expected: &str, words: &[&str]) {
        for _ in 0..600 {
            if self.cli(words).contains(expected) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{words:?} never said {expected}");
    }

    /// How often the charge was executed.
    fn charges(&self) -> u64 {
        self.cli(&["get", KEY]).parse().unwrap_or(0)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

/// Two nodes; the first has all slots.
struct SmallCluster {
    nodes: [RedisServer; 2],
}

impl SmallCluster {
    fn start() -> SmallCluster {
        let node =
            || RedisServer::start(&["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"]);
        let nodes = [node(), node()];
        nodes[0].cli(&["cluster", "addslotsrange", "0", "16383"]);
        nodes[0].cli(&["cluster", "meet", "127.0.0.1", &nodes[1].port.to_string()]);
        for node in &nodes {
            node.wait_until("cluster_known_nodes:2", &["cluster", "info"]);
            node.wait_until("cluster_state:ok", &["cluster", "info"]);
        }
        nodes[1].wait_until("0-16383", &["cluster", "nodes"]);
        SmallCluster { nodes }
    }

    /// Moves the slot of the charge to the second node. Clients learn it from a redirect.
    fn move_slot(&self) {
        let slot = self.nodes[0].cli(&["cluster", "keyslot", KEY]);
        let id = self.nodes[1].cli(&["cluster", "myid"]);
        for node in [&self.nodes[1], &self.nodes[0]] {
            assert_eq!(node.cli(&["cluster", "setslot", &slot, "node", &id]), "OK");
        }
    }
}

/// Forwards to `server`; a connection is closed when the server has answered a charge, and the answer is lost.
fn forward(listener: TcpListener, server: u16) {
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(lose_answers(client, server));
        }
    });
}

async fn lose_answers(mut client: TcpStream, server: u16) -> std::io::Result<()> {
    let mut server = TcpStream::connect(("127.0.0.1", server)).await?;
    let mut sent = [0; 4096];
    let mut answered = [0; 4096];
    loop {
        tokio::select! {
            read = client.read(&mut sent) => {
                let bytes = &sent[..read?];
                if bytes.is_empty() {
                    return Ok(());
                }
                server.write_all(bytes).await?;
                if bytes.windows(4).any(|word| word.eq_ignore_ascii_case(b"incr")) {
                    server.read(&mut answered).await?;
                    return Ok(());
                }
            }
            read = server.read(&mut answered) => {
                let bytes = &answered[..read?];
                if bytes.is_empty() {
                    return Ok(());
                }
                client.write_all(bytes).await?;
            }
        }
    }
}

/// A server whose cluster consists of itself, at the address of a proxy that loses the answers of charges.
async fn losing_cluster() -> (RedisServer, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let proxy = listener.local_addr().expect("an address").port();
    let announced =
        ["--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port"];
    let server = RedisServer::start(&[&announced[..], &[&proxy.to_string()]].concat());
    server.cli(&["cluster", "addslotsrange", "0", "16383"]);
    server.wait_until("cluster_state:ok", &["cluster", "info"]);
    forward(listener, server.port);
    (server, proxy)
}

/// Whether a driver may send a command more than once.
#[derive(Clone, Copy)]
enum Sends {
    Once,
    Repeatedly,
}

/// What came of a charge: the error, if any, and how often it was executed.
type Charged = (Option<String>, u64);

async fn charge_by_redis_rs(port: u16, sends: Sends, before: impl FnOnce()) -> Option<String> {
    let retries = match sends {
        Sends::Once => 0,
        Sends::Repeatedly => 3,
    };
    let urls = [format!("redis://127.0.0.1:{port}")];
    let client = redis::cluster::ClusterClient::builder(urls).retries(retries).build().expect("a client");
    let mut connection = client.get_async_connection().await.expect("a connection");
    before();
    let mut command = redis::cmd("INCR");
    let charged = tokio::time::timeout(PATIENCE, command.arg(KEY).query_async::<u64>(&mut connection)).await;
    charged.expect("an answer in time").err().map(|error| error.to_string())
}

async fn charge_by_fred(port: u16, sends: Sends, before: impl FnOnce()) -> Option<String> {
    let hosts = vec![Server::new("127.0.0.1", port)];
    let server = ServerConfig::Clustered { hosts, policy: Default::default() };
    let client = Builder::from_config(Config { server, ..Default::default() })
        .with_connection_config(|connection| {
            connection.max_command_attempts = match sends {
                Sends::Once => 1,
                Sends::Repeatedly => 2,
            };
            connection.max_redirections = 5;
        })
        .set_policy(ReconnectPolicy::new_constant(0, 50))
        .build()
        .expect("a client");
    client.init().await.expect("a connection");
    before();
    let charged = tokio::time::timeout(PATIENCE, client.incr::<u64, _>(KEY)).await;
    charged.expect("an answer in time").err().map(|error| error.to_string())
}

/// The charge's slot moves to another server before it is sent.
macro_rules! moved {
    ($driver:ident, $sends:expr) => {{
        let cluster = SmallCluster::start();
        let error = $driver(cluster.nodes[0].port, $sends, || cluster.move_slot()).await;
        (error, cluster.nodes[1].charges()) as Charged
    }};
}

/// The connection is lost each time after the server has executed the charge.
macro_rules! lost {
    ($driver:ident, $sends:expr) => {{
        let (server, proxy) = losing_cluster().await;
        let error = $driver(proxy, $sends, || ()).await;
        (error, server.charges()) as Charged
    }};
}

#[tokio::test]
async fn redis_rs_follows_no_redirect_where_a_lost_charge_is_not_sent_again() {
    let (error, executed) = moved!(charge_by_redis_rs, Sends::Once);
    assert!(error.is_some() && executed == 0, "{error:?}, executed {executed} times");
    let (error, executed) = lost!(charge_by_redis_rs, Sends::Once);
    assert!(error.is_some() && executed == 1, "{error:?}, executed {executed} times");
}

#[tokio::test]
async fn redis_rs_charges_twice_where_it_follows_redirects() {
    let (error, executed) = moved!(charge_by_redis_rs, Sends::Repeatedly);
    assert!(error.is_none() && executed == 1, "{error:?}, executed {executed} times");
    let (error, executed) = lost!(charge_by_redis_rs, Sends::Repeatedly);
    assert!(error.is_some() && executed > 1, "{error:?}, executed {executed} times");
}

#[tokio::test]
async fn fred_follows_no_redirect_where_a_lost_charge_is_not_sent_again() {
    let (error, executed) = moved!(charge_by_fred, Sends::Once);
    assert!(error.is_some() && executed == 0, "{error:?}, executed {executed} times");
    let (error, executed) = lost!(charge_by_fred, Sends::Once);
    assert!(error.is_some() && executed == 1, "{error:?}, executed {executed} times");
}

#[tokio::test]
async fn fred_charges_twice_where_it_follows_redirects() {
    let (error, executed) = moved!(charge_by_fred, Sends::Repeatedly);
    assert!(error.is_none() && executed == 1, "{error:?}, executed {executed} times");
    let (error, executed) = lost!(charge_by_fred, Sends::Repeatedly);
    assert!(error.is_some() && executed > 1, "{error:?}, executed {executed} times");
}
