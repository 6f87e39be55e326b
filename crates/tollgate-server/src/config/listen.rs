//! The addresses to listen on.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tollgate::internal::document::MapReader;

use crate::config::ProxyConfig;
use crate::connection::{DEFAULT_MAX_PER_ADDRESS, MAX_CONNECTIONS};

/// `None` where a listener is disabled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listen {
    pub http: Option<SocketAddr>,
    pub admin: Option<SocketAddr>,
    pub resp: Option<SocketAddr>,
    pub grpc: Option<SocketAddr>,
    /// Whether the file names `resp`. If it does not, a second node on the machine starts without it.
    pub is_resp_configured: bool,
    /// The same for `grpc`.
    pub is_grpc_configured: bool,
    /// Only with upstreams.
    pub proxy: Option<SocketAddr>,
    /// Open connections per client address on each of them.
    pub per_address: Option<usize>,
}

impl Default for Listen {
    fn default() -> Self {
        let local = |port| Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
        Listen {
            http: local(8080),
            admin: local(7070),
            resp: local(6380),
            grpc: local(8081),
            is_resp_configured: false,
            is_grpc_configured: false,
            proxy: local(8000),
            per_address: Some(DEFAULT_MAX_PER_ADDRESS),
        }
    }
}

impl Listen {
    pub(super) fn read(
        map: &mut MapReader<'_, '_>,
        proxy: Option<&ProxyConfig>,
        idle: &mut Vec<String>,
    ) -> Listen {
        let defaults = Listen::default();
        let defaults = Listen { proxy: defaults.proxy.filter(|_| proxy.is_some()), ..defaults };
        let Some(mut map) = map.optional_map("listen") else { return defaults };
        let http = address(&mut map, "http", defaults.http);
        let admin = address(&mut map, "admin", defaults.admin);
        let resp = address(&mut map, "resp", defaults.resp);
        let grpc = address(&mut map, "grpc", defaults.grpc);
        let is_resp_configured = map.optional("resp").is_some();
        let is_grpc_configured = map.optional("grpc").is_some();
        let configured = address(&mut map, "proxy", defaults.proxy);
        let proxy = configured.filter(|_| proxy.is_some());
        if configured.is_some() && proxy.is_none() {
            idle.push("listen.proxy without upstreams".to_owned());
        }
        let bound = [("http", http), ("grpc", grpc), ("resp", resp), ("admin", admin), ("proxy", proxy)];
        for (n, (name, first)) in bound.iter().enumerate() {
            for (other, second) in &bound[n + 1..] {
                if let (Some(first), Some(second)) = (first, second)
                    && overlap(*first, *second)
                {
                    map.reject_map(format!("{name} and {other} would both listen on {second}"));
                }
            }
        }
        let per_address = per_address(&mut map);
        map.finish();
        Listen { http, admin, resp, grpc, is_resp_configured, is_grpc_configured, proxy, per_address }
    }
}

fn address(
    map: &mut MapReader<'_, '_>,
    name: &'static str,
    default: Option<SocketAddr>,
) -> Option<SocketAddr> {
    let Some(node) = map.optional(name) else { return default };
    match node.as_str() {
        Some("off") => None,
        Some(text) => match text.parse() {
            Ok(address) => Some(address),
            Err(_) => {
                map.reject(
                    name,
                    node,
                    format!("'{text}' is not a valid address: write 127.0.0.1:8080, [::1]:8080 or off"),
                );
                default
            }
        },
        None => {
            map.reject(name, node, "expected an address such as 127.0.0.1:8080, or off");
            default
        }
    }
}

fn per_address(map: &mut MapReader<'_, '_>) -> Option<usize> {
    let Some(node) = map.optional("per_address") else { return Some(DEFAULT_MAX_PER_ADDRESS) };
    let number = node.as_u64().and_then(|number| usize::try_from(number).ok());
    match (number, node.as_str()) {
        (Some(number @ 1..=MAX_CONNECTIONS), _) => Some(number),
        (_, Some("off")) => None,
        _ => {
            let message = format!("expected a number of connections from 1 to {MAX_CONNECTIONS}, or off");
            map.reject("per_address", node, message);
            None
        }
    }
}

/// Whether two addresses cannot both be bound; port 0 is any free port.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let same_ip = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() == b.port() && a.port() != 0 && same_ip
}
