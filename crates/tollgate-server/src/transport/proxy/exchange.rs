//! One request and its response.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{
    ACCEPT, CONNECTION, CONTENT_TYPE, EXPECT, HOST, HeaderMap, HeaderValue, RETRY_AFTER,
    SEC_WEBSOCKET_ACCEPT, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode, Version};
use tokio::sync::Notify;
use tokio::time::timeout;
use tollgate::verdict::whole_seconds;
use tollgate::{Time, Verdict};

use crate::answer::{self, Problem};
use crate::config::{HostHeader, ProxyConfig};
use crate::queue::Sender;
use crate::transport::proxy::body::{Download, Pace, Reply, Upload};
use crate::transport::proxy::connect::Wish;
use crate::transport::proxy::conversation::{Traffic, UnderWay};
use crate::transport::proxy::enqueue::{Aside, STATUS_PATH};
use crate::transport::proxy::forward::{self, Failure, Outgoing};
use crate::transport::proxy::forwarded::Peer;
use crate::transport::proxy::heads::Heads;
use crate::transport::proxy::identify::Decided;
use crate::transport::proxy::lease::Lease;
use crate::transport::proxy::refusal::{self, Taste};
use crate::transport::proxy::screen::{self, Sent, TrailerScreen};
use crate::transport::proxy::settlement::Charges;
use crate::transport::proxy::websocket::Handshake;
use crate::transport::proxy::{Proxy, Route, hops, inspect, merge, upgrade};

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
    /// What else is under way, where HTTP/2 is spoken.
    pub traffic: Option<Arc<Traffic>>,
}

