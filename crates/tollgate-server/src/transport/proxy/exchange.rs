//! One request and its response.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{ACCEPT, CONNECTION, EXPECT, HOST, HeaderValue, UPGRADE};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode, Version};
use tokio::sync::Notify;
use tokio::time::timeout;
use tollgate::identity::Source;
use tollgate::{Hit, Time, Verdict};

use crate::answer::{self, Problem};
use crate::config::{Balance, HostHeader};
use crate::transport::proxy::body::{Download, Reply, Upload};
use crate::transport::proxy::connect::Wish;
use crate::transport::proxy::forward::{self, Failure, Outgoing};
use crate::transport::proxy::forwarded::Peer;
use crate::transport::proxy::heads::Heads;
use crate::transport::proxy::lease::Lease;
use crate::transport::proxy::refusal::{self, Taste};
use crate::transport::proxy::{Proxy, Route, balance, hops, inspect, merge, upgrade};

/// How much of a body that nobody wants is read, so that its sender hears why.
const DISCARD_BYTES: usize = 1 << 20;
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// Where a request came in.
pub struct Entrance {
    pub proxy: Arc<Proxy>,
    pub worker: usize,
    pub peer: Peer,
    /// What the client wrote, where HTTP/1.1 is spoken.
    pub heads: Option<Arc<Heads>>,
}

impl Entrance {
    /// Answers one request.
    pub async fn exchange(&self, request: Request<Incoming>) -> Response<Reply> {
        let accept = request.headers().get(ACCEPT).cloned();
        match self.serve(request).await {
            Ok(response) => response,
            Err(Refused::Denied(verdict)) => {
                let mut response = refusal::denied(&verdict, Taste::of(accept.as_ref()));
                answer::write_headers(&mut response, &verdict, self.proxy.gate.live.load().headers);
                response
            }
            Err(Refused::Ambiguous(problem)) => {
                self.proxy.counts.rejected.fetch_add(1, Ordering::Relaxed);
                let mut response = refusal::problem(problem, Taste::of(accept.as_ref()));
                // Where the next request begins is as doubtful as this one.
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                response
            }
            Err(Refused::Problem(problem)) => refusal::problem(problem, Taste::of(accept.as_ref())),
        }
    }

