//! From a request to a hit: what rules, bans and balancing ask of it.

use std::borrow::Cow;

use hyper::body::Body;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use tollgate::identity::{Attribute, Source};
use tollgate::{Hit, Time, Verdict};

use crate::config::Balance;
use crate::gate::Asked;
use crate::queue::Sender;
use crate::transport::proxy::body::BodyError;
use crate::transport::proxy::enqueue::{self, is_for_later};
use crate::transport::proxy::exchange::{Entrance, Visit};
use crate::transport::proxy::fields::Prefix;
use crate::transport::proxy::{Route, balance};

/// What was decided about a request.
pub struct Decided {
    pub verdict: Verdict,
    /// When: its waits count from here.
    pub at: Time,
    /// What it sticks to an upstream by.
    pub sticky: Option<u64>,
    /// Who sent it, where it is to be put aside.
    pub sender: Option<Sender>,
}

impl Entrance {
    /// Charges the request if it passes.
    pub async fn decide(&self, visit: &mut Visit) -> Result<Decided, BodyError> {
        let Visit { parts, host, upload, route, .. } = visit;
        let gate = &self.proxy.gate;
        let asked = gate.asked();
        let mut hit = self.hit(parts, host, route, &asked);
        if !asked.body.is_empty() && !upload.is_end_stream() && self.looks_into_body(&hit, route) {
            let prefix = Box::pin(Prefix::read(upload, parts.headers.get(CONTENT_TYPE))).await?;
            for (source, name) in &asked.body {
                for value in prefix.values(*source, name) {
                    hit = hit.field(*source, name.as_ref(), value);
                }
            }
        }
        // A body may have taken its time.
        let now = gate.now();
        let hit = gate.identify(hit, now);
        let sticky = match &route.config.balance {
            Balance::Hash(attribute) => {
                gate.engine.policy().value(&hit, attribute).map(|value| balance::key_of(&value))
            }
            _ => None,
        };
        let verdict = gate.check(&hit, now).await;
        let later = self.proxy.aside.is_some() && !verdict.allowed && is_for_later(&verdict);
        let identity = later.then(|| enqueue::identity(&gate.engine.policy(), &hit));
        let sender = hit.address().zip(identity).map(|(ip, identity)| Sender { ip, identity });
        Ok(Decided { verdict, at: now, sticky, sender })
    }

    fn hit<'r>(&self, parts: &'r Parts, host: &'r HeaderValue, route: &Route, asked: &'r Asked) -> Hit<'r> {
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let client = self.peer.client(&parts.headers, route.trust());
        let mut hit = Hit::on(parts.method.as_str(), host.to_str().unwrap_or_default(), path).ip(client);
        for name in &asked.headers {
            for value in parts.headers.get_all(name) {
                hit = hit.field(Source::Header, name.as_str(), text_of(value));
            }
        }
        hit
    }

    /// Whether the decision needs the body: nobody's body is read for a rule about something else.
    fn looks_into_body(&self, hit: &Hit<'_>, route: &Route) -> bool {
        let policy = self.proxy.gate.engine.policy();
        let balanced = match &route.config.balance {
            Balance::Hash(attribute) => {
                let source = policy.settings().identity.iter().find(|(name, _)| name == attribute);
                in_body(source.map_or(attribute, |(_, source)| source))
            }
            _ => false,
        };
        balanced || policy.asks(hit.target(), in_body)
    }
}

fn in_body(attribute: &Attribute) -> bool {
    matches!(attribute, Attribute::Field(Source::Json | Source::Form, _))
}

fn text_of(value: &HeaderValue) -> Cow<'_, str> {
    String::from_utf8_lossy(value.as_bytes())
}
