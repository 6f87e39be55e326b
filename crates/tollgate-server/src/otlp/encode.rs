//! Messages of OTLP 1 (`opentelemetry/proto/collector/{trace,metrics}/v1`), written field by field: of their many fields
//! a dozen are used.

use tollgate::Time;

use super::span::SpanRecord;
use crate::metrics::{HistogramSnapshot, MetricFamily, MetricKind, PointValue};
use crate::transport::grpc::WriteFields;

const SCOPE: &str = "tollgate";
/// The name of a decision's span.
const SPAN_NAME: &str = "tollgate.decision";
const KIND_INTERNAL: u64 = 1;
const CUMULATIVE: u64 = 2;

/// What sends the messages.
pub struct Resource<'r> {
    pub service_name: &'r str,
    pub node: u32,
}

pub struct ExportedSpan {
    pub id: [u8; 8],
    pub record: SpanRecord,
}

/// An `ExportTraceServiceRequest`.
pub fn traces(resource: &Resource<'_>, spans: &[ExportedSpan]) -> Vec<u8> {
    in_resource(resource, |scope| {
        for span in spans {
            scope.put_message(2, |message| write_span(message, span));
        }
    })
}

/// An `ExportMetricsServiceRequest`.
pub fn metrics(resource: &Resource<'_>, families: &[MetricFamily], started: Time, now: Time) -> Vec<u8> {
    in_resource(resource, |scope| {
        for family in families {
            scope.put_message(2, |message| write_family(message, family, started, now));
        }
    })
}

/// Both requests have the same frame: a resource, and in it one scope.
fn in_resource(resource: &Resource<'_>, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut request = Vec::new();
    request.put_message(1, |of_resource| {
        of_resource.put_message(1, |attributes| {
            put_attribute(attributes, 1, "service.name", AttributeValue::Text(resource.service_name));
            put_attribute(attributes, 1, "service.version", AttributeValue::Text(env!("CARGO_PKG_VERSION")));
            let node = format!("{:08x}", resource.node);
            put_attribute(attributes, 1, "service.instance.id", AttributeValue::Text(&node));
        });
        of_resource.put_message(2, |scope| {
            scope.put_message(1, |name| {
                name.put_text(1, SCOPE);
                name.put_text(2, env!("CARGO_PKG_VERSION"));
            });
            write(scope);
        });
    });
    request
}

enum AttributeValue<'v> {
    Text(&'v str),
    Bool(bool),
    Integer(u64),
}

fn put_attribute(message: &mut Vec<u8>, number: u32, key: &str, value: AttributeValue<'_>) {
    message.put_message(number, |attribute| {
        attribute.put_text(1, key);
        attribute.put_message(2, |any| match value {
            AttributeValue::Text(text) => any.put_bytes(1, text.as_bytes()),
            AttributeValue::Bool(value) => put_member(any, 2, u64::from(value)),
            AttributeValue::Integer(value) => put_member(any, 3, value),
        });
    });
}

/// A varint that is a member of a oneof: also if it is zero. Numbers are below 16, so that the tag is one byte.
fn put_member(message: &mut Vec<u8>, number: u8, value: u64) {
    match value {
        0 => message.extend([number << 3, 0]),
        value => message.put_varint(number.into(), value),
    }
}

/// A `fixed64`. Numbers are below 16, so that the tag is one byte.
fn put_fixed64(message: &mut Vec<u8>, number: u8, value: u64) {
    message.push(number << 3 | 1);
    message.extend(value.to_le_bytes());
}

fn write_span(message: &mut Vec<u8>, ExportedSpan { id, record }: &ExportedSpan) {
    message.put_bytes(1, &record.trace.trace_bytes());
    message.put_bytes(2, id);
    message.put_bytes(4, &record.trace.parent_bytes());
    message.put_text(5, SPAN_NAME);
    message.put_varint(6, KIND_INTERNAL);
    put_fixed64(message, 7, record.begun.nanos());
    put_fixed64(message, 8, record.ended.nanos());
    let mut put = |key: &str, value: AttributeValue<'_>| put_attribute(message, 9, key, value);
    put("tollgate.decision_id", AttributeValue::Text(&record.id.to_string()));
    put("tollgate.allowed", AttributeValue::Bool(record.allowed));
    put("tollgate.reason", AttributeValue::Text(record.reason.name()));
    if let Some(rule) = &record.rule {
        put("tollgate.rule", AttributeValue::Text(rule.as_str()));
    }
    put("tollgate.cost", AttributeValue::Integer(record.cost));
    if let Some(remaining) = record.remaining {
        put("tollgate.remaining", AttributeValue::Integer(remaining));
    }
}

fn write_family(message: &mut Vec<u8>, family: &MetricFamily, started: Time, now: Time) {
    message.put_text(1, &family.name);
    message.put_text(2, &family.help);
    let (number, is_cumulative) = match family.kind {
        MetricKind::Info | MetricKind::Gauge | MetricKind::Untyped => (5, false),
        MetricKind::Counter => (7, true),
        MetricKind::Histogram => (9, true),
    };
    message.put_message(number, |data| {
        for point in &family.points {
            data.put_message(1, |message| {
                put_fixed64(message, 2, started.nanos());
                put_fixed64(message, 3, now.nanos());
                let labels = match &point.value {
                    PointValue::Integer(value) => {
                        put_fixed64(message, 6, *value);
                        7
                    }
                    PointValue::Double(value) => {
                        message.put_double(4, *value);
                        7
                    }
                    PointValue::Histogram(values) => {
                        write_histogram(message, values);
                        9
                    }
                };
                for (name, value) in &point.labels {
                    put_attribute(message, labels, name, AttributeValue::Text(value));
                }
            });
        }
        if is_cumulative {
            data.put_varint(2, CUMULATIVE);
        }
        if family.kind == MetricKind::Counter {
            data.put_varint(3, 1); // monotonic
        }
    });
}

fn write_histogram(message: &mut Vec<u8>, values: &HistogramSnapshot) {
    put_fixed64(message, 4, values.count);
    message.put_double(5, values.sum_seconds);
    message.put_message(6, |packed| {
        values.buckets.iter().for_each(|(_, count)| packed.extend(count.to_le_bytes()));
    });
    // The last bucket has no bound.
    message.put_message(7, |packed| {
        let bounds = values.buckets.iter().map(|(bound, _)| bound).filter(|bound| bound.is_finite());
        bounds.for_each(|bound| packed.extend(bound.to_le_bytes()));
    });
}
