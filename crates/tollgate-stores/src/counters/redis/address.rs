//! The address of the servers: `redis://user:password@host:port/db` and its variants.
//!
//! Neither errors nor `Debug` output contain a password.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;
use tollgate::internal::request::percent::{self, Plus};

use crate::password_file;

/// The address of a Redis or Valkey installation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedisAddress {
    pub(super) deployment: RedisDeployment,
    pub(super) credentials: RedisCredentials,
    /// Credentials for the sentinels, if they require authentication.
    pub(super) sentinel_credentials: RedisCredentials,
    pub(super) database: u32,
    pub(super) tls: Option<TlsFiles>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum RedisDeployment {
    Single(Endpoint),
    Sentinel { sentinels: Vec<Endpoint>, service: String },
    Cluster(Vec<Endpoint>),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Endpoint {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Endpoint::Tcp { host, port } => write!(f, "{host}:{port}"),
            Endpoint::Unix(path) => path.display().fmt(f),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct RedisCredentials {
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    /// Read for every connection, so that the password can be rotated.
    pub(super) password_file: Option<PathBuf>,
}

impl RedisCredentials {
    /// The password, from its file if there is one.
    pub(super) fn read_password(&self) -> Result<Option<String>, String> {
        match &self.password_file {
            Some(path) => password_file::read(path).map(Some),
            None => Ok(self.password.clone()),
        }
    }

    fn has_two_passwords(&self) -> bool {
        self.password.is_some() && self.password_file.is_some()
    }
}

impl fmt::Debug for RedisCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = self.password.as_ref().map(|_| "…");
        f.debug_struct("Login").field("user", &self.user).field("password", &password).finish_non_exhaustive()
    }
}

/// PEM files; without `ca` the system's certificate authorities are trusted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct TlsFiles {
    pub(super) ca: Option<PathBuf>,
    pub(super) certificate: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RedisAddressError {
    #[error(
        "unknown scheme '{0}': use redis, rediss, redis+sentinel, rediss+sentinel, redis+cluster, rediss+cluster or redis+unix"
    )]
    Scheme(String),
    #[error("no scheme: write redis://host:port/database")]
    NoScheme,
    #[error("no host: write redis://host:port/database")]
    NoHost,
    #[error(
        "one server expected, {0} found: several are written redis+cluster://a,b,c or redis+sentinel://a,b,c/service"
    )]
    SeveralHosts(usize),
    #[error("port '{0}' is not a number between 1 and 65535")]
    Port(String),
    #[error("database '{0}' is not a number between 0 and 65535")]
    Database(String),
    #[error("a cluster has only database 0")]
    ClusterDatabase,
    #[error(
        "no service: write redis+sentinel://a,b,c/service, where service is the name that the sentinels watch"
    )]
    NoService,
    #[error("no socket: write redis+unix:///path/to/redis.sock")]
    NoSocket,
    #[error("a ? or @ in a user or password must be written %3F or %40")]
    Unescaped,
    #[error(
        "unknown option '{0}': use db, password_file, ca, cert, key, sentinel_user, sentinel_password or sentinel_password_file"
    )]
    Option(String),
    #[error("option '{0}' is for rediss addresses")]
    NotTls(String),
    #[error("cert and key go together")]
    CertificateWithoutKey,
    #[error("both a password and a password file: keep one")]
    TwoPasswords,
}

const DEFAULT_PORT: u16 = 6379;
const DEFAULT_SENTINEL_PORT: u16 = 26379;

impl FromStr for RedisAddress {
    type Err = RedisAddressError;

