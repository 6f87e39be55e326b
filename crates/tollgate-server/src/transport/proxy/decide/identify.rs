//! Builds a hit from a request: the values that rules, bans and load balancing need.
//!
//! Fields of the body come from a bounded prefix, which is forwarded unchanged.

use std::borrow::Cow;
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use hyper::StatusCode;
use hyper::body::Body;
use hyper::header::HeaderMap;
use tollgate::internal::hit;
use tollgate::internal::identity::{Attribute, FieldSource, address};
use tollgate::internal::request::fields;
use tollgate::internal::{EngineVerdict, PolicySnapshot};
use tollgate::{Hit, Time};

use crate::config::Balance;
use crate::gate::{Gate, GateSnapshot};
use crate::queue::RequestSender;
use crate::request_head;
use crate::response::ProblemDetails;
use crate::transport::proxy::RouteSnapshot;
use crate::transport::proxy::body::{BoxError, Upload};
use crate::transport::proxy::decide::content_type::{AmbiguousContentType, FormEncoding};
use crate::transport::proxy::decide::json::{self, Completeness, FieldValues, Nesting};
use crate::transport::proxy::decide::multipart;
use crate::transport::proxy::exchange::{ConnectionContext, ExchangeError, ProxiedRequest};
use crate::transport::proxy::upstream::balance;
use crate::transport::proxy::upstream::forward::ForwardError;
use crate::transport::proxy::wait::budget::{Budget, OverBudget};
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

/// Why the sender of a request cannot be identified.
pub enum IdentifyError {
    Body(BoxError),
    ContentType(AmbiguousContentType),
    /// The bodies that are being read take [`MAX_PREFIXES_BYTES`], or those of the client its share of that.
    TooManyBodies(OverBudget),
}

impl From<IdentifyError> for ExchangeError {
    fn from(error: IdentifyError) -> ExchangeError {
        match error {
            IdentifyError::Body(error) => ForwardError::from(error).into(),
            IdentifyError::ContentType(error) => ExchangeError::Ambiguous(error.into()),
            IdentifyError::TooManyBodies(OverBudget::Total) => ExchangeError::Problem(ProblemDetails::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many request bodies are being read for the fields in them: retry later",
            )),
            IdentifyError::TooManyBodies(OverBudget::Share) => ExchangeError::Problem(ProblemDetails::new(
                StatusCode::TOO_MANY_REQUESTS,
                "too many request bodies of this client are being read for the fields in them: retry later",
            )),
        }
    }
}

