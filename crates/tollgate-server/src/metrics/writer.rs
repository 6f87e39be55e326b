//! Writes metrics by their whole names, as they appear on the page: OpenMetrics describes a counter without `_total` and
//! an info without `_info`.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::{CounterWithExemplar, Exemplar};
use tollgate::Time;
use tollgate::internal::verdict::VerdictId;

use crate::metrics::LatencyHistogram;

const NO_EXEMPLAR: Option<&Exemplar<NoLabelSet, f64>> = None;

pub(super) struct MetricsWriter<'e>(DescriptorEncoder<'e>);

/// The samples of one metric.
pub(super) struct Samples<'e> {
    encoder: MetricEncoder<'e>,
    kind: SampleKind,
}

/// A decision that a counter has counted.
pub(super) struct DecisionExemplar(CounterWithExemplar<[(&'static str, String); 1]>);

impl DecisionExemplar {
    pub(super) fn new(id: VerdictId, at: Time) -> DecisionExemplar {
        // Only the library's own counter makes exemplars.
        let counter = CounterWithExemplar::default();
        let at = UNIX_EPOCH + Duration::from_nanos(at.nanos());
        counter.inc_by(1, Some([("decision_id", id.to_string())]), Some(at));
        DecisionExemplar(counter)
    }
}

#[derive(Clone, Copy)]
enum SampleKind {
    Counter,
    Gauge,
}

impl<'e> MetricsWriter<'e> {
    pub(super) fn new(encoder: DescriptorEncoder<'e>) -> MetricsWriter<'e> {
        MetricsWriter(encoder)
    }

    /// A constant 1 whose labels carry the information.
    pub(super) fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) -> fmt::Result {
        let name = without(name, "_info");
        self.0.encode_descriptor(name, help, None, MetricType::Info)?.encode_info(&labels)
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.counters(name, help)?.sample(&[], value)
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.gauges(name, help)?.sample(&[], value)
    }

    pub(super) fn counter_seconds(&mut self, name: &str, help: &str, seconds: f64) -> fmt::Result {
        self.counters(name, help)?.encoder.encode_counter(&seconds, NO_EXEMPLAR)
    }

    pub(super) fn gauge_seconds(&mut self, name: &str, help: &str, seconds: f64) -> fmt::Result {
        self.gauges(name, help)?.encoder.encode_gauge(&seconds)
    }

    pub(super) fn counters<'s>(&'s mut self, name: &'s str, help: &str) -> Result<Samples<'s>, fmt::Error> {
        let encoder = self.0.encode_descriptor(without(name, "_total"), help, None, MetricType::Counter)?;
        Ok(Samples { encoder, kind: SampleKind::Counter })
    }

    pub(super) fn gauges<'s>(&'s mut self, name: &'s str, help: &str) -> Result<Samples<'s>, fmt::Error> {
        let encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        Ok(Samples { encoder, kind: SampleKind::Gauge })
    }

    pub(super) fn histogram(&mut self, name: &str, help: &str, latencies: &LatencyHistogram) -> fmt::Result {
        let snapshot = latencies.snapshot();
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        encoder.encode_histogram::<NoLabelSet>(snapshot.sum_seconds, snapshot.count, &snapshot.buckets, None)
    }
}

impl Samples<'_> {
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: u64) -> fmt::Result {
        if labels.is_empty() {
            return encode(&mut self.encoder, self.kind, value);
        }
        encode(&mut self.encoder.encode_family(&labels)?, self.kind, value)
    }

    /// A sample of a counter.
    pub(super) fn sample_with_exemplar(
        &mut self,
        labels: &[(&str, &str)],
        value: u64,
        exemplar: Option<&DecisionExemplar>,
    ) -> fmt::Result {
        let Some(DecisionExemplar(counter)) = exemplar else { return self.sample(labels, value) };
        self.encoder.encode_family(&labels)?.encode_counter(&value, counter.get().1.as_ref())
    }

    /// A sample of a gauge.
    pub(super) fn sample_ratio(&mut self, labels: &[(&str, &str)], value: f64) -> fmt::Result {
        self.encoder.encode_family(&labels)?.encode_gauge(&value)
    }
}

fn encode(encoder: &mut MetricEncoder<'_>, kind: SampleKind, value: u64) -> fmt::Result {
    match kind {
        SampleKind::Counter => encoder.encode_counter(&value, NO_EXEMPLAR),
        SampleKind::Gauge => encoder.encode_gauge(&value),
    }
}

fn without<'n>(name: &'n str, suffix: &str) -> &'n str {
    name.strip_suffix(suffix).expect("the name ends as its type demands")
}
