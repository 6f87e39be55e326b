//! The proxy's parsers, and a connection in memory: for fuzz targets and linearity tests.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::sync::watch;
use tollgate::identity::FieldSource;
use tollgate::identity::address::TrustedProxies;
use tollgate::identity::forwarded::ForwardingHeader;

use crate::config::Config;
use crate::testing::gate;
use crate::transport::proxy::Proxy;
use crate::transport::proxy::accept::client_connection::serve_http1;
use crate::transport::proxy::accept::forwarded::{Peer, ProxyTrust, Scheme};
pub use crate::transport::proxy::accept::framing::BodyLength;
use crate::transport::proxy::accept::framing::Framing;
use crate::transport::proxy::accept::hop_by_hop;
use crate::transport::proxy::accept::sanitize::{RequestOrigin, sanitize_headers};
use crate::transport::proxy::accept::stream::ClientStream;
use crate::transport::proxy::decide::body_fields::BodyPrefix;
pub use crate::transport::proxy::decide::json::{Completeness, fields as json_fields};
use crate::transport::proxy::exchange::ConnectionContext;

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

/// The values of a form's field in the prefix of a body.
pub fn form_fields(content_type: &str, body: &[u8], name: &str, end: Completeness) -> Vec<String> {
    let content_type = HeaderValue::from_str(content_type).ok();
    BodyPrefix::of(content_type.as_ref(), body, end == Completeness::Complete).values(FieldSource::Form, name)
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

/// What a client does after it has sent everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Client {
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
    pub fn converse(&self, bytes: &[u8], then: Client) -> Vec<u8> {
        let peer = Peer::new(SocketAddr::from(([127, 0, 0, 1], 1)), Scheme::Http);
        let proxy = Arc::clone(&self.proxy);
        let entrance =
            ConnectionContext { proxy, worker: 0, peer, framing_check: None, stream_activity: None };
        self.runtime.block_on(async {
            let (client, server) = duplex(64 << 10);
            let (mut from, mut to) = tokio::io::split(client);
            let (_stop, shutdown) = watch::channel(false);
            let served = serve_http1(ClientStream::new(server), entrance, shutdown);
            let write = async {
                let sent = to.write_all(bytes).await;
                if then == Client::HangsUp {
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
}