impl ConnectionContext {
    /// Decides the request, and charges it if it passes.
    pub async fn decide(&self, request: &mut ProxiedRequest) -> Result<ProxyDecision, IdentifyError> {
        let ProxiedRequest { parts, host, upload, route, snapshot, .. } = request;
        let gate = &self.proxy.gate;
        let policy = &snapshot.policy;
        let fields = &snapshot.fields;
        let client = self.peer.client(&parts.headers, snapshot.live.trust());
        let mut hit = request_head::hit(parts, host, client, fields);
        if !fields.body.is_empty() && !upload.is_end_stream() && needs_body(gate, policy, &hit, route) {
            let encoding = FormEncoding::of(&parts.headers).map_err(IdentifyError::ContentType)?;
            let payer = self.budget_client(&parts.headers, snapshot);
            let reading = BodyPrefix::read(upload, encoding, &self.proxy.body_prefixes, payer);
            let prefix = Box::pin(reading).await?;
            for (source, name) in &fields.body {
                let FieldValues { values, is_cut } = prefix.values(*source, name);
                let more = (is_cut && !values.is_empty()).then(|| unread_value(policy, client));
                for value in values.into_iter().chain(more) {
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
        let network = |ip| Some(address::group(ip, policy.settings().ipv6_prefix).to_string());
        let sender = hit::address(&hit).zip(identity);
        let sender = sender.map(|(ip, identity)| RequestSender { ip, network: network(ip), identity });
        Ok(ProxyDecision { verdict, decided_at: gate.decided_at(now), sticky, sender })
    }
}

impl ConnectionContext {
    /// The client whose share of memory for bodies a request takes; `None` if its address has no bound on connections
    /// either.
    pub fn budget_client(&self, headers: &HeaderMap, snapshot: &GateSnapshot) -> Option<IpAddr> {
        let client = self.peer.client(headers, snapshot.live.trust());
        Some(client).filter(|client| !client.is_loopback() && !snapshot.live.trusted.contains(*client))
    }
}

/// One more value of a field whose body is longer than what is read of it: another value may follow, which the server may
/// prefer. It is the same for all bodies of a client, so that a client gets no fresh counter by changing the first one,
/// and clients with long bodies do not share a counter.
fn unread_value(policy: &PolicySnapshot, client: IpAddr) -> String {
    format!("{{more}} {}", address::group(client, policy.settings().ipv6_prefix))
}

/// Whether the decision needs the body: it is read only if a matching rule, a ban or the balancing uses its fields.
fn needs_body(gate: &Gate, policy: &PolicySnapshot, hit: &Hit<'_>, route: &RouteSnapshot) -> bool {
    let balanced = match &route.config.balance {
        Balance::Hash(attribute) => {
            let source = policy.settings().identity.iter().find(|(name, _)| name == attribute);
            in_body(source.map_or(attribute, |(_, source)| source))
        }
        _ => false,
    };
    balanced || policy.depends_on(hit::target(hit), &gate.engine.ban_attributes(), in_body)
}

fn in_body(attribute: &Attribute) -> bool {
    matches!(attribute, Attribute::Field(FieldSource::Json | FieldSource::Form, _))
}

/// Fields behind this prefix are not found.
pub const MAX_PREFIX_BYTES: usize = 64 << 10;

/// Bound on the prefixes of all bodies together. Beyond it, requests whose bodies are needed are answered with 503.
pub const MAX_PREFIXES_BYTES: usize = 64 << 20;

/// The prefix of a body.
pub struct BodyPrefix<'b> {
    pub bytes: &'b [u8],
    pub end: Completeness,
    pub encoding: FormEncoding,
}

impl<'b> BodyPrefix<'b> {
    /// Reads as far as needed: to the end of the body, to the end of its JSON, or to the bound.
    pub async fn read(
        upload: &'b mut Upload,
        encoding: FormEncoding,
        budget: &Arc<Budget>,
        client: Option<IpAddr>,
    ) -> Result<BodyPrefix<'b>, IdentifyError> {
        let mut nesting = Nesting::default();
        let mut scanned = 0;
        let end = loop {
            upload.reserve_prefix(budget, client).map_err(IdentifyError::TooManyBodies)?;
            nesting.feed(&upload.prefix()[scanned..]);
            scanned = upload.prefix().len();
            let json_has_ended = nesting.is_closed() && encoding.may_be_json();
            if json_has_ended || scanned >= MAX_PREFIX_BYTES {
                break Completeness::Truncated;
            }
            if !upload.read_ahead().await.map_err(IdentifyError::Body)? {
                break Completeness::Complete;
            }
        };
        let bytes = &upload.prefix()[..scanned.min(MAX_PREFIX_BYTES)];
        Ok(BodyPrefix { bytes, end, encoding })
    }

    pub fn values(&self, source: FieldSource, name: &str) -> FieldValues {
        match source {
            FieldSource::Json => json::find(self.bytes, name, self.end),
            FieldSource::Form => {
                let is_cut = self.end == Completeness::Truncated && self.bytes.len() >= MAX_PREFIX_BYTES;
                FieldValues { values: self.form_values(name), is_cut }
            }
            _ => FieldValues { values: Vec::new(), is_cut: false },
        }
    }

    fn form_values(&self, name: &str) -> Vec<String> {
        let mut values = match &self.encoding {
            FormEncoding::UrlEncoded => self.pairs(name),
            FormEncoding::Multipart { boundary } => self.parts(boundary.as_deref(), name),
            FormEncoding::Other { boundary } => {
                let mut values = self.pairs(name);
                values.extend(self.parts(boundary.as_deref(), name));
                values
            }
        };
        let mut known = HashSet::new();
        values.retain(|value| known.insert(value.clone()));
        values
    }

    fn parts(&self, boundary: Option<&str>, name: &str) -> Vec<String> {
        boundary.map_or(Vec::new(), |boundary| multipart::fields(self.bytes, boundary, name))
    }

    fn pairs(&self, name: &str) -> Vec<String> {
        let text = String::from_utf8_lossy(self.bytes);
        let found = |pairs| fields::parameters(pairs, name).map(Cow::into_owned);
        if self.end == Completeness::Complete {
            return found(text.trim_ascii()).collect();
        }
        // A pair that is cut off has no complete value, except where `;` ends one. White space before the cut is part of
        // the pair.
        let text = text.trim_ascii_start();
        let (pairs, cut) = text.rsplit_once('&').unwrap_or(("", text));
        let pieces = cut.rsplit_once(';').map_or("", |(pieces, _)| pieces);
        found(pairs).chain(pieces.split(';').flat_map(found)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_read_up_to_its_last_whole_pair() {
        let values = |text: &str, end| {
            BodyPrefix { bytes: text.as_bytes(), end, encoding: FormEncoding::UrlEncoded }
                .values(FieldSource::Form, "email")
                .values
        };
        let whole = |text| values(text, Completeness::Complete);
        let cut = |text| values(text, Completeness::Truncated);
        assert_eq!(whole("a=1&email=ann%40example.com"), ["ann@example.com"]);
        assert!(cut("a=1&email=ann%40exam").is_empty());
        assert_eq!(cut("email=ann&a=1"), ["ann"]);
        assert_eq!(cut("email=ann;a=1"), ["ann"]);
        assert_eq!(cut("email=ann;email=bob;a=1"), ["ann", "bob"]);
        assert!(whole("email\t&").is_empty() && cut("email\t&").is_empty());
        assert_eq!(whole("email=ann&EMAIL=bob&email=ann"), ["ann", "bob"]);
    }

    #[test]
    fn a_content_type_that_is_not_a_forms_hides_no_field() {
        let body = b"--XX\r\nContent-Disposition: form-data; name=email\r\n\r\nann\r\n--XX--\r\n&email=bob";
        let values = |encoding| {
            let prefix = BodyPrefix { bytes: body, end: Completeness::Complete, encoding };
            prefix.values(FieldSource::Form, "email").values
        };
        let boundary = Some("XX".to_owned());
        assert_eq!(values(FormEncoding::Multipart { boundary: boundary.clone() }), ["ann"]);
        assert_eq!(values(FormEncoding::Other { boundary }), ["bob", "ann"]);
        assert_eq!(values(FormEncoding::UrlEncoded), ["bob"]);
    }

    #[tokio::test]
    async fn all_bodies_together_are_bounded_until_they_are_sent() {
        let budget = Budget::new(100);
        let upload = || Upload::from_bytes(vec![b'x'; 60].into());
        let read = async |upload: &mut Upload| {
            BodyPrefix::read(upload, FormEncoding::UrlEncoded, &budget, None).await.is_ok()
        };
        let [mut first, mut second] = [upload(), upload()];
        assert!(read(&mut first).await && read(&mut first).await, "reserved once");
        assert!(!read(&mut second).await, "there is no room for both");
        first.take_prefix();
        assert!(read(&mut second).await, "the first was sent");
        drop(second);
        assert!(read(&mut upload()).await, "the second was dropped");
    }
}
