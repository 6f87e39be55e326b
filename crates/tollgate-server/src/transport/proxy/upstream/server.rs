//! One upstream: its address, its health, the exchanges in flight, and a pool of idle connections per worker.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper::header::HeaderValue;
use tokio::time::Instant;
use tollgate::Time;
use tollgate::internal::settlement::Permits;

use crate::config::UpstreamAddress;
use crate::gate::Gate;
use crate::log_rate::LogLimiter;
use crate::transport::proxy::body::Upload;
use crate::transport::proxy::upstream::connect::ConnectError;
use crate::transport::proxy::upstream::plain_body::UpstreamBody;
use crate::transport::proxy::upstream::plain_connection::PlainConnection;

/// Consecutive failures after which an upstream is ejected.
const MAX_FAILURES: u32 = 3;
/// Duration of an ejection; afterwards requests use the upstream again.
const EJECTION_TIME: Duration = Duration::from_secs(10);

pub struct Upstream {
    pub address: UpstreamAddress,
    pub host: HeaderValue,
    /// Exchanges in flight.
    pub in_flight: AtomicUsize,
    failures: AtomicU32,
    /// Ejected until this timestamp in nanoseconds; used before it only if all others are down too.
    ejected_until: AtomicU64,
    /// The last failure, while `failures` is not 0.
    last_failure: Mutex<Option<UpstreamFailure>>,
    /// Result of active checks; true where there are none.
    passes_checks: AtomicBool,
    check_error: Mutex<Option<String>>,
    /// Limits the log lines: an upstream may fail every other request.
    log_limiter: LogLimiter,
    /// One per worker.
    pools: Box<[ConnectionPool]>,
}

/// A failed exchange with an upstream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UpstreamFailure {
    why: String,
    /// There was no connection: a single one is evidence that the upstream is down.
    is_connect: bool,
}

impl UpstreamFailure {
    pub fn connect(error: &ConnectError) -> UpstreamFailure {
        UpstreamFailure { why: error.to_string(), is_connect: true }
    }

    /// The connection broke, or no response came in time.
    pub fn response(why: String) -> UpstreamFailure {
        UpstreamFailure { why, is_connect: false }
    }
}

impl Upstream {
    pub fn new(address: UpstreamAddress, workers: usize) -> Upstream {
        let host = HeaderValue::from_str(address.host()).expect("an authority fits a header");
        Upstream {
            address,
            host,
            in_flight: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            ejected_until: AtomicU64::new(0),
            last_failure: Mutex::default(),
            passes_checks: AtomicBool::new(true),
            check_error: Mutex::default(),
            log_limiter: LogLimiter::default(),
            pools: (0..workers).map(|_| ConnectionPool::default()).collect(),
        }
    }

    pub fn pool(&self, worker: usize) -> &ConnectionPool {
        &self.pools[worker % self.pools.len()]
    }

    pub fn pools(&self) -> &[ConnectionPool] {
        &self.pools
    }

    pub fn is_up(&self, now: Time) -> bool {
        self.passes_checks.load(Ordering::Relaxed)
            && self.ejected_until.load(Ordering::Relaxed) <= now.nanos()
    }

    /// Why no request is served by it, as far as is known: its checks fail, it cannot be connected to, or it failed
    /// repeatedly. Unlike an ejection this ends with the next success.
    pub fn down_reason(&self) -> Option<String> {
        if !self.passes_checks.load(Ordering::Relaxed) {
            let why = lock(&self.check_error).clone().unwrap_or_default();
            return Some(format!("health check: {why}"));
        }
        let failures = self.failures.load(Ordering::Relaxed);
        let last = lock(&self.last_failure).clone().filter(|_| failures > 0)?;
        (last.is_connect || failures >= MAX_FAILURES).then_some(last.why)
    }

    /// The upstream responded.
    pub fn record_success(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
            self.ejected_until.store(0, Ordering::Relaxed);
            *lock(&self.last_failure) = None;
        }
    }

    /// The upstream was unreachable, or broke off.
    pub fn record_failure(&self, failure: UpstreamFailure, now: Time) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        let before = lock(&self.last_failure).replace(failure.clone());
        let why = &failure.why;
        if before.as_ref() != Some(&failure) {
            self.log_limiter.warn("failed upstreams", || {
                tracing::warn!(upstream = %self.address, why, "an upstream failed");
            });
        }
        if failures >= MAX_FAILURES {
            let was_ejected =
                self.ejected_until.swap((now + EJECTION_TIME).nanos(), Ordering::Relaxed) > now.nanos();
            if !was_ejected {
                tracing::warn!(upstream = %self.address, failures, why, "an upstream is down: its requests go to others");
            }
        }
    }

    /// Records the result of an active check.
    pub fn record_check(&self, checked: Result<(), String>) {
        let passes = checked.is_ok();
        let why = checked.err();
        lock(&self.check_error).clone_from(&why);
        let before = self.passes_checks.swap(passes, Ordering::Relaxed);
        match (before, passes) {
            (true, false) => {
                let why = why.unwrap_or_default();
                tracing::warn!(upstream = %self.address, why, "an upstream fails its health check");
            }
            (false, true) => {
                self.record_success();
                tracing::info!(upstream = %self.address, "an upstream passes its health check again");
            }
            _ => {}
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts as one exchange of its upstream until it is dropped. Its connection is reused only if it was released
/// explicitly.
pub struct InFlightGuard {
    upstream: Arc<Upstream>,
    worker: usize,
    sender: Option<UpstreamSender>,
    /// Concurrency permits, released on drop.
    permits: Option<Permits<Gate>>,
}

impl InFlightGuard {
    pub fn new(upstream: Arc<Upstream>, worker: usize) -> InFlightGuard {
        upstream.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlightGuard { upstream, worker, sender: None, permits: None }
    }

    pub fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }

    /// Attaches permits that are released when the exchange is over, however it ends.
    pub fn attach_permits(&mut self, permits: Option<Permits<Gate>>) {
        self.permits = permits;
    }

    /// Attaches the connection to be released later.
    pub fn attach_connection(&mut self, sender: UpstreamSender) {
        self.sender = Some(sender);
    }

    /// The response was read to its end: its connection returns to the pool.
    pub fn release_connection(&mut self, body: &mut UpstreamBody) {
        let pool = self.upstream.pool(self.worker);
        if let Some(connection) = body.take_connection() {
            pool.put_plain(connection, Instant::now());
        } else if let Some(sender) = self.sender.take() {
            pool.put(sender);
        }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.upstream.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Idle connections to one upstream per worker, and as many for plain requests.
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
    /// Ordered by last use, the latest last.
    plain: Vec<(PlainConnection, Instant)>,
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

    /// The most recently used connection for plain requests.
    pub fn take_plain(&self, keep_alive: Duration, now: Instant) -> Option<PlainConnection> {
        let mut connections = self.lock();
        while let Some((connection, since)) = connections.plain.pop() {
            if now.saturating_duration_since(since) < keep_alive && connection.is_open() {
                return Some(connection);
            }
        }
        None
    }

    /// Returns a connection for plain requests to the pool, idle since `now`.
    pub fn put_plain(&self, connection: PlainConnection, now: Instant) {
        let mut connections = self.lock();
        if connections.plain.len() < MAX_IDLE {
            connections.plain.push((connection, now));
        }
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
        connections.plain.retain(|(connection, since)| since.elapsed() < keep_alive && connection.is_open());
        connections.shared.take_if(|shared| shared.is_closed());
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        lock(&self.0)
    }
}
