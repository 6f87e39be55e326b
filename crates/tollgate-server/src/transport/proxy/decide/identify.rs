//! Builds a hit from a request: the values that rules, bans and load balancing need.
//!
//! Fields of the body come from a bounded prefix, which is forwarded unchanged.

use std::borrow::Cow;
use std::collections::HashSet;

use hyper::body::Body;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use tollgate::internal::hit;
use tollgate::internal::identity::{Attribute, FieldSource};
use tollgate::internal::request::fields;
use tollgate::internal::{EngineVerdict, PolicySnapshot};
use tollgate::{Hit, Time};

use crate::config::Balance;
use crate::queue::RequestSender;
use crate::request_head;
use crate::transport::proxy::RouteSnapshot;
use crate::transport::proxy::body::{BoxError, Upload};
use crate::transport::proxy::decide::json::{self, Nesting};
use crate::transport::proxy::decide::multipart;
use crate::transport::proxy::exchange::{ConnectionContext, ProxiedRequest};
use crate::transport::proxy::upstream::balance;
use crate::transport::proxy::wait::enqueue::{self, is_queueable};

/// The decision about a request.
pub struct ProxyDecision {
    pub verdict: EngineVerdict,
    /// Time of the decision; waits count from here.
    pub decided_at: Time,
    /// The hash by which the request sticks to an upstream.
    pub sticky: Option<u64>,
    /// The sender's identity, if the request is to be enqueued.
    pub sender: Option<RequestSender>,
}

impl ConnectionContext {
    /// Decides the request, and charges it if it passes.
    pub async fn decide(&self, request: &mut ProxiedRequest) -> Result<ProxyDecision, BoxError> {
        let ProxiedRequest { parts, host, upload, route, snapshot, .. } = request;
        let gate = &self.proxy.gate;
        let policy = &snapshot.policy;
        let fields = &snapshot.fields;
        let client = self.peer.client(&parts.headers, route.trust());
        let mut hit = request_head::hit(parts, host, client, fields);
        if !fields.body.is_empty() && !upload.is_end_stream() && needs_body(policy, &hit, route) {
            let prefix = Box::pin(BodyPrefix::read(upload, parts.headers.get(CONTENT_TYPE))).await?;
            for (source, name) in &fields.body {
                for value in prefix.values(*source, name) {
                    hit = hit.field(*source, name.as_ref(), value);
                }
            }
        }
        // Read after the body, which may have taken long.
        let now = gate.now();
        let hit = snapshot.identify(hit, now);
        let sticky = match &route.config.balance {
            Balance::Hash(attribute) => policy.value(&hit, attribute).map(|value| balance::hash_key(&value)),
            _ => None,
        };
        let verdict = gate.check(snapshot, &hit, now).await;
        let later = self.proxy.request_queue.is_some() && !verdict.allowed && is_queueable(&verdict);
        let identity = later.then(|| enqueue::resolve_identity(policy, &hit));
        let sender = hit::address(&hit).zip(identity).map(|(ip, identity)| RequestSender { ip, identity });
        Ok(ProxyDecision { verdict, decided_at: now, sticky, sender })
    }
}

/// Whether the decision needs the body: it is read only if a matching rule or the balancing uses its fields.
fn needs_body(policy: &PolicySnapshot, hit: &Hit<'_>, route: &RouteSnapshot) -> bool {
    let balanced = match &route.config.balance {
        Balance::Hash(attribute) => {
            let source = policy.settings().identity.iter().find(|(name, _)| name == attribute);
            in_body(source.map_or(attribute, |(_, source)| source))
        }
        _ => false,
    };
    balanced || policy.depends_on(hit::target(hit), in_body)
}

fn in_body(attribute: &Attribute) -> bool {
    matches!(attribute, Attribute::Field(FieldSource::Json | FieldSource::Form, _))
}

/// Fields behind this prefix are not found.
pub const MAX_PREFIX_BYTES: usize = 64 << 10;

