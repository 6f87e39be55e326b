//! The proxy's parsers, and a connection in memory: for fuzz targets and linearity tests.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::sync::watch;
use tollgate::internal::hold::{HeldRequest, HoldQueues};
use tollgate::internal::http::ProxyTrust;
use tollgate::internal::identity::FieldSource;
use tollgate::internal::identity::address::TrustedProxies;
use tollgate::internal::identity::forwarded::ForwardingHeader;
use tollgate::internal::store::ChargeReceipt;
use tollgate::internal::{EngineVerdict, PolicySnapshot};
use tollgate::{Hit, Time};

use crate::config::Config;
use crate::gate::Gate;
use crate::testing::gate;
use crate::transport::proxy::Proxy;
use crate::transport::proxy::accept::client_connection::{ClientStream, serve_http1, serve_http2};
use crate::transport::proxy::accept::forwarded::{Peer, Scheme};
pub use crate::transport::proxy::accept::framing::BodyLength;
use crate::transport::proxy::accept::framing::Framing;
use crate::transport::proxy::accept::hop_by_hop;
use crate::transport::proxy::accept::sanitize::{RequestOrigin, sanitize_headers};
use crate::transport::proxy::decide::content_type::FormEncoding;
use crate::transport::proxy::decide::identify::BodyPrefix;
use crate::transport::proxy::decide::json;
pub use crate::transport::proxy::decide::json::Completeness;
use crate::transport::proxy::exchange::ConnectionContext;
use crate::transport::proxy::wait::retry_schedule::RetrySchedule;

/// The request heads on a connection, read in pieces.
pub fn heads(bytes: &[u8], piece: usize) -> Vec<BodyLength> {
    let mut framing = Framing::default();
    let mut heads = Vec::new();
    for read in bytes.chunks(piece) {
        framing.add(read);
        heads.extend(std::iter::from_fn(|| framing.next_head()));
    }
    heads
}

/// The values of a JSON field in the prefix of a body.
pub fn json_fields(body: &[u8], path: &str, end: Completeness) -> Vec<String> {
    json::find(body, path, end).values
}

/// The values of a form's field in the prefix of a body.
pub fn form_fields(content_type: &str, body: &[u8], name: &str, end: Completeness) -> Vec<String> {
    let line = HeaderValue::from_str(content_type).ok().map(|line| (CONTENT_TYPE, line));
    // An ambiguous content type is rejected, so such a form has no fields.
    let Ok(encoding) = FormEncoding::of(&line.into_iter().collect()) else { return Vec::new() };
    BodyPrefix { bytes: body, end, encoding }.values(FieldSource::Form, name).values
}

/// The forwarding headers that an upstream gets, from a trusted peer and from one that is not.
pub fn forwarded_headers(lines: &[(&[u8], &[u8])]) -> [HeaderMap; 3] {
    let headers: HeaderMap = lines
        .iter()
        .filter_map(|(name, value)| {
            Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?))
        })
        .collect();
    let everyone = TrustedProxies::parse(["0.0.0.0/0", "::/0"]).expect("valid networks");
    let cases = [
        (TrustedProxies::default(), ForwardingHeader::XForwardedFor, RequestOrigin::Client),
        (everyone.clone(), ForwardingHeader::XForwardedFor, RequestOrigin::TrustedProxy),
        (everyone, ForwardingHeader::Forwarded, RequestOrigin::TrustedProxy),
    ];
    let names = ["x-real-ip", "x_original_url"].map(HeaderName::from_static);
    let counted = ["x-api-key"].map(HeaderName::from_static);
    cases.map(|(proxies, header, sent)| {
        let mut headers = headers.clone();
        hop_by_hop::requested_upgrade(&headers);
        hop_by_hop::remove_from_request(&mut headers);
        sanitize_headers(&mut headers, &names, &counted, sent);
        let peer = Peer::new(SocketAddr::from(([127, 0, 0, 1], 1)), Scheme::Http);
        let host = HeaderValue::from_static("example.com");
        peer.write_forwarding_headers(&mut headers, &host, ProxyTrust { proxies: &proxies, header });
        headers
    })
}

