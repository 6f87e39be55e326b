//! Idle connections to one upstream, per worker.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use tokio::time::Instant;

use crate::transport::proxy::body::Upload;

/// Idle connections to one upstream per worker.
const MAX_IDLE: usize = 256;

/// The sending half of a connection.
pub enum UpstreamSender {
    Http1(http1::SendRequest<Upload>),
    /// Multiplexed: exchanges share it.
    Http2(http2::SendRequest<Upload>),
}

#[derive(Default)]
pub struct ConnectionPool(Mutex<Connections>);

#[derive(Default)]
struct Connections {
    /// Ordered by last use, the latest last.
    idle: Vec<(http1::SendRequest<Upload>, Instant)>,
    shared: Option<http2::SendRequest<Upload>>,
}

impl Connections {
    /// The most recently used connection that is ready now. One whose upstream does not read the rest of an upload may
    /// stay busy for long.
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
    /// A connection that appears to be open.
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

    /// An HTTP/1.1 connection: an upgrade needs a connection of its own.
    pub fn take_http1(&self, keep_alive: Duration) -> Option<UpstreamSender> {
        self.lock().take_idle(keep_alive)
    }

    /// Returns a connection to the pool; its idle time begins now.
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

    /// Closes connections that are idle too long.
    pub fn sweep(&self, keep_alive: Duration) {
        let mut connections = self.lock();
        connections.idle.retain(|(sender, since)| !sender.is_closed() && since.elapsed() < keep_alive);
        connections.shared.take_if(|shared| shared.is_closed());
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