    fn from_str(text: &str) -> Result<RedisAddress, RedisAddressError> {
        let (scheme, rest) = text.split_once("://").ok_or(RedisAddressError::NoScheme)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if query.contains('@') {
            return Err(RedisAddressError::Unescaped);
        }
        // A password may contain a slash, escaped or not; a host cannot contain an `@`.
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => (parse_login(login), rest),
            None => (RedisCredentials::default(), rest),
        };
        let (tls, kind) = match scheme.split_once('+').unwrap_or((scheme, "single")) {
            ("redis", kind) => (None, kind),
            ("rediss", kind) if kind != "unix" => (Some(TlsFiles::default()), kind),
            _ => return Err(RedisAddressError::Scheme(scheme.to_owned())),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let mut database = None;
        let deployment = match kind {
            "single" => {
                database = Some(path).filter(|path| !path.is_empty());
                let mut hosts = parse_hosts(hosts, DEFAULT_PORT)?;
                match hosts.len() {
                    1 => RedisDeployment::Single(hosts.swap_remove(0)),
                    several => return Err(RedisAddressError::SeveralHosts(several)),
                }
            }
            "sentinel" => {
                let (service, path) = path.split_once('/').unwrap_or((path, ""));
                database = Some(path).filter(|path| !path.is_empty());
                let service = percent_decode(service);
                let sentinels = parse_hosts(hosts, DEFAULT_SENTINEL_PORT)?;
                if service.is_empty() {
                    return Err(RedisAddressError::NoService);
                }
                RedisDeployment::Sentinel { sentinels, service }
            }
            "cluster" => RedisDeployment::Cluster(parse_hosts(hosts, DEFAULT_PORT)?),
            "unix" if path.is_empty() => return Err(RedisAddressError::NoSocket),
            "unix" => {
                RedisDeployment::Single(Endpoint::Unix(PathBuf::from(format!("/{}", percent_decode(path)))))
            }
            _ => return Err(RedisAddressError::Scheme(scheme.to_owned())),
        };
        let is_cluster = matches!(deployment, RedisDeployment::Cluster(_));
        if is_cluster && !path.is_empty() && path != "0" {
            return Err(RedisAddressError::ClusterDatabase);
        }
        let mut address = RedisAddress {
            deployment,
            credentials,
            sentinel_credentials: RedisCredentials::default(),
            database: 0,
            tls,
        };
        address.read_options(query)?;
        if let Some(database) = database {
            address.database = parse_database(database)?;
        }
        if is_cluster && address.database != 0 {
            return Err(RedisAddressError::ClusterDatabase);
        }
        Ok(address)
    }
}

impl RedisAddress {
    /// Whether the files of its passwords can be read.
    pub fn check_files(&self) -> Result<(), String> {
        self.credentials.read_password()?;
        self.sentinel_credentials.read_password().map(drop)
    }

    fn read_options(&mut self, query: &str) -> Result<(), RedisAddressError> {
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = percent_decode(value);
            let file = |files: &mut Option<TlsFiles>, set: fn(&mut TlsFiles, PathBuf)| match files {
                Some(files) => {
                    set(files, PathBuf::from(&value));
                    Ok(())
                }
                None => Err(RedisAddressError::NotTls(name.to_owned())),
            };
            match name {
                "db" => self.database = parse_database(&value)?,
                "password_file" => self.credentials.password_file = Some(PathBuf::from(value)),
                "ca" => file(&mut self.tls, |files, path| files.ca = Some(path))?,
                "cert" => file(&mut self.tls, |files, path| files.certificate = Some(path))?,
                "key" => file(&mut self.tls, |files, path| files.key = Some(path))?,
                "sentinel_user" => self.sentinel_credentials.user = Some(value),
                "sentinel_password" => self.sentinel_credentials.password = Some(value),
                "sentinel_password_file" => {
                    self.sentinel_credentials.password_file = Some(PathBuf::from(value));
                }
                _ => return Err(RedisAddressError::Option(name.to_owned())),
            }
        }
        if self.credentials.has_two_passwords() || self.sentinel_credentials.has_two_passwords() {
            return Err(RedisAddressError::TwoPasswords);
        }
        let half = |files: &TlsFiles| files.certificate.is_some() != files.key.is_some();
        if self.tls.as_ref().is_some_and(half) {
            Err(RedisAddressError::CertificateWithoutKey)
        } else {
            Ok(())
        }
    }
}

fn parse_login(text: &str) -> RedisCredentials {
    let filled = |text: &str| Some(percent_decode(text)).filter(|text| !text.is_empty());
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    RedisCredentials { user: filled(user), password: filled(password), password_file: None }
}

fn parse_hosts(text: &str, default_port: u16) -> Result<Vec<Endpoint>, RedisAddressError> {
    text.split(',').map(|host| parse_host(host.trim(), default_port)).collect()
}

