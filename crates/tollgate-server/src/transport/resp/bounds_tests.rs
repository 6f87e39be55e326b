//! Bounds of commands and replies, and the end of a connection whose peer reads nothing.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadBuf, duplex};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use crate::assemble;
use crate::config::Config;

struct Client {
    stream: DuplexStream,
    served: JoinHandle<()>,
    _stop: watch::Sender<bool>,
}

/// A stream whose end is never sent, as with TLS if the peer reads nothing.
struct Unclosable<S>(S);

impl<S: AsyncRead + Unpin> AsyncRead for Unclosable<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Unclosable<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

fn server(tokens: Option<Arc<Tokens>>) -> RespServer {
    let mut config = Config::parse("rules: []", Path::new("")).unwrap_or_else(|_| unreachable!("valid"));
    let gate = assemble::gate(&mut config, String::new(), None).unwrap_or_else(|_| unreachable!("valid"));
    RespServer::new(Arc::new(gate), tokens)
}

fn connect<S>(buffer: usize, wrap: impl FnOnce(DuplexStream) -> S) -> Client
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    connect_to(server(None), buffer, wrap)
}

fn connect_to<S>(server: RespServer, buffer: usize, wrap: impl FnOnce(DuplexStream) -> S) -> Client
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (stream, end) = duplex(buffer);
    let end = wrap(end);
    let (stop, shutdown) = watch::channel(false);
    let peer = SocketAddr::from(([127, 0, 0, 1], 1));
    let served = tokio::spawn(async move { serve_client(&server, end, peer, shutdown).await });
    Client { stream, served, _stop: stop }
}

fn is_close(elapsed: Duration, expected: Duration) -> bool {
    elapsed >= expected && elapsed < expected + Duration::from_millis(10)
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_end_cannot_be_sent_is_dropped() {
    for last in ["QUIT\r\n", "*x\r\n"] {
        let mut client = connect(1 << 10, Unclosable);
        let start = Instant::now();
        client.stream.write_all(last.as_bytes()).await.expect("sent");
        let ended = timeout(WRITE_TIMEOUT * 3, client.served).await;
        assert!(ended.is_ok(), "{last:?} holds the connection for ever");
        assert!(is_close(start.elapsed(), WRITE_TIMEOUT), "{last:?}: {:?}", start.elapsed());
    }
}

/// Counts the bytes that are offered to it at once.
struct LargestWrite(Arc<AtomicU64>);

impl AsyncWrite for LargestWrite {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.0.fetch_max(buf.len() as u64, Ordering::Relaxed);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn large_replies_of_a_batch_are_sent_before_the_next_command_is_run() {
    let server = server(None);
    let peer = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut session = RespSession::new(&server, peer, 1);
    let names = "$11\r\ncl.throttle\r\n".repeat(1_000);
    let command = format!("*1002\r\n$7\r\nCOMMAND\r\n$4\r\nINFO\r\n{names}");
    let largest = Arc::new(AtomicU64::new(0));
    let mut stream = LargestWrite(Arc::clone(&largest));
    let mut one = 0;
    for count in [1, 64] {
        let input = command.repeat(count);
        let used = run_commands(&mut session, &mut stream, &mut Parser::default(), input.as_bytes()).await;
        assert_eq!(used.expect("written"), input.len());
        send(&mut stream, &mut session).await.expect("written");
        let bytes = largest.load(Ordering::Relaxed) as usize;
        assert!(bytes > 50_000, "{bytes}");
        assert!(count == 1 || bytes <= one + MAX_REPLY_BYTES, "{bytes} bytes were kept; one reply has {one}");
        one = bytes;
    }
}

/// A command as an array.
fn array(words: &[&str]) -> String {
    let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), words.collect::<String>())
}

#[tokio::test]
async fn commands_before_auth_are_short() {
    const TOKEN: &str = "a-secret-of-the-callers";
    let tokens = Tokens::parse(&format!("check {TOKEN}")).expect("a token");
    let tokens = Arc::new(tokens);
    let long = "x".repeat(16 << 10);
    let echo = array(&["ECHO", &long]);
    let many = array(&["DEL", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]);
    let auth = array(&["AUTH", TOKEN]);
    let hello = array(&["HELLO", "3", "AUTH", "default", TOKEN, "SETNAME", "app"]);
    for (sent, expected) in [
        (echo.clone(), "-ERR Protocol error: a command has at most 16384 bytes before AUTH\r\n"),
        (many.clone(), "-ERR Protocol error: a command has at most 10 arguments before AUTH\r\n"),
        (
            format!("*1\r\n$16385\r\n{long}"),
            "-ERR Protocol error: an argument has at most 16384 bytes before AUTH\r\n",
        ),
        (format!("{auth}{echo}QUIT\r\n"), "+OK\r\n$16384\r\n"),
        (format!("{auth}{many}QUIT\r\n"), "+OK\r\n:0\r\n+OK\r\n"),
        (format!("{hello}{many}QUIT\r\n"), "%7\r\n"),
        (
            format!("AUTH {TOKEN}\r\n{many}RESET\r\n{many}"),
            "+OK\r\n:0\r\n+RESET\r\n-ERR Protocol error: a command has at most 10 arguments before AUTH\r\n",
        ),
    ] {
        let mut client = connect_to(server(Some(Arc::clone(&tokens))), 1 << 20, |stream| stream);
        client.stream.write_all(sent.as_bytes()).await.expect("sent");
        let mut replies = Vec::new();
        client.stream.read_to_end(&mut replies).await.expect("replies");
        let replies = String::from_utf8(replies).expect("text");
        assert!(
            replies.starts_with(expected),
            "{:?}: {:?}",
            &sent[..60.min(sent.len())],
            &replies[..100.min(replies.len())]
        );
    }
}
