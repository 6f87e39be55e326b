//! The addresses to listen on.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tollgate::internal::document::MapReader;

use crate::config::{IdleSetting, LISTENERS, ProxyConfig};
use crate::connection::{DEFAULT_MAX_PER_ADDRESS, MAX_CONNECTIONS};

/// `None` where a listener is disabled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listen {
    pub http: Option<ListenAddress>,
    pub admin: Option<ListenAddress>,
    pub resp: Option<ListenAddress>,
    pub grpc: Option<ListenAddress>,
    /// Whether the file names `resp`. If it does not, a second node on the machine starts without it.
    pub is_resp_configured: bool,
    /// The same for `grpc`.
    pub is_grpc_configured: bool,
    /// Only with upstreams.
    pub proxy: Option<ListenAddress>,
    /// Open connections per client address on each of them.
    pub per_address: Option<usize>,
    /// The permissions of Unix sockets.
    pub unix_mode: u32,
}

/// Where a listener accepts connections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListenAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl ListenAddress {
    /// Whether only processes of this machine can connect.
    pub fn is_local(&self) -> bool {
        match self {
            ListenAddress::Tcp(address) => address.ip().to_canonical().is_loopback(),
            ListenAddress::Unix(_) => true,
        }
    }

    fn parse(text: &str, folder: &Path) -> Result<ListenAddress, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = folder.join(path);
            return match path.as_os_str().len() {
                0 => Err("the path of the Unix socket is missing: write unix:/run/tollgate.sock".to_owned()),
                1..=MAX_UNIX_PATH => Ok(ListenAddress::Unix(path)),
                length => Err(format!(
                    "the path of a Unix socket has at most {MAX_UNIX_PATH} bytes, and this one {length}"
                )),
            };
        }
        text.parse().map(ListenAddress::Tcp).map_err(|_| {
            format!("'{text}' is not a valid address: write 127.0.0.1:8080, [::1]:8080, unix:/path or off")
        })
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => address.fmt(f),
            ListenAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The kernel's bound (`sun_path`), without the NUL at the end.
const MAX_UNIX_PATH: usize = 107;
/// Owner and group may connect.
const DEFAULT_UNIX_MODE: u32 = 0o660;

impl Default for Listen {
    fn default() -> Self {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let local = |port| Some(ListenAddress::Tcp(SocketAddr::new(loopback, port)));
        Listen {
            http: local(8080),
            admin: local(7070),
            resp: local(6380),
            grpc: local(8081),
            is_resp_configured: false,
            is_grpc_configured: false,
            proxy: local(8000),
            per_address: Some(DEFAULT_MAX_PER_ADDRESS),
            unix_mode: DEFAULT_UNIX_MODE,
        }
    }
}

impl Listen {
    /// The address of a listener; `None` if it is disabled.
    pub fn address(&self, listener: &str) -> Option<&ListenAddress> {
        let address = match listener {
            "http" => &self.http,
            "grpc" => &self.grpc,
            "resp" => &self.resp,
            "proxy" => &self.proxy,
            "admin" => &self.admin,
            _ => &None,
        };
        address.as_ref()
    }

    /// The listeners that are not disabled.
    pub fn addresses(&self) -> impl Iterator<Item = (&'static str, &ListenAddress)> {
        LISTENERS.into_iter().filter_map(|name| Some((name, self.address(name)?)))
    }

    /// The settings, by name, and whether they differ.
    pub fn differences(&self, other: &Listen) -> [(&'static str, bool); 7] {
        [
            ("listen.http", self.http != other.http),
            ("listen.grpc", self.grpc != other.grpc),
            ("listen.resp", self.resp != other.resp),
            ("listen.proxy", self.proxy != other.proxy),
            ("listen.admin", self.admin != other.admin),
            ("listen.per_address", self.per_address != other.per_address),
            ("listen.unix_mode", self.unix_mode != other.unix_mode),
        ]
    }

    pub(super) fn read(
        map: &mut MapReader<'_, '_>,
        folder: &Path,
        proxy: Option<&ProxyConfig>,
        idle: &mut Vec<IdleSetting>,
    ) -> Listen {
        let defaults = Listen::default();
        let defaults = Listen { proxy: defaults.proxy.filter(|_| proxy.is_some()), ..defaults };
        let Some(mut map) = map.optional_map("listen") else { return defaults };
        let http = address(&mut map, "http", folder, defaults.http);
        let admin = address(&mut map, "admin", folder, defaults.admin);
        let resp = address(&mut map, "resp", folder, defaults.resp);
        let grpc = address(&mut map, "grpc", folder, defaults.grpc);
        let is_resp_configured = map.optional("resp").is_some();
        let is_grpc_configured = map.optional("grpc").is_some();
        let configured = address(&mut map, "proxy", folder, defaults.proxy);
        let is_idle = configured.is_some() && proxy.is_none();
        let proxy = configured.filter(|_| proxy.is_some());
        if is_idle {
            idle.push(IdleSetting::new("listen.proxy", "upstreams"));
        }
        let bound = [("http", &http), ("grpc", &grpc), ("resp", &resp), ("admin", &admin), ("proxy", &proxy)];
        for (n, (name, first)) in bound.iter().enumerate() {
            for (other, second) in &bound[n + 1..] {
                if let (Some(first), Some(second)) = (first, second)
                    && overlap(first, second)
                {
                    map.reject_map(format!("{name} and {other} would both listen on {second}"));
                }
            }
        }
        let per_address = per_address(&mut map);
        let unix_mode = unix_mode(&mut map);
        map.finish();
        Listen {
            http,
            admin,
            resp,
            grpc,
            is_resp_configured,
            is_grpc_configured,
            proxy,
            per_address,
            unix_mode,
        }
    }
}

fn address(
    map: &mut MapReader<'_, '_>,
    name: &'static str,
    folder: &Path,
    default: Option<ListenAddress>,
) -> Option<ListenAddress> {
    let Some(node) = map.optional(name) else { return default };
    match node.as_str() {
        Some("off") => None,
        Some(text) => match ListenAddress::parse(text, folder) {
            Ok(address) => Some(address),
            Err(message) => {
                map.reject(name, node, message);
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

/// Octal digits as `chmod` takes them.
fn unix_mode(map: &mut MapReader<'_, '_>) -> u32 {
    let Some(node) = map.optional("unix_mode") else { return DEFAULT_UNIX_MODE };
    let digits = node.as_u64().map(|number| number.to_string()).or(node.as_str().map(str::to_owned));
    let mode = digits.and_then(|digits| u32::from_str_radix(&digits, 8).ok()).filter(|mode| *mode <= 0o777);
    mode.unwrap_or_else(|| {
        map.reject("unix_mode", node, "expected permissions in octal, such as \"660\"");
        DEFAULT_UNIX_MODE
    })
}

/// Whether two addresses cannot both be bound; port 0 is any free port.
fn overlap(a: &ListenAddress, b: &ListenAddress) -> bool {
    let (ListenAddress::Tcp(a), ListenAddress::Tcp(b)) = (a, b) else { return a == b };
    let same_ip = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() == b.port() && a.port() != 0 && same_ip
}