/// In which order held requests leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaving {
    /// Each is released at its time.
    InOrder,
    /// Their clients disconnect, those in the middle first.
    FromTheMiddle,
}

/// Hold queues without connections.
pub struct HoldRoom {
    queues: Arc<HoldQueues>,
    gate: Arc<Gate>,
}

impl HoldRoom {
    /// With one key whose requests are released once per second.
    #[expect(clippy::new_without_default, reason = "it parses rules")]
    pub fn new() -> HoldRoom {
        let rules = "rules: [{ id: q, algorithm: leaky-bucket, limit: 1/s, burst: 1000000 }]";
        HoldRoom { queues: Arc::default(), gate: gate(rules) }
    }

    /// Holds `count` requests of one key until all have left.
    pub fn hold(&self, count: usize, leaving: Leaving) {
        let mut held: Vec<HeldRequest<Gate>> = (0..count).map(|_| self.enter()).collect();
        match leaving {
            Leaving::InOrder => {
                for (second, held) in held.iter_mut().enumerate() {
                    let now = HELD_AT + Duration::from_secs(second as u64);
                    let waiting = pin!(held.wait(|| now, |_| std::future::pending::<()>()));
                    let released = waiting.poll(&mut Context::from_waker(Waker::noop()));
                    assert!(
                        matches!(released, Poll::Ready(Some(_))),
                        "request {second} is released in order"
                    );
                }
            }
            Leaving::FromTheMiddle => {
                let later = held.split_off(count / 2);
                later.into_iter().for_each(drop);
                held.into_iter().rev().for_each(drop);
            }
        }
        assert_eq!(self.queues.waiting(), 0);
    }

    fn enter(&self) -> HeldRequest<Gate> {
        let mut verdict = self.gate.engine.check(&Hit::on("GET", "h", "/"), HELD_AT);
        let mut charge = verdict.take_receipt();
        let key = charge.as_ref().and_then(ChargeReceipt::queue_key).expect("it is charged");
        let release_at = HELD_AT + verdict.delay;
        self.queues.enqueue(&self.gate, key, release_at, &mut charge, usize::MAX).expect("there is no bound")
    }
}

const HELD_AT: Time = Time::from_secs(1_800_000_000);

/// The times of queued requests, without a queue.
pub struct RetryRoom {
    schedule: RetrySchedule,
    policy: Arc<PolicySnapshot>,
    /// Of every request.
    denied: EngineVerdict,
}

impl RetryRoom {
    #[expect(clippy::new_without_default, reason = "it parses rules")]
    pub fn new() -> RetryRoom {
        let engine = &gate("rules: [{ id: a, key: user, limit: 1/h }]").engine;
        engine.check(&Hit::by("0"), HELD_AT);
        let denied = engine.peek(&Hit::by("0"), HELD_AT);
        RetryRoom { schedule: RetrySchedule::default(), policy: engine.policy(), denied }
    }

    /// Schedules requests of `keys` keys, `each` for every key.
    pub fn schedule(&self, keys: usize, each: usize) {
        let RetryRoom { schedule, policy, denied } = self;
        for key in 0..keys {
            let user = key.to_string();
            let hit = Hit::by(&user);
            for _ in 0..each {
                schedule.schedule(policy, &hit, denied, HELD_AT);
                schedule.reschedule(policy, &hit, denied, HELD_AT);
            }
        }
    }
}

/// Bytes that an HTTP/2 client sends at once, and the number of answers that it waits for before it goes on.
pub struct Burst {
    pub frames: Vec<u8>,
    pub answers: usize,
}

/// Frames that a server has sent, by what they answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Http2Answers {
    /// Responses that have ended.
    pub ended: usize,
    pub reset: usize,
    /// Acknowledged pings and settings.
    pub acknowledged: usize,
    pub goaway: usize,
}

