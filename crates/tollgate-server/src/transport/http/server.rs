//! The decision API on its listener: a worker per processor; plain calls first, and hyper for the rest of a connection.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

use super::plain_calls::{Ended, PlainCalls};
use super::{AllowedCallers, CallerAccess, handle};
use crate::connection::{
    AddressLimiter, ClientSocket, Listener, ResumedStream, Shutdown, WorkerService, default_workers,
    heartbeat, serve_connection, serve_on_workers,
};
use crate::gate::{Gate, HttpAddress};

pub struct HttpServer {
    pub gate: Arc<Gate>,
    pub access: Arc<CallerAccess>,
}

/// Serves the listener until the shutdown turns true.
pub async fn serve(
    server: HttpServer,
    listener: Listener,
    per_address: Arc<AddressLimiter>,
    shutdown: Shutdown,
) {
    if let Some(url) = listener.url() {
        let needs_token = matches!(server.access.allowed_callers, AllowedCallers::Tokens(_));
        server.gate.http.set(HttpAddress { url, needs_token }).ok();
    }
    let serving = serve_on_workers(Arc::new(server), default_workers(), listener, per_address, shutdown);
    if let Err(error) = serving.await {
        tracing::error!("http does not run: {error:#}");
    }
}

impl WorkerService for HttpServer {
    const NAME: &'static str = "http";

    fn start_worker(&self, _worker: usize) {
        heartbeat::start(&self.gate, Self::NAME);
    }

    async fn serve(&self, _worker: usize, stream: ClientSocket, peer: SocketAddr, shutdown: Shutdown) {
        self.serve_client(stream, peer, shutdown).await;
    }
}

impl HttpServer {
    pub(super) async fn serve_client<S>(&self, mut stream: S, peer: SocketAddr, shutdown: Shutdown)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let ended = PlainCalls::new(&self.gate, &self.access).answer_all(&mut stream, &shutdown).await;
        let Ok(Ended::NotPlain(read)) = ended else { return };
        let stream = ResumedStream::new(stream, read);
        let gate = Arc::clone(&self.gate);
        let access = Arc::clone(&self.access);
        let handler = move |request, peer| handle(Arc::clone(&gate), Arc::clone(&access), request, peer);
        // Boxed: a connection of plain calls has no room for hyper's.
        Box::pin(serve_connection(stream, peer, shutdown, Arc::new(handler))).await;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::sync::watch;
    use tokio::task::JoinHandle;
    use tokio::time::{Instant, advance};

    use super::*;
    use crate::assemble;
    use crate::config::Config;
    use crate::connection::{BODY_TIMEOUT, HEADER_TIMEOUT, WRITE_TIMEOUT};

    const BODY: &str = r#"{"user":"ann"}"#;

    fn call(more: &str, body: &str) -> String {
        call_of("/v1/check", more, body)
    }

    fn call_of(path: &str, more: &str, body: &str) -> String {
        let length = body.len();
        format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {length}\r\n\r\n{body}")
    }

    struct Client {
        stream: DuplexStream,
        served: JoinHandle<()>,
        stop: watch::Sender<bool>,
    }

    impl Client {
        fn connect(buffer: usize) -> Client {
            let (stream, server) = duplex(buffer);
            let (stop, shutdown) = watch::channel(false);
            let peer = SocketAddr::from(([127, 0, 0, 1], 1));
            let rules = "rules: [{ id: each, key: user, limit: 3/h }]";
            let mut config = Config::parse(rules, Path::new("")).expect("a valid configuration");
            let gate = assemble::gate(&mut config, rules.to_owned(), None).expect("a gate");
            let api = HttpServer { gate: Arc::new(gate), access: Arc::default() };
            let served = tokio::spawn(async move { api.serve_client(server, peer, shutdown).await });
            Client { stream, served, stop }
        }

        async fn send(&mut self, text: &str) {
            self.stream.write_all(text.as_bytes()).await.expect("the server reads");
        }

