//! A connection to an upstream, lent to one exchange.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::transport::proxy::upstream::pool::UpstreamSender;
use crate::transport::proxy::upstream::server::Upstream;
use crate::transport::proxy::wait::settlement::Permits;

/// Counts as one exchange of its upstream until it is dropped; its connection serves another one only if it
/// was given back.
pub struct InFlightGuard {
    upstream: Arc<Upstream>,
    worker: usize,
    sender: Option<UpstreamSender>,
    /// Given back with it.
    permits: Option<Permits>,
}

impl InFlightGuard {
    pub fn new(upstream: Arc<Upstream>, worker: usize) -> InFlightGuard {
        upstream.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlightGuard { upstream, worker, sender: None, permits: None }
    }

    /// What is given back when the exchange is over, however it ends.
    pub fn attach_permits(&mut self, permits: Option<Permits>) {
        self.permits = permits;
    }

    /// The connection to give back later.
    pub fn attach_connection(&mut self, sender: UpstreamSender) {
        self.sender = Some(sender);
    }

    /// The exchange has ended as it should: the connection may serve another one.
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
