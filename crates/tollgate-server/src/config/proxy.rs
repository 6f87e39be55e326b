//! Settings of the proxy: `upstreams`, `proxy` and `trusted_proxies`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Uri;
use hyper::header::HeaderName;
use hyper::http::uri::Authority;
use tollgate::internal::document::MapReader;
use tollgate::internal::identity::Attribute;
use tollgate::internal::time::parse_duration;

use crate::config::ListenerTlsFiles;

const MAX_UPSTREAMS: usize = 256;
const MAX_HELD: u64 = 1_000_000;
/// Bytes per second: slower than any network in use.
const MIN_BODY_RATE: u32 = 240;
const HIGHEST_BODY_RATE: u64 = 1 << 20;
const MAX_STRIPPED: usize = 64;

/// Headers by which a client claims an address that servers trust, or changes what its request means.
const STRIPPED: [&str; 4] = ["x-real-ip", "true-client-ip", "x-original-url", "x-http-method-override"];
const NEVER_STRIPPED: [&str; 3] = ["host", "content-length", "transfer-encoding"];

/// The proxy's configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProxyConfig {
    pub upstreams: Vec<UpstreamAddress>,
    pub balance: Balance,
    pub host: HostHeader,
    pub timeouts: Timeouts,
    pub health: Option<HealthCheck>,
    pub max_held: usize,
    /// Minimum rate of a request body in bytes per second; `None` for any rate.
    pub min_body_rate: Option<u32>,
    pub tls: Option<ListenerTlsFiles>,
    pub upstream_tls: UpstreamTls,
    /// Client headers that are never forwarded.
    pub strip_headers: Vec<HeaderName>,
}

/// The address of an upstream, and its protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UpstreamAddress {
    pub protocol: UpstreamProtocol,
    /// Always with a port.
    pub authority: Authority,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UpstreamProtocol {
    /// `http://`: HTTP/1.1.
    Http1,
    /// `h2c://`: HTTP/2 without TLS.
    Http2,
    /// `https://`: HTTP/2 or HTTP/1.1, as the upstream prefers.
    Tls,
}

/// The load balancing policy.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Balance {
    #[default]
    RoundRobin,
    LeastConnections,
    /// The same value always goes to the same upstream, as long as it is healthy.
    Hash(Attribute),
}

/// The `Host` that upstreams see.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HostHeader {
    /// The client's.
    #[default]
    Keep,
    /// The upstream's own.
    Upstream,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timeouts {
    pub connect: Duration,
    /// From the end of the request to the head of its response.
    pub response: Duration,
    /// Maximum time without a byte, in either direction.
    pub idle: Duration,
    /// How long an idle connection to an upstream is kept.
    pub keep_alive: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let secs = Duration::from_secs;
        Timeouts { connect: secs(2), response: secs(60), idle: secs(60), keep_alive: secs(50) }
    }
}

/// Active health checks: periodic requests to each upstream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HealthCheck {
    pub path: String,
    pub every: Duration,
}

/// How certificates of upstreams are verified.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UpstreamTls {
    /// The trusted CAs as a PEM file; the system's by default.
    pub ca: Option<PathBuf>,
    /// The name in the upstreams' certificates, if it differs from their host.
    pub server_name: Option<String>,
}

impl ProxyConfig {
    /// The defaults of a proxy in front of `upstreams`.
    pub fn with_defaults(upstreams: Vec<UpstreamAddress>) -> ProxyConfig {
        ProxyConfig {
            upstreams,
            balance: Balance::default(),
            host: HostHeader::default(),
            timeouts: Timeouts::default(),
            health: None,
            max_held: 10_000,
            min_body_rate: Some(MIN_BODY_RATE),
            tls: None,
            upstream_tls: UpstreamTls::default(),
            strip_headers: STRIPPED.map(HeaderName::from_static).to_vec(),
        }
    }

    /// The settings of the file, whether it names upstreams or not.
    pub(super) fn read(map: &mut MapReader<'_, '_>, folder: &Path) -> ProxyConfig {
        let mut config = ProxyConfig::with_defaults(upstreams(map));
        if let Some(names) = strip_headers(map) {
            config.strip_headers = names;
        }
        if let Some(mut map) = map.optional_map("proxy") {
            read_settings(&mut map, &mut config, folder);
            map.finish();
        }
        config
    }
}

