//! Builds a hit from a request: the values that rules, bans and load balancing need.

use std::borrow::Cow;

use hyper::body::Body;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use tollgate::internal::hit;
use tollgate::internal::identity::{Attribute, FieldSource};
use tollgate::internal::{EngineVerdict, PolicySnapshot};
use tollgate::{Hit, Time};

use crate::config::Balance;
use crate::gate::FieldSelection;
use crate::queue::RequestSender;
use crate::transport::proxy::RouteSnapshot;
use crate::transport::proxy::body::BoxError;
use crate::transport::proxy::decide::body_fields::BodyPrefix;
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
        let mut hit = self.hit(parts, host, route, fields);
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

    fn hit<'r>(
        &self,
        parts: &'r Parts,
        host: &'r HeaderValue,
        route: &RouteSnapshot,
        fields: &'r FieldSelection,
    ) -> Hit<'r> {
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let client = self.peer.client(&parts.headers, route.trust());
        let mut hit = Hit::on(parts.method.as_str(), host.to_str().unwrap_or_default(), path).ip(client);
        for name in &fields.headers {
            for value in parts.headers.get_all(name) {
                hit = hit.field(FieldSource::Header, name.as_str(), text_of(value));
            }
        }
        hit
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

fn text_of(value: &HeaderValue) -> Cow<'_, str> {
    String::from_utf8_lossy(value.as_bytes())
}
