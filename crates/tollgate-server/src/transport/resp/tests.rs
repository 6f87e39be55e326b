//! Silent, slow and stopping connections, on a clock that is paused.

use std::path::Path;

use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::*;
use crate::assemble;
use crate::config::Config;

const SECOND: Duration = Duration::from_secs(1);
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

struct Client {
    stream: UnixStream,
    served: JoinHandle<()>,
    stop: watch::Sender<bool>,
}

impl Client {
    fn connect(tokens: Option<Tokens>) -> Client {
        let mut config = Config::parse("rules: []", Path::new("")).expect("a valid configuration");
        let gate = assemble::gate(&mut config, String::new(), None).expect("a gate");
        let server = RespServer::new(Arc::new(gate), tokens.map(Arc::new));
        let (stream, socket) = ClientSocket::pair();
        let (stop, shutdown) = watch::channel(false);
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let served = tokio::spawn(async move { serve_client(&server, socket, peer, shutdown).await });
        Client { stream, served, stop }
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("the server reads");
    }

    async fn reply(&mut self, expected: &str) {
        let mut bytes = vec![0; expected.len()];
        self.stream.read_exact(&mut bytes).await.expect("a reply");
        assert_eq!(String::from_utf8_lossy(&bytes), expected);
    }

    /// How long the server still serves this client.
    async fn served_for(self) -> Duration {
        let start = Instant::now();
        self.served.await.expect("no panic");
        start.elapsed()
    }
}

/// The test clock has a resolution of one millisecond.
fn is_close(elapsed: Duration, expected: Duration) -> bool {
    elapsed >= expected && elapsed < expected + Duration::from_millis(10)
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_sends_a_command_is_disconnected() {
    let elapsed = Client::connect(None).served_for().await;
    assert!(is_close(elapsed, GREETING_TIMEOUT), "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_authenticates_is_disconnected() {
    let tokens = Tokens::parse("check app-0123456789abc").expect("tokens");
    let mut client = Client::connect(Some(tokens));
    let start = Instant::now();
    for _ in 0..3 {
        sleep(SECOND).await;
        client.send(PING).await;
        client.reply("-NOAUTH Authentication required.\r\n").await;
    }
    client.served_for().await;
    assert!(is_close(start.elapsed(), GREETING_TIMEOUT), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_client_may_be_silent_between_commands() {
    let tokens = Tokens::parse("check app-0123456789abc").expect("tokens");
    let mut client = Client::connect(Some(tokens));
    client.send(b"AUTH app-0123456789abc\r\n").await;
    client.reply("+OK\r\n").await;
    sleep(GREETING_TIMEOUT * 100).await;
    client.send(PING).await;
    client.reply("+PONG\r\n").await;
    client.send(b"RESET\r\n").await;
    client.reply("+RESET\r\n").await;
    let elapsed = client.served_for().await;
    assert!(is_close(elapsed, GREETING_TIMEOUT), "it must authenticate again: {elapsed:?}");
}

/// A byte before each deadline kept a connection and its buffer for days.
#[tokio::test(start_paused = true)]
async fn a_command_that_trickles_gets_no_more_time_than_others() {
    let mut client = Client::connect(None);
    client.send(PING).await;
    client.reply("+PONG\r\n").await;
    let start = Instant::now();
    client.send(b"*2\r\n$4\r\nECHO\r\n$60000\r\n").await;
    while client.stream.write_all(b"x").await.is_ok() {
        sleep(SECOND).await;
    }
    client.served.await.expect("no panic");
    assert!(start.elapsed() <= COMMAND_TIMEOUT + SECOND, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_idle_clients_and_answers_a_command_that_has_begun() {
    for greeting in [&b""[..], PING] {
        let mut client = Client::connect(None);
        client.send(greeting).await;
        sleep(SECOND).await;
        client.stop.send_replace(true);
        assert_eq!(client.served_for().await.as_millis(), 0, "after {greeting:?}");
    }
    let mut client = Client::connect(None);
    client.send(&PING[..9]).await;
    sleep(SECOND).await;
    client.stop.send_replace(true);
    sleep(SECOND).await;
    client.send(&PING[9..]).await;
    client.reply("+PONG\r\n").await;
    assert_eq!(client.served_for().await.as_millis(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_stops_sending_does_not_prevent_a_stop() {
    let mut client = Client::connect(None);
    let (mut replies, mut commands) = client.stream.into_split();
    let sending = tokio::spawn(async move { while commands.write_all(&PING.repeat(100)).await.is_ok() {} });
    client.stream = UnixStream::pair().expect("a pair of sockets").0;
    let mut reply = vec![0; 7];
    for _ in 0..1_000 {
        replies.read_exact(&mut reply).await.expect("a reply");
    }
    client.stop.send_replace(true);
    let mut rest = Vec::new();
    replies.read_to_end(&mut rest).await.ok();
    client.served.await.expect("no panic");
    sending.await.expect("no panic");
    assert_eq!(rest.len() % reply.len(), 0, "commands are answered as a whole");
}