impl Http2Answers {
    fn count(&mut self, kind: u8, flags: u8) {
        const END_STREAM: u8 = 1;
        const ACK: u8 = 1;
        match kind {
            0 | 1 if flags & END_STREAM != 0 => self.ended += 1,
            3 => self.reset += 1,
            4 | 6 if flags & ACK != 0 => self.acknowledged += 1,
            7 => self.goaway += 1,
            _ => {}
        }
    }

    fn all(&self) -> usize {
        self.ended + self.reset + self.acknowledged
    }
}

/// What a client does after it has sent everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterSending {
    HangsUp,
    /// Reads until the connection is closed.
    Waits,
}

/// A proxy that serves one in-memory connection after the other.
pub struct Connections {
    proxy: Arc<Proxy>,
    runtime: tokio::runtime::Runtime,
}

impl Connections {
    /// `config` as in a file; relative paths in it are relative to `folder`.
    pub fn new(config: &str, folder: &std::path::Path) -> Connections {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime can be had");
        let inside = runtime.enter();
        let parsed = Config::parse(config, folder).expect("the configuration is valid");
        let proxy = parsed.proxy.clone().expect("the configuration names an upstream");
        let proxy = Proxy::new(gate(config), proxy, parsed.queue.clone()).expect("a valid proxy");
        drop(inside);
        Connections { proxy: Arc::new(proxy), runtime }
    }

    /// Sends all bytes on one connection; returns the response bytes until it is closed.
    pub fn converse(&self, bytes: &[u8], then: AfterSending) -> Vec<u8> {
        self.runtime.block_on(async {
            let (client, server) = duplex(64 << 10);
            let (mut from, mut to) = tokio::io::split(client);
            let (_stop, shutdown) = watch::channel(false);
            let served = serve_http1(ClientStream::new(server), self.context(), shutdown);
            let write = async {
                let sent = to.write_all(bytes).await;
                if then == AfterSending::HangsUp {
                    sent.and(to.shutdown().await).ok();
                }
            };
            let mut answered = Vec::new();
            let read = async { from.read_to_end(&mut answered).await.ok() };
            let (served, (), _) = tokio::join!(served, write, read);
            served.ok();
            answered
        })
    }

    /// Sends frames on one HTTP/2 connection, burst by burst; returns what was answered.
    pub fn converse_http2(&self, bursts: &[Burst]) -> Http2Answers {
        // The largest window for all responses together, and an empty SETTINGS frame.
        const START: &[u8] =
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x04\x08\0\0\0\0\0\x40\0\0\0";
        self.runtime.block_on(async {
            let (client, server) = duplex(64 << 10);
            let (mut from, mut to) = tokio::io::split(client);
            let (_stop, shutdown) = watch::channel(false);
            let served = serve_http2(ClientStream::new(server), self.context(), shutdown);
            let talk = async {
                let mut answers = Http2Answers::default();
                let start = Burst { frames: START.to_vec(), answers: 1 };
                for Burst { frames, answers: expected } in std::iter::once(&start).chain(bursts) {
                    let expected = answers.all() + expected;
                    let read = async {
                        while answers.all() < expected && answers.goaway == 0 {
                            let mut head = [0; 9];
                            if from.read_exact(&mut head).await.is_err() {
                                break;
                            }
                            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
                            let mut payload = vec![0; length as usize];
                            from.read_exact(&mut payload).await.ok();
                            answers.count(head[3], head[4]);
                        }
                    };
                    let (sent, ()) = tokio::join!(to.write_all(frames), read);
                    if sent.is_err() || answers.all() < expected {
                        break;
                    }
                }
                drop((from, to));
                answers
            };
            let (served, answers) = tokio::join!(served, talk);
            served.ok();
            answers
        })
    }

    fn context(&self) -> ConnectionContext {
        let peer = Peer::new(SocketAddr::from(([127, 0, 0, 1], 1)), Scheme::Http);
        let proxy = Arc::clone(&self.proxy);
        ConnectionContext { proxy, worker: 0, peer, framing_check: None, stream_activity: None }
    }
}