/// Parses `host`, `host:port`, `[::1]` or `[::1]:port`.
pub(super) fn parse_host(text: &str, default_port: u16) -> Result<Endpoint, RedisAddressError> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err(RedisAddressError::NoHost);
    }
    let port = match port {
        None => default_port,
        Some(port) => {
            let number = port.parse().ok().filter(|port| *port > 0);
            number.ok_or_else(|| RedisAddressError::Port(redacted(port)))?
        }
    };
    Ok(Endpoint::Tcp { host: host.to_owned(), port })
}

fn parse_database(text: &str) -> Result<u32, RedisAddressError> {
    text.parse::<u16>().map(u32::from).map_err(|_| RedisAddressError::Database(redacted(text)))
}

/// The text if it is a short number; otherwise redacted, because it could be part of a password.
fn redacted(text: &str) -> String {
    let digits = text.len() <= 10 && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.to_owned() } else { "…".to_owned() }
}

fn percent_decode(text: &str) -> String {
    percent::text(percent::decode(text, Plus::Literal).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> RedisAddress {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn every_kind_of_address_is_read() {
        assert_eq!(read("redis://localhost").deployment, RedisDeployment::Single(tcp("localhost", 6379)));
        let full = read("rediss://me:p%40ss%2F@[::1]:7000/3?ca=/etc/ca.pem");
        assert_eq!((full.deployment, full.database), (RedisDeployment::Single(tcp("::1", 7000)), 3));
        assert_eq!(
            (full.credentials.user.as_deref(), full.credentials.password.as_deref()),
            (Some("me"), Some("p@ss/"))
        );
        assert_eq!(full.tls.and_then(|files| files.ca), Some(PathBuf::from("/etc/ca.pem")));
        let sentinels = vec![tcp("a", 26379), tcp("b", 1)];
        let group = read("redis+sentinel://:secret@a,b:1/main/2?sentinel_password=other");
        assert_eq!(group.deployment, RedisDeployment::Sentinel { sentinels, service: "main".to_owned() });
        assert_eq!((group.database, group.sentinel_credentials.password.as_deref()), (2, Some("other")));
        let mounted = read("redis://me@a?password_file=/run/secrets/redis").credentials;
        assert_eq!(mounted.password_file, Some(PathBuf::from("/run/secrets/redis")));
        assert!(mounted.read_password().expect_err("no such file").contains("/run/secrets/redis"));
        assert_eq!(
            read("redis+cluster://a,b:7").deployment,
            RedisDeployment::Cluster(vec![tcp("a", 6379), tcp("b", 7)])
        );
        let socket = read("redis+unix:///run/redis.sock?db=1");
        assert_eq!(
            (socket.deployment, socket.database),
            (RedisDeployment::Single(Endpoint::Unix("/run/redis.sock".into())), 1)
        );
    }

    #[test]
    fn bad_addresses_are_rejected_by_name_and_without_the_password() {
        let cases = [
            ("localhost:6379", "no scheme"),
            ("http://localhost", "unknown scheme 'http'"),
            ("rediss+unix:///x", "unknown scheme 'rediss+unix'"),
            ("redis://", "no host"),
            ("redis://a,b", "one server expected, 2 found"),
            ("redis://u:hunter2@host:99999", "port '99999'"),
            ("redis://u:hunter2@host/70000", "database '70000'"),
            ("redis://u:hunter2", "port '…'"),
            ("redis://u:1/hunter2", "database '…'"),
            ("redis://u:1?hunter2@host", "written %3F or %40"),
            ("redis://u:hunter2@host?shards=3", "unknown option 'shards'"),
            ("redis://host?ca=/x", "option 'ca' is for rediss"),
            ("rediss://host?cert=/x", "cert and key go together"),
            ("redis+cluster://a,b/1", "only database 0"),
            ("redis+cluster://a,b?db=1", "only database 0"),
            ("redis+sentinel://a,b", "no service"),
            ("redis+unix://", "no socket"),
            ("redis://u:hunter2@host?password_file=/x", "keep one"),
        ];
        for (text, part) in cases {
            let message = text.parse::<RedisAddress>().expect_err(text).to_string();
            assert!(message.contains(part) && !message.contains("hunter2"), "{text}: {message}");
        }
        assert!(!format!("{:?}", read("redis://u:hunter2@host")).contains("hunter2"));
    }
}
