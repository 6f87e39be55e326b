//! The reverse proxy: a request is decided, sent to an API server, and its response brought back.
//!
//! Each worker is a thread with its own connections on both sides; they share only what a reload changes.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arc_swap::ArcSwap;
use tollgate::document::{Problem, Problems};

use crate::config::{Balance, ProxyConfig, QueueConfig};
use crate::connection::Shutdown;
use crate::gate::{Asked, Gate};

mod balance;
mod body;
mod budget;
mod connect;
mod conversation;
mod enqueue;
mod exchange;
mod fields;
mod forward;
mod forwarded;
mod framing;
mod heads;
mod health;
mod hold;
mod hops;
mod identify;
mod inspect;
mod json;
mod lease;
mod line;
mod merge;
mod multipart;
mod pool;
mod pulse;
mod refusal;
mod replay;
mod screen;
mod settlement;
mod stall;
mod stream;
#[cfg(feature = "testing")]
pub mod testing;
mod tls;
mod turn;
mod upgrade;
mod upstream;
mod websocket;
mod worker;

pub use health::watch as watch_health;
pub use tls::{Certificate, watch_trust};
pub use worker::serve;

use balance::Turn;
use budget::Budget;
use connect::Tls;
pub use enqueue::Aside;
use forwarded::Trust;
use hold::Room;
use pulse::Pulse;
use upstream::Upstream;

pub struct Proxy {
    gate: Arc<Gate>,
    route: ArcSwap<Route>,
    /// Beside them, queued requests have connections of their own.
    workers: usize,
    held: Arc<Room>,
    /// What is read of bodies whose requests wait.
    read_ahead: Arc<Budget>,
    pulses: Box<[Pulse]>,
    /// Where requests are put aside.
    pub aside: Option<Arc<Aside>>,
    pub counts: Counts,
}

/// What is counted for people.
#[derive(Default)]
pub struct Counts {
    pub retried: AtomicU64,
    pub unreachable: AtomicU64,
    pub too_slow: AtomicU64,
    pub rejected: AtomicU64,
    pub held: AtomicU64,
    pub not_held: AtomicU64,
    pub queued: AtomicU64,
    pub replayed: AtomicU64,
    pub given_up: AtomicU64,
}

/// Where requests go, as the file says.
struct Route {
    config: ProxyConfig,
    upstreams: Vec<Arc<Upstream>>,
    turn: Turn,
    tls: ArcSwap<Tls>,
}

/// How an upstream is doing.
pub struct UpstreamReport {
    pub address: String,
    pub up: bool,
    pub in_flight: usize,
}

impl Proxy {
    /// It must be called inside a tokio runtime: a queue may be on a server.
    pub fn new(gate: Arc<Gate>, config: ProxyConfig, queue: Option<QueueConfig>) -> Result<Proxy, Problems> {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let route = Route::new(&gate, config, &[], workers)?;
        let aside = queue.map(Aside::open).transpose()?;
        Ok(Proxy {
            gate,
            aside: aside.map(Arc::new),
            route: ArcSwap::from_pointee(route),
            workers,
            pulses: (0..workers).map(|_| Pulse::default()).collect(),
            held: Arc::default(),
            read_ahead: Budget::new(turn::MAX_AHEAD_BYTES),
            counts: Counts::default(),
        })
    }

    /// Takes new settings. Upstreams that stay keep their connections and what is known of their health.
    pub fn apply(&self, config: ProxyConfig) -> Result<(), Problems> {
        let known = self.route.load();
        if known.config != config {
            self.route.store(Arc::new(Route::new(&self.gate, config, &known.upstreams, self.workers)?));
        }
        Ok(())
    }

    /// Sends queued requests when they may pass, until the shutdown.
    pub async fn watch_queue(self: Arc<Self>, shutdown: Shutdown) {
        replay::watch(self, shutdown).await;
    }

    /// Beats for a worker, on its own thread, for as long as that runs.
    async fn beat(self: Arc<Self>, worker: usize) {
        self.pulses[worker].beat(|| self.gate.now()).await;
    }

    /// How many workers have stopped serving their connections.
    pub fn stuck_workers(&self) -> usize {
        let now = self.gate.now();
        self.pulses.iter().filter(|pulse| pulse.is_lost(now)).count()
    }

    /// How many requests wait for their turn.
    pub fn waiting(&self) -> usize {
        self.held.waiting()
    }

    /// Calls requests when it is their turn, until the shutdown.
    pub async fn watch_held(self: Arc<Self>, shutdown: Shutdown) {
        hold::watch(Arc::clone(&self.held), Arc::clone(&self.gate), shutdown).await;
    }

    pub fn upstreams(&self) -> Vec<UpstreamReport> {
        let (route, now) = (self.route.load(), self.gate.now());
        let report = |upstream: &Arc<Upstream>| UpstreamReport {
            address: upstream.address.to_string(),
            up: upstream.is_up(now),
            in_flight: upstream.in_flight.load(std::sync::atomic::Ordering::Relaxed),
        };
        route.upstreams.iter().map(report).collect()
    }
}

impl Route {
    fn trust(&self) -> Trust<'_> {
        Trust { proxies: &self.config.trusted, header: self.config.trusted_header }
    }

    fn new(
        gate: &Gate,
        config: ProxyConfig,
        known: &[Arc<Upstream>],
        workers: usize,
    ) -> Result<Route, Problems> {
        if let Balance::Hash(attribute) = &config.balance {
            gate.ask_for(&Asked::of_attribute(attribute));
        }
        let upstreams = config.upstreams.iter().map(|address| {
            let known = known.iter().find(|upstream| upstream.address == *address);
            known.map_or_else(|| Arc::new(Upstream::new(address.clone(), workers + 1)), Arc::clone)
        });
        let tls = tls::towards(&config.upstream_tls)
            .map_err(|error| Problem::new(None, "proxy.upstream_tls", format!("{error:#}")))?;
        Ok(Route {
            upstreams: upstreams.collect(),
            config,
            turn: Turn::default(),
            tls: ArcSwap::from_pointee(tls),
        })
    }
}
