//! The URL of a store: `scheme://user:password@host:port,host/path?option=value`.

use std::fmt;

use thiserror::Error;
use tollgate::internal::request::percent::{self, Plus};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StoreUrl {
    pub credentials: Option<Credentials>,
    /// `host:port`, without duplicates.
    pub servers: Vec<String>,
    pub path: Option<String>,
    pub options: Vec<(String, String)>,
}

/// User and password. `Debug` omits the password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub user: String,
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StoreUrlError {
    #[error("it does not begin with {scheme}://")]
    WrongScheme { scheme: &'static str },
    #[error("it names no server: write {scheme}://host or {scheme}://host:port,host:port")]
    NoServer { scheme: &'static str },
    #[error("'{server}' is not host or host:port; write an IPv6 address in brackets")]
    InvalidServer { server: String },
    #[error("server '{server}' is named twice")]
    DuplicateServer { server: String },
    #[error("a user needs a password: write user:password@host, with special characters percent-encoded")]
    MissingPassword,
    #[error("unexpected '{extra}' after the servers")]
    UnexpectedPart { extra: String },
    #[error("{option}={value}: {expected}")]
    InvalidOption { option: &'static str, value: String, expected: &'static str },
    #[error("unknown option '{option}': use {known}")]
    UnknownOption { option: String, known: &'static str },
    #[error("option '{option}' is given twice")]
    DuplicateOption { option: String },
    #[error("option '{option}' is an option of ScyllaDB: write scylla:// for such a cluster")]
    ScyllaOnlyOption { option: String },
    #[error("serial=local_serial needs datacenter=NAME, the local datacenter of this node")]
    NoDatacenter,
    #[error("it names no keyspace: write {scheme}://host/keyspace")]
    NoKeyspace { scheme: &'static str },
    #[error(
        "'{keyspace}' is not a valid keyspace name: use letters, digits and _, a letter first, at most 48"
    )]
    InvalidKeyspace { keyspace: String },
}

impl StoreUrl {
    pub fn parse(url: &str, scheme: &'static str, default_port: u16) -> Result<StoreUrl, StoreUrlError> {
        let rest = url.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://"));
        let rest = rest.ok_or(StoreUrlError::WrongScheme { scheme })?;
        // A password may contain any character, `@` too; the servers after the last `@` contain none.
        let (credentials, rest) = match rest.rsplit_once('@') {
            None => (None, rest),
            Some((login, rest)) => {
                let (user, password) = login.split_once(':').ok_or(StoreUrlError::MissingPassword)?;
                (Some(Credentials { user: percent_decode(user), password: percent_decode(password) }), rest)
            }
        };
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let mut servers = Vec::new();
        for host in hosts.split(',').map(str::trim).filter(|host| !host.is_empty()) {
            let server = parse_server(host, default_port)?;
            if servers.contains(&server) {
                return Err(StoreUrlError::DuplicateServer { server });
            }
            servers.push(server);
        }
        if servers.is_empty() {
            return Err(StoreUrlError::NoServer { scheme });
        }
        let options =
            query.into_iter().flat_map(|query| query.split('&')).filter(|option| !option.is_empty());
        let options = options.map(|option| option.split_once('=').unwrap_or((option, "")));
        Ok(StoreUrl {
            credentials,
            servers,
            path: Some(percent_decode(path)).filter(|path| !path.is_empty()),
            options: options.map(|(name, value)| (percent_decode(name), percent_decode(value))).collect(),
        })
    }
}

/// Parses `host`, `host:port`, `[v6]` or `[v6]:port`; adds the default port if there is none.
fn parse_server(text: &str, default_port: u16) -> Result<String, StoreUrlError> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()),
        _ => (text, Some(default_port)),
    };
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let fits = match inner {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)),
    };
    match port.filter(|port| fits && *port != 0) {
        Some(port) => Ok(format!("{host}:{port}")),
        None => Err(StoreUrlError::InvalidServer { server: text.to_owned() }),
    }
}

fn percent_decode(text: &str) -> String {
    percent::text(percent::decode(text, Plus::Literal).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str, servers: &[&str]) -> StoreUrl {
        let url_parts =
            StoreUrl::parse(url, "cassandra", 9042).unwrap_or_else(|error| panic!("{url}: {error}"));
        assert_eq!(url_parts.servers, servers, "{url}");
        url_parts
    }

    #[test]
    fn servers_users_paths_and_options_are_found() {
        check("cassandra://a", &["a:9042"]);
        check("cassandra://a,b:1,10.0.0.1", &["a:9042", "b:1", "10.0.0.1:9042"]);
        check("cassandra://[::1],[::2]:7", &["[::1]:9042", "[::2]:7"]);
        let url_parts =
            check("cassandra://us%3Aer:p%40ss@a/limits?consistency=one&serial=local", &["a:9042"]);
        assert!(!format!("{url_parts:?}").contains("p@ss"), "passwords are not shown");
        assert_eq!(
            url_parts.credentials,
            Some(Credentials { user: "us:er".to_owned(), password: "p@ss".to_owned() })
        );
        assert_eq!(url_parts.path.as_deref(), Some("limits"));
        let option = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(url_parts.options, [option("consistency", "one"), option("serial", "local")]);
        let url_parts = check("cassandra://me:a/b?c@d@host/limits", &["host:9042"]);
        assert_eq!(url_parts.credentials.map(|login| login.password).as_deref(), Some("a/b?c@d"));
    }

    #[test]
    fn invalid_addresses_are_rejected_with_a_hint() {
        for (url, says) in [
            ("redis://a", "begin with cassandra://"),
            ("cassandra://", "names no server"),
            ("cassandra://a,a:9042", "'a:9042' is named twice"),
            ("cassandra://a:port", "'a:port' is not host"),
            ("cassandra://::1", "brackets"),
            ("cassandra://a:0", "'a:0' is not"),
            ("cassandra://user@a", "needs a password"),
        ] {
            let error = StoreUrl::parse(url, "cassandra", 9042).map(|_| ()).expect_err(url).to_string();
            assert!(error.contains(says), "{url}: {error}");
        }
    }
}
