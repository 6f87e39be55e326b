//! `/metrics` in the OpenMetrics text format. Label values come from the configuration only.
//!
//! The counts stay where they are made, in counters that no other thread waits for; they are read when the page is
//! scraped, and `prometheus-client` encodes them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::Registry;
use tokio::time::timeout;
use tollgate::Time;
use tollgate::internal::Enforce;

use crate::connection::OpenConnections;
use crate::gate::{Gate, Reloads};
use crate::insight::Insight;
use crate::queue::QueuedState;
use crate::transport::proxy::Proxy;

mod activity;
mod central;
mod compat;
mod decision_times;
#[cfg(feature = "otlp")]
mod families;
mod histogram;
mod process;
mod proxy;
mod requests;
mod rules;
mod rules_db;
mod state;
mod writer;

pub use compat::CompatNames;
pub use decision_times::DecisionTimes;
#[cfg(feature = "otlp")]
pub use families::{MetricFamily, PointValue};
#[cfg(feature = "otlp")]
pub use histogram::HistogramSnapshot;
pub use histogram::LatencyHistogram;
pub use requests::{RequestCounts, RequestStatus, RespStatus, Transport};
pub use rules::RuleSeries;
use writer::DecisionExemplar;
#[cfg(not(feature = "otlp"))]
use writer::MetricsWriter;
#[cfg(feature = "otlp")]
pub use writer::{MetricKind, MetricsWriter};

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How long a page waits for the request queue; without its answer the queue is left out.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(1);

/// The page of this moment.
pub async fn write(gate: &Arc<Gate>, proxy: Option<&Arc<Proxy>>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(MetricsPage::read(gate, proxy).await));
    let mut page = String::with_capacity(8 << 10);
    text::encode(&mut page, &registry).expect("writing to a string cannot fail");
    page
}

/// The same metrics as values.
#[cfg(feature = "otlp")]
pub async fn read_families(gate: &Arc<Gate>, proxy: Option<&Arc<Proxy>>) -> Vec<MetricFamily> {
    let page = MetricsPage::read(gate, proxy).await;
    let mut families = Vec::new();
    page.write(&mut MetricsWriter::families(&mut families)).expect("adding to a list cannot fail");
    families
}

struct MetricsPage {
    gate: Arc<Gate>,
    proxy: Option<Arc<Proxy>>,
    /// Requests in the queue by state, if it has answered.
    queued: Option<Vec<(QueuedState, u64)>>,
}

async fn queued_requests(proxy: Option<&Arc<Proxy>>) -> Option<Vec<(QueuedState, u64)>> {
    let queue = proxy?.request_queue.as_ref()?;
    timeout(QUEUE_TIMEOUT, queue.backend.counts()).await.ok()?.ok()
}

impl fmt::Debug for MetricsPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MetricsPage")
    }
}

impl Collector for MetricsPage {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.write(&mut MetricsWriter::page(encoder))
    }
}

impl MetricsPage {
    async fn read(gate: &Arc<Gate>, proxy: Option<&Arc<Proxy>>) -> MetricsPage {
        let queued = queued_requests(proxy).await;
        MetricsPage { gate: Arc::clone(gate), proxy: proxy.cloned(), queued }
    }

    fn write(&self, page: &mut MetricsWriter<'_>) -> fmt::Result {
        let gate = &self.gate;
        let now = gate.now();
        page.info(
            "tollgate_build_info",
            "The version that is running.",
            &[("version", env!("CARGO_PKG_VERSION"))],
        )?;
        page.process()?;
        page.requests(&gate.requests)?;
        page.connections(&gate.connections)?;
        page.decisions(gate)?;
        if let Some(insight) = gate.insight.get() {
            page.activity(&insight.data())?;
        }
        page.bans_and_rules(gate, now)?;
        page.memory_store(gate, now)?;
        if let Some(saving) = gate.saving.get() {
            page.saving(saving, now)?;
        }
        if let Some(follower) = gate.rules_follower.get() {
            page.rules_db(follower, now)?;
        }
        if let Some(central) = gate.central.get() {
            page.central(central, &gate.engine)?;
            page.tracking(gate.engine.outbox(), &central.track_writes)?;
        }
        if let Some(queued) = &self.queued {
            page.queue(queued)?;
        }
        #[cfg(feature = "otlp")]
        if let Some(spans) = gate.spans.get() {
            spans.counts().write(page)?;
        }
        self.proxy.as_ref().map_or(Ok(()), |proxy| page.proxy(proxy))
    }
}