fn upstreams(map: &mut MapReader<'_, '_>) -> Vec<UpstreamAddress> {
    let nodes = map.optional_list("upstreams").unwrap_or_default();
    let mut upstreams: Vec<UpstreamAddress> = Vec::with_capacity(nodes.len());
    for (n, node) in nodes.iter().enumerate() {
        let name = format!("upstreams[{n}]");
        match node
            .as_str()
            .ok_or("expected an address such as http://127.0.0.1:3000".to_owned())
            .and_then(UpstreamAddress::parse)
        {
            Ok(address) if upstreams.contains(&address) => map.reject(&name, node, "is listed twice"),
            Ok(_) if upstreams.len() == MAX_UPSTREAMS => {
                map.reject(&name, node, format!("more than {MAX_UPSTREAMS} upstreams"));
                break;
            }
            Ok(address) => upstreams.push(address),
            Err(message) => map.reject(&name, node, message),
        }
    }
    upstreams
}

/// The names in `strip_headers`; `None` if the file does not have it.
fn strip_headers(map: &mut MapReader<'_, '_>) -> Option<Vec<HeaderName>> {
    let nodes = map.optional_list("strip_headers")?;
    let mut names = Vec::with_capacity(nodes.len().min(MAX_STRIPPED));
    for (n, node) in nodes.iter().enumerate() {
        let path = format!("strip_headers[{n}]");
        let name = node.as_str().and_then(|name| HeaderName::from_bytes(name.as_bytes()).ok());
        match name {
            _ if n == MAX_STRIPPED => {
                map.reject(&path, node, format!("more than {MAX_STRIPPED} headers"));
                break;
            }
            Some(name) if NEVER_STRIPPED.contains(&name.as_str()) => {
                map.reject(
                    &path,
                    node,
                    format!("{name} cannot be stripped: a request is not complete without it"),
                );
            }
            Some(name) => names.push(name),
            None => map.reject(&path, node, "expected the name of a header, such as x-real-ip"),
        }
    }
    Some(names)
}

const HOSTS: [(&str, HostHeader); 2] = [("keep", HostHeader::Keep), ("upstream", HostHeader::Upstream)];

fn read_settings(map: &mut MapReader<'_, '_>, config: &mut ProxyConfig, folder: &Path) {
    if let Some(node) = map.optional("balance") {
        match node.as_str().ok_or(BALANCES.to_owned()).and_then(balance) {
            Ok(read) => config.balance = read,
            Err(message) => map.reject("balance", node, message),
        }
    }
    config.host = map.optional_choice("host", &HOSTS).unwrap_or_default();
    for (name, timeout) in [
        ("connect_timeout", &mut config.timeouts.connect),
        ("response_timeout", &mut config.timeouts.response),
        ("idle_timeout", &mut config.timeouts.idle),
        ("keep_alive", &mut config.timeouts.keep_alive),
    ] {
        *timeout = duration(map, name).unwrap_or(*timeout);
    }
    if let Some(node) = map.optional("max_held") {
        match node.as_u64().filter(|held| *held <= MAX_HELD) {
            Some(held) => config.max_held = held as usize,
            None => map.reject("max_held", node, format!("expected a number of requests up to {MAX_HELD}")),
        }
    }
    if let Some(node) = map.optional("min_body_rate") {
        match node.as_u64().filter(|rate| (1..=HIGHEST_BODY_RATE).contains(rate)) {
            Some(rate) => config.min_body_rate = Some(rate as u32),
            None if node.as_str() == Some("off") => config.min_body_rate = None,
            None => {
                let expected = format!("expected bytes a second from 1 to {HIGHEST_BODY_RATE}, or off");
                map.reject("min_body_rate", node, expected);
            }
        }
    }
    config.health = health(map);
    config.tls = ListenerTlsFiles::read(map, "tls", folder);
    if let Some(mut map) = map.optional_map("upstream_tls") {
        config.upstream_tls = UpstreamTls {
            ca: map.optional_text("ca").map(|file| folder.join(file)),
            server_name: map.optional_text("server_name").map(str::to_owned),
        };
        map.finish();
    }
}

fn health(map: &mut MapReader<'_, '_>) -> Option<HealthCheck> {
    let mut map = map.optional_map("health")?;
    let path = map.required_text("path").map(str::to_owned);
    let every = duration(&mut map, "every").unwrap_or(Duration::from_secs(5));
    if let Some(node) =
        map.optional("path").filter(|_| path.as_ref().is_some_and(|path| !path.starts_with('/')))
    {
        map.reject("path", node, "not a valid path: begin it with /");
    }
    map.finish();
    Some(HealthCheck { path: path?, every })
}

const BALANCES: &str = "expected round-robin, least-connections or hash:ATTRIBUTE, such as hash:user";

fn balance(text: &str) -> Result<Balance, String> {
    match text {
        "round-robin" => Ok(Balance::RoundRobin),
        "least-connections" => Ok(Balance::LeastConnections),
        _ => match text.strip_prefix("hash:") {
            Some(attribute) => Attribute::parse(attribute).map(Balance::Hash),
            None => Err(BALANCES.to_owned()),
        },
    }
}