        /// Everything up to the end of the connection.
        async fn rest(mut self) -> String {
            let mut text = Vec::new();
            self.stream.read_to_end(&mut text).await.expect("no error");
            self.served.await.expect("no panic");
            String::from_utf8(text).expect("UTF-8")
        }
    }

    /// The statuses of responses, in order.
    fn statuses(text: &str) -> Vec<&str> {
        text.split("HTTP/1.1 ").skip(1).map(|response| &response[..3]).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_pipeline_goes_over_to_hyper_and_loses_nothing() {
        let mut client = Client::connect(1 << 20);
        let plain = call("", BODY);
        let last = call("Connection: close\r\n", BODY);
        let invalid = call("", r#"{"usr":1}"#);
        client.send(&format!("{plain}{plain}{invalid}{plain}{last}{plain}")).await;
        let text = client.rest().await;
        assert_eq!(statuses(&text), ["200", "200", "400", "200", "429"], "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn both_paths_respond_alike() {
        let envoy = r#"{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"ann"}]}]}"#;
        let responses = async |more: &str| {
            let mut client = Client::connect(1 << 20);
            client.send(&call(more, BODY)).await;
            client.send(&call_of("/json", more, envoy).repeat(4)).await;
            let text = client.rest().await;
            assert_eq!(statuses(&text), ["200", "200", "200", "200", "429"], "{text}");
            // Except for the time and the ids.
            let lines = text.lines().filter(|line| !line.starts_with("date"));
            let lines = lines.map(|line| match line.find(",\"allowed\"") {
                Some(id) => &line[id..],
                None => line,
            });
            lines
                .map(|line| line.split("tollgate-ticket").next().unwrap_or_default().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(responses("").await, responses("Expect: nothing\r\n").await);
    }

    #[tokio::test(start_paused = true)]
    async fn silent_and_slow_clients_are_disconnected() {
        let plain = call("", BODY);
        for (sent, status, limit) in [
            ("", "", HEADER_TIMEOUT),
            (&plain[..40], "", HEADER_TIMEOUT),
            (&plain[..plain.len() - 1], "408", BODY_TIMEOUT),
            (&plain, "200", HEADER_TIMEOUT),
        ] {
            let mut client = Client::connect(1 << 20);
            let start = Instant::now();
            client.send(sent).await;
            let text = client.rest().await;
            assert_eq!(statuses(&text).concat(), status, "{sent}");
            assert!(
                start.elapsed() >= limit && start.elapsed() < limit + Duration::from_millis(10),
                "{sent}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickle_gets_no_more_time() {
        let mut client = Client::connect(1 << 20);
        let start = Instant::now();
        client.send("POST /v1/check HTTP/1.1\r\nHost: localhost\r\nx: ").await;
        while start.elapsed() < 2 * HEADER_TIMEOUT && client.stream.write_all(b"a").await.is_ok() {
            advance(Duration::from_secs(1)).await;
        }
        assert!(start.elapsed() <= HEADER_TIMEOUT + Duration::from_secs(2), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_disconnected() {
        let mut client = Client::connect(64);
        let start = Instant::now();
        client.send(&call("", BODY)).await;
        client.served.await.expect("no panic");
        assert!(start.elapsed() >= WRITE_TIMEOUT, "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_closes_idle_connections_and_lets_a_call_finish() {
        let idle = Client::connect(1 << 20);
        let mut busy = Client::connect(1 << 20);
        let plain = call("", BODY);
        let (head, end) = plain.split_at(plain.len() - 1);
        busy.send(head).await;
        tokio::task::yield_now().await;
        idle.stop.send_replace(true);
        busy.stop.send_replace(true);
        assert_eq!(idle.rest().await, "");
        tokio::task::yield_now().await;
        busy.send(end).await;
        let text = busy.rest().await;
        assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("\r\nconnection: close\r\n"), "{text}");
    }
}
