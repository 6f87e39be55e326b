//! Connections to one upstream that wait for their next request, for one worker.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use tokio::time::Instant;

use crate::transport::proxy::body::Upload;

/// Connections kept for one upstream by each worker.
const MAX_IDLE: usize = 256;

/// The sending end of a connection.
pub enum UpstreamSender {
    Http1(http1::SendRequest<Upload>),
    /// Shared: its exchanges do not wait for each other.
    Http2(http2::SendRequest<Upload>),
}

#[derive(Default)]
pub struct ConnectionPool(Mutex<Connections>);

#[derive(Default)]
struct Connections {
    /// The latest used last.
    idle: Vec<(http1::SendRequest<Upload>, Instant)>,
    shared: Option<http2::SendRequest<Upload>>,
}

impl Connections {
    /// The latest one that takes a request now. One that is still busy with an upload that its upstream did not
    /// want to read may stay so for long.
    fn take_idle(&mut self, keep_alive: Duration) -> Option<UpstreamSender> {
        for n in (0..self.idle.len()).rev() {
            let (sender, since) = &self.idle[n];
            if sender.is_closed() || since.elapsed() >= keep_alive {
                self.idle.remove(n);
            } else if sender.is_ready() {
                return Some(UpstreamSender::Http1(self.idle.remove(n).0));
            }
        }
        None
    }
}

impl ConnectionPool {
    /// A connection that is open as far as anybody can tell.
    pub fn take(&self, keep_alive: Duration) -> Option<UpstreamSender> {
        let mut connections = self.lock();
        if let Some(shared) = &connections.shared {
            if !shared.is_closed() {
                return Some(UpstreamSender::Http2(shared.clone()));
            }
            connections.shared = None;
        }
        connections.take_idle(keep_alive)
    }

    /// One for HTTP/1.1 alone: an upgrade takes the whole connection.
    pub fn take_http1(&self, keep_alive: Duration) -> Option<UpstreamSender> {
        self.lock().take_idle(keep_alive)
    }

    /// Keeps a connection; its idle time begins now.
    pub fn put(&self, sender: UpstreamSender) {
        let mut connections = self.lock();
        match sender {
            UpstreamSender::Http1(sender) if !sender.is_closed() && connections.idle.len() < MAX_IDLE => {
                connections.idle.push((sender, Instant::now()));
            }
            UpstreamSender::Http1(_) => {}
            UpstreamSender::Http2(sender) => connections.shared = Some(sender),
        }
    }

    /// Lets go of connections that waited too long.
    pub fn sweep(&self, keep_alive: Duration) {
        let mut connections = self.lock();
        connections.idle.retain(|(sender, since)| !sender.is_closed() && since.elapsed() < keep_alive);
        connections.shared.take_if(|shared| shared.is_closed());
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
