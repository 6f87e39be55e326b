//! Writes metrics by their whole names, as they appear on the page: OpenMetrics describes a counter without `_total` and
//! an info without `_info`. The feature `otlp` has a second output: the same metrics as values.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::{CounterWithExemplar, Exemplar};
use tollgate::Time;
use tollgate::internal::verdict::VerdictId;

use crate::metrics::LatencyHistogram;
#[cfg(feature = "otlp")]
use crate::metrics::families::{MetricFamily, PointValue};
use crate::metrics::histogram::HistogramSnapshot;

const NO_EXEMPLAR: Option<&Exemplar<NoLabelSet, f64>> = None;

pub struct MetricsWriter<'e>(MetricsOutput<'e>);

enum MetricsOutput<'e> {
    Page(DescriptorEncoder<'e>),
    #[cfg(feature = "otlp")]
    Families(&'e mut Vec<MetricFamily>),
}

/// The samples of one metric.
pub struct Samples<'e> {
    output: SamplesOutput<'e>,
    kind: MetricKind,
}

enum SamplesOutput<'e> {
    Page(MetricEncoder<'e>),
    #[cfg(feature = "otlp")]
    Family(&'e mut MetricFamily),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetricKind {
    /// A constant 1 whose labels carry the information.
    Info,
    Counter,
    Gauge,
    /// A counter under a name that the format does not allow for counters.
    Untyped,
    Histogram,
}

impl MetricKind {
    fn page_type(self) -> MetricType {
        match self {
            MetricKind::Info => MetricType::Info,
            MetricKind::Counter => MetricType::Counter,
            MetricKind::Gauge => MetricType::Gauge,
            MetricKind::Untyped => MetricType::Unknown,
            MetricKind::Histogram => MetricType::Histogram,
        }
    }

    /// How names of this kind end; descriptions on the page leave it out.
    fn suffix(self) -> &'static str {
        match self {
            MetricKind::Info => "_info",
            MetricKind::Counter => "_total",
            MetricKind::Gauge | MetricKind::Untyped | MetricKind::Histogram => "",
        }
    }
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

impl<'e> MetricsWriter<'e> {
    pub(super) fn page(encoder: DescriptorEncoder<'e>) -> MetricsWriter<'e> {
        MetricsWriter(MetricsOutput::Page(encoder))
    }

    #[cfg(feature = "otlp")]
    pub(super) fn families(families: &'e mut Vec<MetricFamily>) -> MetricsWriter<'e> {
        MetricsWriter(MetricsOutput::Families(families))
    }

    fn begin<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        kind: MetricKind,
    ) -> Result<Samples<'s>, fmt::Error> {
        let output = match &mut self.0 {
            MetricsOutput::Page(encoder) => {
                let described = name.strip_suffix(kind.suffix()).expect("the name ends as its type demands");
                SamplesOutput::Page(encoder.encode_descriptor(described, help, None, kind.page_type())?)
            }
            #[cfg(feature = "otlp")]
            MetricsOutput::Families(families) => {
                families.push(MetricFamily::new(name, help, kind));
                SamplesOutput::Family(families.last_mut().expect("one was added"))
            }
        };
        Ok(Samples { output, kind })
    }

    pub(super) fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) -> fmt::Result {
        match self.begin(name, help, MetricKind::Info)?.output {
            SamplesOutput::Page(mut encoder) => encoder.encode_info(&labels),
            #[cfg(feature = "otlp")]
            SamplesOutput::Family(family) => family.add(labels, PointValue::Integer(1)),
        }
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.counters(name, help)?.sample(&[], value)
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.gauges(name, help)?.sample(&[], value)
    }

    pub(super) fn counter_seconds(&mut self, name: &str, help: &str, seconds: f64) -> fmt::Result {
        self.counters(name, help)?.sample_ratio(&[], seconds)
    }

    pub(super) fn gauge_seconds(&mut self, name: &str, help: &str, seconds: f64) -> fmt::Result {
        self.gauges(name, help)?.sample_ratio(&[], seconds)
    }

    pub fn counters<'s>(&'s mut self, name: &'s str, help: &str) -> Result<Samples<'s>, fmt::Error> {
        self.begin(name, help, MetricKind::Counter)
    }

    pub(super) fn gauges<'s>(&'s mut self, name: &'s str, help: &str) -> Result<Samples<'s>, fmt::Error> {
        self.begin(name, help, MetricKind::Gauge)
    }

    pub(super) fn untyped<'s>(&'s mut self, name: &'s str, help: &str) -> Result<Samples<'s>, fmt::Error> {
        self.begin(name, help, MetricKind::Untyped)
    }

    pub(super) fn histogram(&mut self, name: &str, help: &str, latencies: &LatencyHistogram) -> fmt::Result {
        self.histogram_of(name, help, &[], latencies.snapshot())
    }

    /// A histogram of values that were read before.
    pub(super) fn histogram_of(
        &mut self,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
        values: HistogramSnapshot,
    ) -> fmt::Result {
        match self.begin(name, help, MetricKind::Histogram)?.output {
            SamplesOutput::Page(mut encoder) => {
                let HistogramSnapshot { sum_seconds, count, buckets } = values;
                let encode = |encoder: &mut MetricEncoder<'_>| {
                    encoder.encode_histogram::<NoLabelSet>(sum_seconds, count, &buckets, None)
                };
                if labels.is_empty() {
                    encode(&mut encoder)
                } else {
                    encode(&mut encoder.encode_family(&labels)?)
                }
            }
            #[cfg(feature = "otlp")]
            SamplesOutput::Family(family) => family.add(labels, PointValue::Histogram(Box::new(values))),
        }
    }
}

