//! `/json`: Envoy's rate limit requests in the JSON form of their messages, as envoyproxy/ratelimit answers them.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};
use tollgate::internal::headers::Headers;

use crate::envoy::{
    self, Descriptor, DescriptorStatus, Entry, LimitOverride, LimitUnit, RateLimitAnswer, RateLimitRequest,
};
use crate::gate::Gate;
use crate::json_body::{self, JsonObject};
use crate::response::ProblemDetails;
use crate::trace_id::TraceId;

pub const PATH: &str = "/json";

/// Decides a request and writes the answer to `out`: 200, or 429 if it is over a limit. After an error nothing is
/// charged.
pub async fn decide(
    gate: &Gate,
    body: &[u8],
    trace: Option<TraceId>,
    out: &mut Vec<u8>,
) -> Result<StatusCode, ProblemDetails> {
    let JsonObject(request) = json_body::parse::<JsonObject<RequestJson<'_>>>(body)?;
    let request = request.into_request();
    let answer = envoy::decide(gate, &request, trace).await;
    let answer = answer.map_err(|error| ProblemDetails::bad_field("body", error.to_string()))?;
    serde_json::to_writer(out, &AnswerJson::new(&request, &answer)).expect("an answer is valid JSON");
    Ok(if answer.is_over_limit() { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK })
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct RequestJson<'a> {
    #[serde(borrow)]
    domain: Cow<'a, str>,
    #[serde(borrow)]
    descriptors: Vec<DescriptorJson<'a>>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<Number<u32>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct DescriptorJson<'a> {
    #[serde(borrow)]
    entries: Vec<EntryJson<'a>>,
    limit: Option<LimitJson>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<Number<u64>>,
    #[serde(alias = "isNegativeHits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct EntryJson<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(borrow)]
    value: Cow<'a, str>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct LimitJson {
    #[serde(alias = "requestsPerUnit")]
    requests_per_unit: Option<Number<u32>>,
    unit: UnitJson,
}

/// A number, which may be written as a text.
#[derive(Clone, Copy, Default)]
struct Number<T>(T);

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Number<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
        let number = number.and_then(|number| T::try_from(number).ok()).map(Number);
        let bits = 8 * size_of::<T>();
        number.ok_or_else(|| serde::de::Error::custom(format!("expected a number from 0, of {bits} bits")))
    }
}

/// The name of a unit, or its number.
#[derive(Default)]
struct UnitJson(Option<LimitUnit>);

impl<'de> Deserialize<'de> for UnitJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let named = value.as_str().and_then(LimitUnit::parse);
        let numbered = value.as_u64().and_then(|number| LimitUnit::from_number(u32::try_from(number).ok()?));
        match named.or(numbered) {
            Some(unit) => Ok(UnitJson(Some(unit))),
            None if value == "UNKNOWN" || value == 0 || value.is_null() => Ok(UnitJson(None)),
            None => Err(serde::de::Error::custom("expected SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR")),
        }
    }
}

impl<'a> RequestJson<'a> {
    fn into_request(self) -> RateLimitRequest<'a> {
        let entry = |EntryJson { key, value }| Entry { key, value };
        let limit = |LimitJson { requests_per_unit, unit }: LimitJson| {
            let Number(requests_per_unit) = requests_per_unit.unwrap_or_default();
            Some(LimitOverride { requests_per_unit, unit: unit.0? })
        };
        let descriptor = |one: DescriptorJson<'a>| Descriptor {
            entries: one.entries.into_iter().map(entry).collect(),
            limit: one.limit.and_then(limit),
            hits_addend: one.hits_addend.map(|Number(number)| number),
            is_refund: one.is_negative_hits.unwrap_or_default(),
        };
        RateLimitRequest {
            domain: self.domain,
            descriptors: self.descriptors.into_iter().map(descriptor).collect(),
            hits_addend: self.hits_addend.unwrap_or_default().0,
        }
    }
}

fn code(is_over_limit: bool) -> &'static str {
    if is_over_limit { "OVER_LIMIT" } else { "OK" }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AnswerJson<'a> {
    overall_code: &'static str,
    #[serde(serialize_with = "statuses_json")]
    statuses: &'a [DescriptorStatus],
    #[serde(skip_serializing_if = "has_no_headers", serialize_with = "headers_json")]
    response_headers_to_add: &'a Headers,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dynamic_metadata: Option<Value>,
}

#[derive(Serialize)]
struct HeaderJson<'a> {
    key: &'a str,
    value: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusJson<'a> {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<CurrentLimitJson<'a>>,
    limit_remaining: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<Seconds>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CurrentLimitJson<'a> {
    requests_per_unit: u32,
    unit: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
}

/// A duration as messages have it in JSON.
struct Seconds(u64);

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}s", self.0))
    }
}

fn has_no_headers(headers: &Headers) -> bool {
    headers.iter().next().is_none()
}

fn headers_json<S: Serializer>(headers: &&Headers, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(headers.iter().map(|(key, value)| HeaderJson { key, value }))
}

fn statuses_json<S: Serializer>(statuses: &&[DescriptorStatus], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(statuses.iter().map(StatusJson::of))
}

impl<'a> AnswerJson<'a> {
    fn new(request: &RateLimitRequest<'_>, answer: &'a RateLimitAnswer) -> AnswerJson<'a> {
        AnswerJson {
            overall_code: code(answer.is_over_limit()),
            statuses: &answer.statuses,
            response_headers_to_add: &answer.headers,
            raw_body: answer.body.as_ref().map(|body| STANDARD.encode(body.as_bytes())),
            dynamic_metadata: answer.quota_violations().map(|violations| metadata_json(request, &violations)),
        }
    }
}

impl<'a> StatusJson<'a> {
    fn of(status: &'a DescriptorStatus) -> StatusJson<'a> {
        let current_limit = status.limit.as_ref().map(|limit| CurrentLimitJson {
            requests_per_unit: limit.requests_per_unit,
            unit: limit.unit.map_or("UNKNOWN", LimitUnit::name),
            name: &limit.name,
        });
        StatusJson {
            code: code(status.is_over_limit),
            current_limit,
            limit_remaining: status.remaining,
            duration_until_reset: status.reset_after.map(|reset_after| Seconds(reset_after.as_secs())),
        }
    }
}

/// What envoyproxy/ratelimit reports of limits in quota mode.
fn metadata_json(request: &RateLimitRequest<'_>, violations: &[usize]) -> Value {
    let entry = |Entry { key, value }: &Entry<'_>| format!("{key}={value}");
    let entries = |one: &Descriptor<'_>| one.entries.iter().map(entry).collect::<Vec<_>>();
    let descriptors = request.descriptors.iter().map(|one| json!({ "entries": entries(one) }));
    let mut json = json!({
        "domain": request.domain,
        "descriptors": descriptors.collect::<Vec<_>>(),
        "quotaModeEnabled": true,
        "quotaModeViolations": violations,
    });
    if request.hits_addend > 0 {
        json["hitsAddend"] = request.hits_addend.into();
    }
    json
}