/// The prefix of a body.
pub struct BodyPrefix {
    bytes: Vec<u8>,
    is_complete: bool,
    encoding: FormEncoding,
}

/// The encoding of a body's fields.
enum FormEncoding {
    UrlEncoded,
    Multipart {
        boundary: String,
    },
    /// The content type is not that of a form.
    Other,
}

impl FormEncoding {
    fn of(content_type: Option<&HeaderValue>) -> FormEncoding {
        let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let kind = content_type.split(';').next().unwrap_or_default().trim();
        if kind.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
            return FormEncoding::UrlEncoded;
        }
        let boundary = multipart::boundary(content_type);
        boundary.map_or(FormEncoding::Other, |boundary| FormEncoding::Multipart {
            boundary: boundary.into_owned(),
        })
    }
}

impl BodyPrefix {
    /// Reads as far as needed: to the end of the body, to the end of its JSON, or to the bound.
    pub async fn read(
        upload: &mut Upload,
        content_type: Option<&HeaderValue>,
    ) -> Result<BodyPrefix, BoxError> {
        let mut nesting = Nesting::default();
        let encoding = FormEncoding::of(content_type);
        let mut scanned = 0;
        let is_complete = loop {
            nesting.feed(&upload.prefix()[scanned..]);
            scanned = upload.prefix().len();
            let json_has_ended = nesting.is_closed() && matches!(encoding, FormEncoding::Other);
            if json_has_ended || scanned >= MAX_PREFIX_BYTES {
                break false;
            }
            if !upload.read_ahead().await? {
                break true;
            }
        };
        let bytes = upload.prefix()[..scanned.min(MAX_PREFIX_BYTES)].to_vec();
        Ok(BodyPrefix { bytes, is_complete, encoding })
    }

    /// A prefix that was read elsewhere.
    #[cfg(feature = "testing")]
    pub fn of(content_type: Option<&HeaderValue>, bytes: &[u8], is_complete: bool) -> BodyPrefix {
        BodyPrefix { bytes: bytes.to_vec(), is_complete, encoding: FormEncoding::of(content_type) }
    }

    /// The values of a field, without duplicates.
    pub fn values(&self, source: FieldSource, name: &str) -> Vec<String> {
        match source {
            FieldSource::Json => json::fields(
                &self.bytes,
                name,
                if self.is_complete { json::Completeness::Complete } else { json::Completeness::Truncated },
            ),
            FieldSource::Form => self.form_values(name),
            _ => Vec::new(),
        }
    }

    fn form_values(&self, name: &str) -> Vec<String> {
        let mut values = match &self.encoding {
            FormEncoding::Multipart { boundary } => multipart::fields(&self.bytes, boundary, name),
            FormEncoding::UrlEncoded | FormEncoding::Other => self.pairs(name),
        };
        let mut known = HashSet::new();
        values.retain(|value| known.insert(value.clone()));
        values
    }

    fn pairs(&self, name: &str) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.bytes);
        // A pair that is cut off has no complete value, and white space before it is part of its name or value.
        let text = match self.is_complete {
            true => text.trim_ascii(),
            false => text.rsplit_once('&').map_or("", |(pairs, _)| pairs).trim_ascii_start(),
        };
        fields::parameters(text, name).map(Cow::into_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_read_up_to_its_last_whole_pair() {
        let values = |text: &str, is_complete| {
            BodyPrefix { bytes: text.as_bytes().to_vec(), is_complete, encoding: FormEncoding::UrlEncoded }
                .values(FieldSource::Form, "email")
        };
        assert_eq!(values("a=1&email=ann%40example.com", true), ["ann@example.com"]);
        assert!(values("a=1&email=ann%40exam", false).is_empty());
        assert_eq!(values("email=ann&a=1", false), ["ann"]);
        assert!(values("email\t&", true).is_empty() && values("email\t&", false).is_empty());
        assert_eq!(values("email=ann&EMAIL=bob&email=ann", true), ["ann", "bob"]);
    }
}