impl Samples<'_> {
    pub fn sample(&mut self, labels: &[(&str, &str)], value: u64) -> fmt::Result {
        let kind = self.kind;
        match &mut self.output {
            SamplesOutput::Page(encoder) if labels.is_empty() => encode(encoder, kind, value),
            SamplesOutput::Page(encoder) => encode(&mut encoder.encode_family(&labels)?, kind, value),
            #[cfg(feature = "otlp")]
            SamplesOutput::Family(family) => family.add(labels, PointValue::Integer(value)),
        }
    }

    /// A sample of a counter.
    pub(super) fn sample_with_exemplar(
        &mut self,
        labels: &[(&str, &str)],
        value: u64,
        exemplar: Option<&DecisionExemplar>,
    ) -> fmt::Result {
        match (&mut self.output, exemplar) {
            (SamplesOutput::Page(encoder), Some(DecisionExemplar(counter))) => {
                encoder.encode_family(&labels)?.encode_counter(&value, counter.get().1.as_ref())
            }
            _ => self.sample(labels, value),
        }
    }

    /// A sample that is not a whole number.
    pub(super) fn sample_ratio(&mut self, labels: &[(&str, &str)], value: f64) -> fmt::Result {
        let kind = self.kind;
        match &mut self.output {
            SamplesOutput::Page(encoder) if labels.is_empty() => encode_double(encoder, kind, value),
            SamplesOutput::Page(encoder) => encode_double(&mut encoder.encode_family(&labels)?, kind, value),
            #[cfg(feature = "otlp")]
            SamplesOutput::Family(family) => family.add(labels, PointValue::Double(value)),
        }
    }
}

fn encode(encoder: &mut MetricEncoder<'_>, kind: MetricKind, value: u64) -> fmt::Result {
    match kind {
        MetricKind::Counter => encoder.encode_counter(&value, NO_EXEMPLAR),
        _ => encoder.encode_gauge(&value),
    }
}

fn encode_double(encoder: &mut MetricEncoder<'_>, kind: MetricKind, value: f64) -> fmt::Result {
    match kind {
        MetricKind::Counter => encoder.encode_counter(&value, NO_EXEMPLAR),
        _ => encoder.encode_gauge(&value),
    }
}
