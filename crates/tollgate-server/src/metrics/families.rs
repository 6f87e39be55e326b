//! The metrics of the page as values, for exporters.

use std::fmt;

use crate::metrics::histogram::HistogramSnapshot;
use crate::metrics::writer::MetricKind;

/// One metric with its samples.
#[derive(Debug)]
pub struct MetricFamily {
    pub name: String,
    pub help: String,
    pub kind: MetricKind,
    pub points: Vec<MetricPoint>,
}

#[derive(Debug)]
pub struct MetricPoint {
    pub labels: Vec<(String, String)>,
    pub value: PointValue,
}

#[derive(Debug)]
pub enum PointValue {
    Integer(u64),
    Double(f64),
    Histogram(Box<HistogramSnapshot>),
}

impl MetricFamily {
    pub(super) fn new(name: &str, help: &str, kind: MetricKind) -> MetricFamily {
        MetricFamily { name: name.to_owned(), help: help.to_owned(), kind, points: Vec::new() }
    }

    /// Never fails; the page may.
    pub(super) fn add(&mut self, labels: &[(&str, &str)], value: PointValue) -> fmt::Result {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        self.points.push(MetricPoint { labels: labels.collect(), value });
        Ok(())
    }
}