/// A duration above zero.
pub(super) fn duration(map: &mut MapReader<'_, '_>, name: &'static str) -> Option<Duration> {
    let node = map.optional(name)?;
    let read = node.as_str().ok_or("expected a duration such as 30s".to_owned()).and_then(parse_duration);
    match read {
        Ok(duration) if !duration.is_zero() => return Some(duration),
        Ok(_) => map.reject(name, node, "is zero: write a duration such as 30s"),
        Err(message) => map.reject(name, node, message),
    }
    None
}

impl UpstreamAddress {
    pub fn parse(text: &str) -> Result<UpstreamAddress, String> {
        let bad = |why: &str| {
            let shown = without_secrets(text);
            format!("'{shown}' {why}: write http://HOST:PORT, https://HOST or h2c://HOST:PORT")
        };
        let uri: Uri = text.parse().map_err(|_| bad("is not a valid address"))?;
        let (protocol, port) = match uri.scheme_str() {
            Some("http") => (UpstreamProtocol::Http1, 80),
            Some("h2c") => (UpstreamProtocol::Http2, 80),
            Some("https") => (UpstreamProtocol::Tls, 443),
            _ => return Err(bad("is not a valid address")),
        };
        let authority = uri.authority().ok_or_else(|| bad("has no host"))?;
        if uri.path_and_query().is_some_and(|path| path.as_str() != "/") {
            return Err(bad("has a path, but requests keep their own path"));
        }
        if authority.as_str().contains('@') {
            return Err(bad("has a user"));
        }
        let authority = match authority.port_u16() {
            Some(_) => authority.clone(),
            None => format!("{}:{port}", authority.host()).parse().map_err(|_| bad("has a bad host"))?,
        };
        Ok(UpstreamAddress { protocol, authority })
    }

    pub const fn default_port(&self) -> u16 {
        match self.protocol {
            UpstreamProtocol::Http1 | UpstreamProtocol::Http2 => 80,
            UpstreamProtocol::Tls => 443,
        }
    }

    /// The scheme of URLs at it.
    pub const fn scheme(&self) -> &'static str {
        match self.protocol {
            UpstreamProtocol::Http1 | UpstreamProtocol::Http2 => "http",
            UpstreamProtocol::Tls => "https",
        }
    }

    /// The URL of its root, without a slash at the end.
    pub fn origin(&self) -> String {
        format!("{}://{}", self.scheme(), self.host())
    }

    /// The `Host` of requests to it: without a port that the scheme implies.
    pub fn host(&self) -> &str {
        match self.authority.port_u16() {
            Some(port) if port == self.default_port() => self.authority.host(),
            _ => self.authority.as_str(),
        }
    }
}

/// The part of a URL that may be shown: scheme and host, even if the rest is invalid.
fn without_secrets(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| (scheme, rest));
    let separator = if scheme.is_empty() { "" } else { "://" };
    // A password may contain any of these characters, so the last '@' is searched first.
    let (login, rest) = rest.rsplit_once('@').map_or(("", rest), |(_, rest)| ("…@", rest));
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let more = if host.len() < rest.len() { "/…" } else { "" };
    format!("{scheme}{separator}{login}{host}{more}")
}

impl std::fmt::Display for UpstreamAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = match self.protocol {
            UpstreamProtocol::Http1 => "http",
            UpstreamProtocol::Http2 => "h2c",
            UpstreamProtocol::Tls => "https",
        };
        write!(f, "{scheme}://{}", self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_an_address_with_a_port() {
        for (text, shown) in [
            ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("http://api.internal/", "http://api.internal:80"),
            ("https://[::1]", "https://[::1]:443"),
            ("h2c://grpc:50051", "h2c://grpc:50051"),
        ] {
            assert_eq!(UpstreamAddress::parse(text).map(|address| address.to_string()), Ok(shown.to_owned()));
        }
        for bad in ["", "127.0.0.1:3000", "ftp://x", "http://", "http://h/path", "http://u@h", "http://h?x"] {
            assert!(UpstreamAddress::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_message_has_a_secret_in_it() {
        for bad in [
            "http://user:s3cret@host:1",
            "http://s3cret@host",
            "user:s3cret@host",
            "ftp://user:s3cret@host/",
            "http://user:s3/s3cret@host",
            "http://user:s3cret@@host:99999999",
            "http://host/path?token=s3cret",
            "http://host/s3cret",
            "http://user:s3cret@[::1",
        ] {
            let message = UpstreamAddress::parse(bad).expect_err(bad);
            assert!(!message.contains("s3"), "{message}");
            assert!(message.contains("host") || message.contains("[::1"), "{message}");
        }
    }
}