impl MetricsWriter<'_> {
    fn connections(&mut self, connections: &OpenConnections) -> fmt::Result {
        let mut open = self.gauges("tollgate_connections", "Open connections of clients, by listener.")?;
        for (listener, count) in connections.by_listener() {
            open.sample(&[("listener", listener)], count)?;
        }
        Ok(())
    }

    fn decisions(&mut self, gate: &Gate) -> fmt::Result {
        let engine = &gate.engine;
        let mut decisions = self.counters("tollgate_decisions_total", "Verdicts, by reason.")?;
        let recent = gate.insight.get().map(Insight::data);
        for (reason, count) in engine.decisions() {
            let listed = recent.as_ref().and_then(|data| data.latest(reason));
            let exemplar = listed.map(|decision| DecisionExemplar::new(decision.id, decision.at));
            decisions.sample_with_exemplar(&[("reason", reason.name())], count, exemplar.as_ref())?;
        }
        drop(recent);
        self.histogram(
            "tollgate_decision_seconds",
            "Time of a decision. One in 64 is measured, chosen at random.",
            &gate.decision_times.latencies,
        )?;
        let policy = engine.policy();
        let live = gate.snapshot().live;
        let policies = std::iter::once(&*policy).chain(live.envoy.configured_policy()).collect::<Vec<_>>();
        let selected = gate.rule_series.select(&policies);
        self.rules(&selected)?;
        self.compat(gate, &selected)?;
        let log = &gate.decision_log_counts;
        self.counter(
            "tollgate_decision_log_lines_total",
            "Lines written to the decision log.",
            log.lines.load(Ordering::Relaxed),
        )?;
        self.counter(
            "tollgate_decision_log_dropped_total",
            "Decisions and lines missing from the decision log: too many at once, or it cannot be written.",
            log.dropped.load(Ordering::Relaxed),
        )?;
        self.counter(
            "tollgate_ignored_matches_total",
            "Matching rules that were ignored: more than 64 matched.",
            engine.ignored_matches(),
        )
    }

    fn bans_and_rules(&mut self, gate: &Gate, now: Time) -> fmt::Result {
        let engine = &gate.engine;
        let policy = engine.policy();
        self.counter(
            "tollgate_bans_dropped_total",
            "Automatic bans that were dropped or evicted: the list is full.",
            engine.dropped_bans(),
        )?;
        self.counter(
            "tollgate_bans_unpublished_total",
            "Automatic bans that hold on this node only: too many at once for the rules database.",
            engine.unpublished_bans(),
        )?;
        self.counter(
            "tollgate_violations_dropped_total",
            "Denials that were not counted towards a ban: too many keys at once.",
            engine.dropped_violations(),
        )?;
        self.counter(
            "tollgate_shadow_bans_total",
            "Requests of banned clients that were admitted: the panic switch is set to shadow.",
            engine.shadow_bans(),
        )?;
        self.gauge("tollgate_bans", "Bans in force.", engine.ban_count(now) as u64)?;
        self.gauge("tollgate_rules", "Rules in force.", policy.rules().len() as u64)?;
        self.gauge(
            "tollgate_rules_generation",
            "The generation of the rules in force.",
            policy.generation(),
        )?;
        let mut enforce = self.gauges("tollgate_enforce", "The panic switch: 1 for its current position.")?;
        for position in Enforce::ALL {
            let is_set = u64::from(engine.enforce() == position);
            enforce.sample(&[("position", position.name())], is_set)?;
        }
        self.reloads(&gate.reloads)
    }

    fn reloads(&mut self, reloads: &Reloads) -> fmt::Result {
        let mut changes =
            self.counters("tollgate_reloads_total", "Changes of the configuration file, by result.")?;
        changes.sample(&[("result", "applied")], reloads.applied())?;
        changes.sample(&[("result", "rejected")], reloads.rejected())?;
        self.gauge(
            "tollgate_config_last_reload_success",
            "1 while the configuration in force is that of the file, 0 after a change was rejected.",
            u64::from(!reloads.is_last_rejected()),
        )?;
        self.gauge(
            "tollgate_config_last_reload_success_timestamp_seconds",
            "When the configuration was last read without problems, in seconds since 1970.",
            reloads.succeeded_at_secs(),
        )
    }

    fn memory_store(&mut self, gate: &Gate, now: Time) -> fmt::Result {
        let store = gate.engine.store();
        let usage = store.usage();
        self.gauge("tollgate_store_keys", "Keys in the memory store, expired ones included.", usage.keys)?;
        self.gauge("tollgate_store_bytes", "Bytes that the memory store uses.", usage.bytes)?;
        self.gauge("tollgate_store_cap_bytes", "Bytes that the memory store may use.", usage.cap_bytes)?;
        self.counter("tollgate_store_evicted_total", "Live keys that were evicted.", usage.evicted)?;
        self.counter(
            "tollgate_store_unstored_total",
            "Charges of new keys without a slot because memory is full.",
            usage.unstored,
        )?;
        self.counter(
            "tollgate_store_denied_total",
            "Charges of new keys denied because memory is full.",
            usage.denied_full,
        )?;
        self.counter(
            "tollgate_store_coarsened_total",
            "States merged into fewer steps because memory is full.",
            usage.coarsened,
        )?;
        self.gauge(
            "tollgate_store_aggregated_limits",
            "Limits under which new keys share a counter because memory is full.",
            store.aggregated_limits(now) as u64,
        )
    }
}
