//! Export of traces and metrics over OTLP (OTLP/HTTP with protobuf), in the background.
//!
//! A decision whose caller records its trace (`traceparent` with the flag *sampled*) becomes a span: it is put into a
//! bounded queue, or dropped and counted. Metrics are those of `/metrics`, read at intervals. Messages are written by the
//! codec of the gRPC listener; no collector can delay a request or a stop.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tollgate::Time;
use tollgate::internal::document::{Problem, Problems};

use crate::client::{ClientRequest, ServerClient};
use crate::config::OtlpConfig;
use crate::connection::{Shutdown, shutdown_requested};
use crate::gate::Gate;
use crate::log_rate::LogLimiter;
use crate::metrics;
use crate::transport::proxy::Proxy;

mod counts;
mod encode;
mod span;

use counts::OtlpCounts;
use encode::{ExportedSpan, Resource};
pub use span::SpanQueue;
use span::{QUEUE, SpanRecord};

/// Spans of one request.
const MAX_BATCH: usize = 512;
const SPAN_INTERVAL: Duration = Duration::from_secs(1);
/// A batch of spans is sent at most this often.
const MAX_TRIES: u32 = 3;
/// How long a stop waits for the last spans and metrics.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
const PROTOBUF: &str = "application/x-protobuf";

pub struct OtlpExporter {
    client: ServerClient,
    config: OtlpConfig,
    gate: Arc<Gate>,
    proxy: Option<Arc<Proxy>>,
    counts: Arc<OtlpCounts>,
    /// When the counters began.
    started: Time,
    spans: Mutex<PendingSpans>,
    failures: LogLimiter,
}

struct PendingSpans {
    queue: Receiver<SpanRecord>,
    random: SystemRandom,
    batch: Vec<ExportedSpan>,
    /// How often the batch was sent.
    tries: u32,
}

/// Why the collector has not accepted a message.
struct Rejected {
    why: String,
    /// Whether it may accept it later.
    is_transient: bool,
}

impl OtlpExporter {
    /// Makes the gate record spans, if the export is configured.
    pub fn open(
        config: Option<&OtlpConfig>,
        gate: &Arc<Gate>,
        proxy: Option<&Arc<Proxy>>,
    ) -> Result<Option<Arc<OtlpExporter>>, Problems> {
        let Some(config) = config.cloned() else { return Ok(None) };
        let client = ServerClient::without_token(&config.endpoint)
            .map_err(|error| Problem::new(None, "otlp.endpoint", error.to_string()))?;
        tracing::info!("traces and metrics are sent to {}", config.endpoint);
        let counts = Arc::new(OtlpCounts::default());
        let (spans, queue) = SpanQueue::new(Arc::clone(&counts));
        gate.spans.get_or_init(|| spans);
        let pending = PendingSpans { queue, random: SystemRandom::new(), batch: Vec::new(), tries: 0 };
        let started = gate.now();
        let gate = Arc::clone(gate);
        let proxy = proxy.cloned();
        let failures = LogLimiter::default();
        let spans = Mutex::new(pending);
        Ok(Some(Arc::new(OtlpExporter { client, config, gate, proxy, counts, started, spans, failures })))
    }

    /// Exports until the shutdown.
    pub async fn run(self: Arc<Self>, mut shutdown: Shutdown) {
        tokio::select! {
            () = self.export_for_ever() => {}
            () = shutdown_requested(&mut shutdown) => {}
        }
    }

    async fn export_for_ever(&self) {
        let mut ticks = interval(SPAN_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut metrics_due = Instant::now() + self.config.interval;
        loop {
            ticks.tick().await;
            self.send_spans().await;
            if Instant::now() >= metrics_due {
                metrics_due = Instant::now() + self.config.interval;
                self.send_metrics().await;
            }
        }
    }

    /// Sends what is left, after the last request.
    pub async fn flush(&self) {
        let flush = async {
            self.send_spans().await;
            self.send_metrics().await;
        };
        if timeout(FLUSH_TIMEOUT, flush).await.is_err() {
            tracing::warn!(
                "the last spans and metrics were not accepted by {} in time",
                self.config.endpoint
            );
        }
    }

    async fn send_spans(&self) {
        let mut pending = self.spans.lock().await;
        for _ in 0..=QUEUE / MAX_BATCH {
            pending.fill();
            let count = pending.batch.len() as u64;
            if count == 0 {
                return;
            }
            let body = encode::traces(&self.resource(), &pending.batch);
            pending.tries += 1;
            match self.post("/v1/traces", body).await {
                Ok(()) => {
                    self.counts.spans_exported.fetch_add(count, Ordering::Relaxed);
                    pending.clear();
                }
                Err(rejected) => {
                    self.log_failure("spans", &rejected);
                    if !rejected.is_transient || pending.tries >= MAX_TRIES {
                        self.counts.spans_dropped.fetch_add(count, Ordering::Relaxed);
                        pending.clear();
                    }
                    return;
                }
            }
        }
    }

    async fn send_metrics(&self) {
        let families = metrics::read_families(&self.gate, self.proxy.as_ref()).await;
        let body = encode::metrics(&self.resource(), &families, self.started, self.gate.now());
        let result = match self.post("/v1/metrics", body).await {
            Ok(()) => &self.counts.metrics_exported,
            Err(rejected) => {
                self.log_failure("metrics", &rejected);
                &self.counts.metrics_failed
            }
        };
        result.fetch_add(1, Ordering::Relaxed);
    }

    fn resource(&self) -> Resource<'_> {
        Resource { service_name: &self.config.service_name, node: self.gate.engine.node() }
    }

    async fn post(&self, path: &str, body: Vec<u8>) -> Result<(), Rejected> {
        let mut call = ClientRequest::new(Method::POST, path).bytes(PROTOBUF, Bytes::from(body));
        for (name, value) in &self.config.headers {
            call = call.header(name, value);
        }
        let answer = self.client.fetch_json(call).await;
        let answer = answer.map_err(|error| Rejected { why: error.to_string(), is_transient: true })?;
        if (200..300).contains(&answer.status) {
            return Ok(());
        }
        // OTLP, "Failures": these may succeed later.
        let is_transient = matches!(answer.status, 429 | 502 | 503 | 504);
        let why = format!("{}{path} answers with status {}", self.config.endpoint, answer.status);
        Err(Rejected { why, is_transient })
    }

    fn log_failure(&self, what: &str, rejected: &Rejected) {
        self.failures.warn("failed exports", || {
            tracing::warn!("{what} were not exported: {}", rejected.why);
        });
    }
}

impl PendingSpans {
    fn fill(&mut self) {
        while self.batch.len() < MAX_BATCH
            && let Ok(record) = self.queue.try_recv()
        {
            let mut id = [0; 8];
            // An id of zero is not valid; the system's generator never fails once it has started.
            while id == [0; 8] && self.random.fill(&mut id).is_ok() {}
            self.batch.push(ExportedSpan { id, record });
        }
    }

    fn clear(&mut self) {
        self.batch.clear();
        self.tries = 0;
    }
}