    async fn serve(&self, request: Request<Incoming>) -> Result<Response<Reply>, Refused> {
        let (mut parts, body) = request.into_parts();
        let host = self.inspect(&parts).map_err(Refused::Ambiguous)?;
        let (route, now) = (self.proxy.route.load_full(), self.proxy.gate.now());
        let (verdict, sticky) = self.decide(&parts, &host, &route, now).await;
        if !verdict.allowed {
            discard(&parts, body);
            return Err(Refused::Denied(Box::new(verdict)));
        }
        let mut upload = Upload::new(None, body, route.config.timeouts.idle);
        let asked = self.prepare(&mut parts, &mut upload, &host, &route);
        let client = parts.extensions.remove::<OnUpgrade>();
        let wish = if asked.is_some() { Wish::Http1 } else { Wish::Any };
        let outgoing = Outgoing { parts, upload, wish, sticky };
        let (mut response, lease) = forward::forward(&self.proxy, &route, self.worker, outgoing, now).await?;
        hops::remove_from_response(response.headers_mut());
        merge::write(response.headers_mut(), &verdict, self.proxy.gate.live.load().headers);
        *response.version_mut() = Version::HTTP_11;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let (Some(client), Some(protocol)) = (client, asked) else {
                return Err(Failure::Nonsense.into());
            };
            return Ok(switch(response, client, &protocol, lease));
        }
        let idle = route.config.timeouts.idle;
        Ok(response.map(|rest| Reply::Streamed(Download::new(rest, idle, lease))))
    }

    /// The host that is asked, if the request means the same to everybody.
    fn inspect(&self, parts: &Parts) -> Result<HeaderValue, Problem> {
        self.heads.as_ref().map_or(Ok(()), |heads| heads.check(parts))?;
        inspect::check(parts)?;
        inspect::host(parts)
    }

    /// The verdict, and the key that the request sticks to an upstream by.
    async fn decide(
        &self,
        parts: &Parts,
        host: &HeaderValue,
        route: &Route,
        now: Time,
    ) -> (Verdict, Option<u64>) {
        let gate = &self.proxy.gate;
        let asked = gate.asked();
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let host = host.to_str().unwrap_or_default();
        let client = self.peer.client(&parts.headers, &route.config.trusted);
        let mut hit = Hit::on(parts.method.as_str(), host, path).ip(client);
        for name in &asked.headers {
            for value in parts.headers.get_all(name) {
                hit = hit.field(Source::Header, name.as_str(), text_of(value));
            }
        }
        let hit = gate.identify(hit, now);
        let sticky = match &route.config.balance {
            Balance::Hash(attribute) => {
                gate.engine.policy().value(&hit, attribute).map(|value| balance::key_of(&value))
            }
            _ => None,
        };
        (gate.check(&hit, now).await, sticky)
    }

    /// Makes the request one that we send; returns the protocol that its sender wants to change to.
    fn prepare(
        &self,
        parts: &mut Parts,
        upload: &mut Upload,
        host: &HeaderValue,
        route: &Route,
    ) -> Option<HeaderValue> {
        let asked = Some(parts.version).filter(|version| *version == Version::HTTP_11);
        let asked = asked.and_then(|_| hops::wanted_upgrade(&parts.headers));
        hops::remove_from_request(&mut parts.headers);
        self.peer.announce(&mut parts.headers, host, &route.config.trusted);
        if route.config.host == HostHeader::Keep {
            parts.headers.insert(HOST, host.clone());
        } else {
            parts.headers.remove(HOST);
        }
        if let Some(protocol) = &asked {
            parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            parts.headers.insert(UPGRADE, protocol.clone());
        } else {
            parts.extensions.clear();
        }
        if parts.headers.contains_key(EXPECT) {
            self.expect(parts, upload);
        }
        asked
    }

    /// The body is sent once the upstream asks for it, and our client is asked only then.
    fn expect(&self, parts: &mut Parts, upload: &mut Upload) {
        if parts.version != Version::HTTP_11 {
            parts.headers.remove(EXPECT);
            return;
        }
        let asked = Arc::new(Notify::new());
        upload.wait_for(Arc::clone(&asked));
        let mut carrier = Request::new(());
        hyper::ext::on_informational(&mut carrier, move |response| {
            if response.status() == StatusCode::CONTINUE {
                asked.notify_one();
            }
        });
        parts.extensions.extend(std::mem::take(carrier.extensions_mut()));
    }
}

/// Why a request is not served.
pub enum Refused {
    Denied(Box<Verdict>),
    /// Two servers would read it differently.
    Ambiguous(Problem),
    Problem(Problem),
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Refused {
        Refused::Problem(failure.into())
    }
}

/// Reads a refused body away, within bounds: who is still sending does not see an answer. One who asks before
/// sending needs none of this.
fn discard(parts: &Parts, mut body: Incoming) {
    if body.is_end_stream() || parts.headers.contains_key(EXPECT) {
        return;
    }
    let reading = async move {
        let mut read = 0;
        while let Some(Ok(frame)) = body.frame().await {
            read += frame.data_ref().map_or(0, bytes::Bytes::len);
            if read > DISCARD_BYTES {
                break;
            }
        }
    };
    tokio::spawn(timeout(DISCARD_TIME, reading));
}

fn text_of(value: &HeaderValue) -> Cow<'_, str> {
    String::from_utf8_lossy(value.as_bytes())
}

fn switch(
    mut response: Response<Incoming>,
    client: OnUpgrade,
    protocol: &HeaderValue,
    lease: Lease,
) -> Response<Reply> {
    let upstream = hyper::upgrade::on(&mut response);
    upgrade::join(client, upstream, lease);
    let mut response = response.map(|_| Reply::Whole(http_body_util::Full::default()));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().entry(UPGRADE).or_insert_with(|| protocol.clone());
    response
}