/// A request on its way through.
pub struct Visit {
    pub parts: Parts,
    pub host: HeaderValue,
    pub upload: Upload,
    /// The protocol that its sender wants to change to.
    pub upgrade: Option<HeaderValue>,
    /// Where it asks for a WebSocket over HTTP/2.
    pub handshake: Option<Handshake>,
    pub route: Arc<Route>,
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
            Err(Refused::Full(wait)) => {
                let detail = "Too many requests wait for their turn already";
                let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, detail);
                let mut response = refusal::problem(problem, Taste::of(accept.as_ref()));
                let wait = HeaderValue::from(whole_seconds(wait).as_secs());
                response.headers_mut().insert(RETRY_AFTER, wait);
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
        let handshake = Handshake::of(&mut parts).map_err(Refused::Ambiguous)?;
        let route = self.proxy.route.load_full();
        let asks_upgrade = parts.version == Version::HTTP_11;
        let upgrade = if asks_upgrade { hops::wanted_upgrade(&parts.headers) } else { None };
        let mut upload = Upload::new(body, pace(&parts, &route.config));
        self.screen(&mut parts.headers, &mut upload, &route);
        let mut visit = Visit { parts, host, upload, upgrade, handshake, route };
        let Decided { mut verdict, at, sticky, sender } =
            self.decide(&mut visit).await.map_err(Failure::from)?;
        let status_of = visit.parts.uri.path().strip_prefix(STATUS_PATH).map(str::to_owned);
        match (&self.proxy.aside, sender) {
            (Some(aside), _) if verdict.allowed && status_of.is_some() => {
                let id = status_of.unwrap_or_default();
                Box::pin(self.show_status(aside, &id, &mut visit, &mut verdict, at)).await
            }
            _ if verdict.allowed => self.pass(&mut visit, &mut verdict, at, sticky).await,
            // Nobody can be joined to an upstream later.
            (Some(aside), Some(sender)) if status_of.is_none() && visit.upgrade.is_none() => {
                Box::pin(self.put_aside(aside, visit, sender, &verdict, at)).await
            }
            _ => {
                discard(visit);
                Err(Refused::Denied(Box::new(verdict)))
            }
        }
    }

    /// Waits for the request's turn; returns what is to be settled after its response.
    async fn admit(
        &self,
        visit: &mut Visit,
        verdict: &mut Verdict,
        decided_at: Time,
    ) -> Result<Option<Box<Charges>>, Refused> {
        let has_place = self.proxy.held.is_busy() && Charges::have_place(verdict);
        if !has_place && !Charges::are_open(verdict) {
            return Ok(None);
        }
        let mut open = Box::new(Charges::of(verdict));
        Box::pin(self.wait(visit, &mut open, verdict, decided_at)).await?;
        Ok(Some(open))
    }

    /// Tells what became of a queued request. It is a request like any other to limits and bans.
    async fn show_status(
        &self,
        aside: &Aside,
        id: &str,
        visit: &mut Visit,
        verdict: &mut Verdict,
        decided_at: Time,
    ) -> Result<Response<Reply>, Refused> {
        let mut charges = self.admit(visit, verdict, decided_at).await?;
        let _permits = charges.as_mut().and_then(|charges| charges.permits(&self.proxy.gate));
        let shown = aside.show(&visit.parts.method, id).await;
        let status = shown.as_ref().map_or_else(|problem| problem.status, |shown| shown.status());
        self.settle(charges, status, &HeaderMap::new());
        let mut response = shown.map_err(Refused::Problem)?.map(Reply::Whole);
        answer::write_headers(&mut response, verdict, self.proxy.gate.live.load().headers);
        Ok(response)
    }

    /// Sends the request to an upstream, when it is its turn.
    async fn pass(
        &self,
        visit: &mut Visit,
        verdict: &mut Verdict,
        decided_at: Time,
        sticky: Option<u64>,
    ) -> Result<Response<Reply>, Refused> {
        let mut charges = self.admit(visit, verdict, decided_at).await?;
        let permits = charges.as_mut().and_then(|charges| charges.permits(&self.proxy.gate));
        let protocol = self.prepare(visit);
        let client = visit.parts.extensions.remove::<OnUpgrade>().zip(protocol);
        let wish = if client.is_some() { Wish::Http1 } else { Wish::Any };
        let route = &visit.route;
        // Only moved, never kept twice: a request is large.
        let parts = std::mem::replace(&mut visit.parts, Request::new(()).into_parts().0);
        let upload = std::mem::replace(&mut visit.upload, Upload::empty());
        let mut outgoing = Some(Outgoing { parts, upload, wish, sticky });
        let forwarded = forward::forward(&self.proxy, route, self.worker, &mut outgoing).await;
        let (response, mut lease) = match forwarded {
            Ok(forwarded) => forwarded,
            Err(failure) => {
                let problem = Problem::from(failure);
                self.settle(charges, problem.status, &HeaderMap::new());
                return Err(Refused::Problem(problem));
            }
        };
        lease.hold(permits);
        self.settle(charges, response.status(), response.headers());
        let client = client.map(|(end, protocol)| Upgrading {
            end,
            protocol,
            handshake: visit.handshake.take(),
            under_way: self.traffic.as_ref().map(UnderWay::new),
        });
        self.bring_back(response, lease, verdict, client, route.config.timeouts.idle)
    }

    /// The upstream's response as the client gets it.
    fn bring_back(
        &self,
        mut response: Response<Incoming>,
        lease: Lease,
        verdict: &Verdict,
        client: Option<Upgrading>,
        idle: Duration,
    ) -> Result<Response<Reply>, Refused> {
        hops::remove_from_response(response.headers_mut());
        merge::write(response.headers_mut(), verdict, self.proxy.gate.live.load().headers);
        *response.version_mut() = Version::HTTP_11;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let over_http2 = client.is_some_and(|client| client.handshake.is_some());
            if over_http2 && response.status().is_success() {
                return Err(Failure::Nonsense.into()); // its client would take it for a WebSocket
            }
            return Ok(response.map(|rest| Reply::Streamed(Download::new(rest, idle, lease))));
        }
        self.heads.iter().for_each(|heads| heads.stop());
        Ok(client.ok_or(Failure::Nonsense)?.switch(response, lease)?)
    }

    /// Keeps the request for later.
    async fn put_aside(
        &self,
        aside: &Aside,
        visit: Visit,
        sender: Sender,
        verdict: &Verdict,
        decided_at: Time,
    ) -> Result<Response<Reply>, Refused> {
        let Visit { mut parts, host, upload, .. } = visit;
        hops::remove_from_request(&mut parts.headers);
        let kept = aside.keep(&self.proxy.gate, (&parts, &host), upload, sender, (verdict, decided_at)).await;
        let id = kept.map_err(|not| Refused::Problem(not.into()))?;
        self.proxy.counts.queued.fetch_add(1, Ordering::Relaxed);
        let mut response = aside.accepted(&id, verdict);
        answer::write_headers(&mut response, verdict, self.proxy.gate.live.load().headers);
        Ok(response)
    }

    fn settle(&self, charges: Option<Box<Charges>>, status: StatusCode, headers: &HeaderMap) {
        if let Some(mut charges) = charges {
            charges.settle(&self.proxy.gate, status.as_u16(), headers);
        }
    }

    /// The host that is asked, if the request means the same to everybody.
    fn inspect(&self, parts: &Parts) -> Result<HeaderValue, Problem> {
        self.heads.as_ref().map_or(Ok(()), |heads| heads.check(parts))?;
        inspect::check(parts)?;
        let host = inspect::host(parts)?;
        // The API would choose one for it, and a rule for that host would not know.
        if host.is_empty() && self.proxy.gate.engine.policy().names_hosts() {
            return Err(inspect::no_host());
        }
        Ok(host)
    }

    /// Removes what the API will not see, before anything is decided by it.
    fn screen(&self, headers: &mut HeaderMap, upload: &mut Upload, route: &Arc<Route>) {
        let asked = self.proxy.gate.asked();
        hops::remove_from_request(headers);
        let sent = match self.peer.is_trusted(&route.config.trusted) {
            true => Sent::ByTrustedProxy,
            false => Sent::ByClient,
        };
        screen::screen(headers, &route.config.strip_headers, &asked.headers, sent);
        if !upload.is_end_stream() {
            upload.screen_trailers(TrailerScreen { route: Arc::clone(route), asked });
        }
    }

    /// Makes the request one that we send; returns the protocol that its sender wants to change to.
    fn prepare(&self, visit: &mut Visit) -> Option<HeaderValue> {
        let Visit { parts, host, upload, upgrade, route, .. } = visit;
        let asked = upgrade.take();
        self.peer.announce(&mut parts.headers, host, route.trust());
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

/// How slowly the body of a request may come. A gRPC call may say nothing much for long.
fn pace(parts: &Parts, config: &ProxyConfig) -> Pace {
    let is_grpc = parts.version == Version::HTTP_2
        && parts
            .headers
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    Pace { idle: config.timeouts.idle, min_rate: config.min_body_rate.filter(|_| !is_grpc) }
}

/// Why a request is not served.
pub enum Refused {
    Denied(Box<Verdict>),
    /// Too many wait already; it would have had to wait for so long.
    Full(Duration),
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
fn discard(visit: Visit) {
    let Visit { parts, upload: mut body, .. } = visit;
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

/// A client's connection that is to change its protocol.
struct Upgrading {
    end: OnUpgrade,
    protocol: HeaderValue,
    handshake: Option<Handshake>,
    under_way: Option<UnderWay>,
}

impl Upgrading {
    /// Joins both ends, and tells the client so.
    fn switch(self, mut response: Response<Incoming>, lease: Lease) -> Result<Response<Reply>, Failure> {
        if self.handshake.as_ref().is_some_and(|handshake| !handshake.is_answered_by(response.headers())) {
            return Err(Failure::Nonsense);
        }
        let upstream = hyper::upgrade::on(&mut response);
        upgrade::join(self.end, upstream, (lease, self.under_way));
        let mut response = response.map(|_| Reply::Whole(http_body_util::Full::default()));
        if self.handshake.is_some() {
            *response.status_mut() = StatusCode::OK;
            response.headers_mut().remove(SEC_WEBSOCKET_ACCEPT);
        } else {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
            response.headers_mut().entry(UPGRADE).or_insert(self.protocol);
        }
        Ok(response)
    }
}
