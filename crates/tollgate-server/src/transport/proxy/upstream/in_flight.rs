//! A connection to an upstream that one exchange uses.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::transport::proxy::upstream::pool::UpstreamSender;
use crate::transport::proxy::upstream::server::Upstream;
use crate::transport::proxy::wait::settlement::Permits;

/// Counts as one exchange of its upstream until it is dropped. Its connection is reused only if it was released
/// explicitly.
pub struct InFlightGuard {
    upstream: Arc<Upstream>,
    worker: usize,
    sender: Option<UpstreamSender>,
    /// Concurrency permits, released on drop.
    permits: Option<Permits>,
}

impl InFlightGuard {
    pub fn new(upstream: Arc<Upstream>, worker: usize) -> InFlightGuard {
        upstream.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlightGuard { upstream, worker, sender: None, permits: None }
    }

    /// Attaches permits that are released when the exchange is over, however it ends.
    pub fn attach_permits(&mut self, permits: Option<Permits>) {
        self.permits = permits;
    }

    /// Attaches the connection to be released later.
    pub fn attach_connection(&mut self, sender: UpstreamSender) {
        self.sender = Some(sender);
    }

    /// The exchange has ended cleanly: its connection returns to the pool.
    pub fn release_connection(&mut self) {
        if let Some(sender) = self.sender.take() {
            self.upstream.pool(self.worker).put(sender);
        }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.upstream.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
