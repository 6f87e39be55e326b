//! The reverse proxy: decides a request, forwards it to an upstream, and returns the response.
//!
//! Each worker is a thread with its own connections on both sides; they share only what a reload changes.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arc_swap::ArcSwap;
use tollgate::internal::document::{Problem, Problems};
use tollgate::internal::hold::HoldQueues;

use crate::config::{Balance, ProxyConfig, QueueConfig, UpstreamProtocol};
use crate::connection::{Shutdown, default_workers};
use crate::gate::{FieldSelection, Gate};
use crate::metrics::LatencyHistogram;

mod accept;
mod body;
mod chunks;
mod decide;
mod egress;
mod exchange;
mod respond;
mod tls;
mod upstream;
mod verbatim;
mod wait;

#[cfg(feature = "testing")]
pub mod testing;

pub use accept::client_connection::serve;
pub use egress::{ApiUrl, Egress, EgressCallers};
pub use tls::{upstream_tls_client, watch_upstream_ca};
pub use upstream::health::watch as watch_health;
pub use wait::enqueue::RequestQueue;

use accept::verbatim_head::may_be_stripped;
use upstream::balance::RoundRobinCursor;
use upstream::connect::UpstreamTlsClient;
use upstream::server::Upstream;
use wait::budget::Budget;

pub struct Proxy {
    gate: Arc<Gate>,
    route: ArcSwap<RouteSnapshot>,
    /// The replay of queued requests has a connection pool of its own beside these.
    workers: usize,
    hold_queues: Arc<HoldQueues>,
    /// Memory of bodies that are read ahead while their requests are held.
    read_ahead: Arc<Budget>,
    /// Memory of bodies that are read for the fields in them.
    body_prefixes: Arc<Budget>,
    /// Set for a gateway to one API.
    egress: Option<Egress>,
    /// The request queue, if configured.
    pub request_queue: Option<Arc<RequestQueue>>,
    pub counts: ProxyCounts,
    /// Response times of upstreams.
    pub latencies: LatencyHistogram,
}

/// Counters for the metrics.
#[derive(Default)]
pub struct ProxyCounts {
    pub retried: AtomicU64,
    pub unreachable: AtomicU64,
    pub timed_out: AtomicU64,
    pub rejected: AtomicU64,
    pub held: AtomicU64,
    pub hold_rejected: AtomicU64,
    pub queued: AtomicU64,
    pub replayed: AtomicU64,
    pub dead_lettered: AtomicU64,
}

/// Upstreams and settings of the configuration in force.
struct RouteSnapshot {
    config: ProxyConfig,
    upstreams: Vec<Arc<Upstream>>,
    round_robin: RoundRobinCursor,
    tls: ArcSwap<UpstreamTlsClient>,
    /// Whether requests may be verbatim: neither the headers that are stripped nor the upstreams prevent it.
    may_be_verbatim: bool,
}

/// State of an upstream, for the admin API.
pub struct UpstreamReport {
    pub address: String,
    pub in_flight: usize,
    /// Why requests to it fail.
    pub down_reason: Option<String>,
}

impl UpstreamReport {
    pub fn is_up(&self) -> bool {
        self.down_reason.is_none()
    }
}

impl Proxy {
    /// It must be called inside a tokio runtime: the queue may connect to a server.
    pub fn new(gate: Arc<Gate>, config: ProxyConfig, queue: Option<QueueConfig>) -> Result<Proxy, Problems> {
        let workers = default_workers();
        let route = RouteSnapshot::new(&gate, config, &[], workers)?;
        let request_queue = queue.map(RequestQueue::open).transpose()?;
        Ok(Proxy {
            gate,
            egress: None,
            request_queue: request_queue.map(Arc::new),
            route: ArcSwap::from_pointee(route),
            workers,
            hold_queues: Arc::default(),
            read_ahead: Budget::new(exchange::MAX_READ_AHEAD_BYTES),
            body_prefixes: Budget::new(decide::identify::MAX_PREFIXES_BYTES),
            counts: ProxyCounts::default(),
            latencies: LatencyHistogram::default(),
        })
    }

    /// Makes it a gateway to one API.
    pub fn with_egress(self, egress: Egress) -> Proxy {
        Proxy { egress: Some(egress), ..self }
    }

    /// Applies new settings. Upstreams that stay keep their connections and their health.
    pub fn apply(&self, config: ProxyConfig) -> Result<(), Problems> {
        let known = self.route.load();
        if known.config != config {
            self.route.store(Arc::new(RouteSnapshot::new(
                &self.gate,
                config,
                &known.upstreams,
                self.workers,
            )?));
        }
        Ok(())
    }

    /// Replays queued requests when they may pass, until the shutdown.
    pub async fn run_replay(self: Arc<Self>, shutdown: Shutdown) {
        wait::replay::run(self, shutdown).await;
    }

    /// The number of held requests.
    pub fn held_requests(&self) -> usize {
        self.hold_queues.waiting()
    }

    pub fn upstreams(&self) -> Vec<UpstreamReport> {
        let route = self.route.load();
        let report = |upstream: &Arc<Upstream>| UpstreamReport {
            address: upstream.address.to_string(),
            in_flight: upstream.in_flight.load(std::sync::atomic::Ordering::Relaxed),
            down_reason: upstream.down_reason(),
        };
        route.upstreams.iter().map(report).collect()
    }
}

impl RouteSnapshot {
    fn new(
        gate: &Gate,
        config: ProxyConfig,
        known: &[Arc<Upstream>],
        workers: usize,
    ) -> Result<RouteSnapshot, Problems> {
        if let Balance::Hash(attribute) = &config.balance {
            gate.extend_field_selection(&FieldSelection::of_attribute(attribute));
        }
        let upstreams = config.upstreams.iter().map(|address| {
            let known = known.iter().find(|upstream| upstream.address == *address);
            known.map_or_else(|| Arc::new(Upstream::new(address.clone(), workers + 1)), Arc::clone)
        });
        let tls = tls::upstream_tls_client(&config.upstream_tls)
            .map_err(|error| Problem::new(None, "proxy.upstream_tls", format!("{error:#}")))?;
        Ok(RouteSnapshot {
            upstreams: upstreams.collect(),
            may_be_verbatim: may_be_stripped(&config.strip_headers)
                && config.upstreams.iter().all(|upstream| upstream.protocol == UpstreamProtocol::Http1),
            config,
            round_robin: RoundRobinCursor::default(),
            tls: ArcSwap::from_pointee(tls),
        })
    }
}
