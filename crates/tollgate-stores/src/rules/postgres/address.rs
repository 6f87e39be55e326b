//! The address of the servers, `postgres://user:password@primary:5432/db?replica=host2,host3:5433`, with the
//! connection options `sslmode`, `sslrootcert` and `password_file`.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tollgate::internal::request::percent::{self, Plus};

use super::tls::{CertificateCheck, PgTls};
use crate::password_file;
use crate::rules::DbError;

const MAX_NODES: usize = 16;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// One server.
#[derive(Clone, Debug)]
pub(super) struct PgServer {
    /// Host and port, for messages; without the password.
    pub(super) name: String,
    pub(super) config: Config,
    pub(super) replica: bool,
}

/// The servers of one database. Any of them can become the primary.
#[derive(Clone, Debug)]
pub struct PostgresAddress {
    pub(super) servers: Vec<PgServer>,
    /// `None`: no TLS.
    pub(super) trust: Option<CertificateCheck>,
    /// CA certificates; the system's if `None`.
    pub(super) root: Option<PathBuf>,
    /// Read for every connection, so that the password can be rotated.
    pub(super) password_file: Option<PathBuf>,
}

impl PostgresAddress {
    /// Resolves relative paths in the address against `folder`.
    pub fn in_folder(mut self, folder: &Path) -> PostgresAddress {
        for path in [&mut self.root, &mut self.password_file].into_iter().flatten() {
            *path = folder.join(&*path);
        }
        self
    }

    /// Whether the certificates and the password can be read.
    pub fn check_files(&self) -> Result<(), String> {
        if let Some(trust) = self.trust {
            PgTls::new(trust, self.root.as_deref())?;
        }
        self.password_file.as_deref().map_or(Ok(()), |path| password_file::read(path).map(drop))
    }
}

impl FromStr for PostgresAddress {
    type Err = DbError;

    fn from_str(url: &str) -> Result<PostgresAddress, DbError> {
        let (rest, options) = url.split_once('?').unwrap_or((url, ""));
        let Some((scheme, rest)) = rest.split_once("://") else {
            return Err(invalid_address("expected postgres://"));
        };
        let (servers, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = servers.rsplit_once('@').map_or(("", servers), |(login, hosts)| (login, hosts));
        let options = UrlOptions::read(options)?;
        if options.password_file.is_some() && login.contains(':') {
            return Err(invalid_address("both a password and a password_file: keep one"));
        }
        let login = if login.is_empty() { String::new() } else { format!("{login}@") };
        let replicas = options.replicas.iter().map(|host| (*host, true));
        let server = |(host, replica): (&str, bool)| {
            if host.is_empty() {
                return Err(invalid_address("a host is missing"));
            }
            let url = format!("{scheme}://{login}{host}/{database}?{}", options.others.join("&"));
            let mut config: Config =
                url.parse().map_err(|error: tokio_postgres::Error| invalid_address(&error.to_string()))?;
            if config.get_connect_timeout().is_none() {
                config.connect_timeout(CONNECT_TIMEOUT);
            }
            config.application_name("tollgate");
            config.ssl_mode(if options.trust.is_some() { SslMode::Require } else { SslMode::Disable });
            Ok(PgServer { name: format!("PostgreSQL at {host}"), config, replica })
        };
        let hosts = hosts.split(',').map(|host| (host, false)).chain(replicas);
        let servers = hosts.take(MAX_NODES + 1).map(server).collect::<Result<Vec<_>, _>>()?;
        if servers.len() > MAX_NODES {
            return Err(invalid_address(&format!("more than {MAX_NODES} servers")));
        }
        let UrlOptions { trust, root, password_file, .. } = options;
        Ok(PostgresAddress { servers, trust, root, password_file })
    }
}

/// The options after the `?`.
#[derive(Default)]
struct UrlOptions<'u> {
    replicas: Vec<&'u str>,
    trust: Option<CertificateCheck>,
    root: Option<PathBuf>,
    password_file: Option<PathBuf>,
    /// Passed on to the driver.
    others: Vec<&'u str>,
}

impl<'u> UrlOptions<'u> {
    fn read(text: &'u str) -> Result<UrlOptions<'u>, DbError> {
        let mut options = UrlOptions::default();
        let mut mode = "disable";
        for option in text.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let path = || PathBuf::from(percent::text(percent::decode(value, Plus::Literal).collect()));
            match name {
                "replica" => options.replicas.extend(value.split(',')),
                "sslmode" => mode = value,
                "sslrootcert" => options.root = Some(path()),
                "password_file" => options.password_file = Some(path()),
                _ => options.others.push(option),
            }
        }
        options.trust = match (mode, &options.root) {
            ("disable", None) => None,
            ("disable", Some(_)) => return Err(invalid_address("sslrootcert needs sslmode=verify-full")),
            ("require", None) => Some(CertificateCheck::Unverified),
            // As in libpq.
            ("require", Some(_)) | ("verify-ca", _) => Some(CertificateCheck::Chain),
            ("verify-full", _) => Some(CertificateCheck::ChainAndHost),
            _ => {
                return Err(invalid_address(
                    "sslmode must be one of disable, require, verify-ca and verify-full",
                ));
            }
        };
        Ok(options)
    }
}

/// The address is not repeated, because it may contain a password.
fn invalid_address(why: &str) -> DbError {
    DbError::InvalidAddress { text: "postgres://…".to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_have_the_login_and_the_options_of_the_primary() {
        let url = "postgres://ann:secret@one:5433/limits?replica=two,three:5434&connect_timeout=7";
        let address: PostgresAddress = url.parse().expect("valid");
        let servers: Vec<_> = address.servers.iter().map(|node| (node.name.as_str(), node.replica)).collect();
        assert_eq!(
            servers,
            [
                ("PostgreSQL at one:5433", false),
                ("PostgreSQL at two", true),
                ("PostgreSQL at three:5434", true)
            ]
        );
        for node in &address.servers {
            assert_eq!((node.config.get_user(), node.config.get_dbname()), (Some("ann"), Some("limits")));
            assert_eq!(node.config.get_connect_timeout(), Some(&Duration::from_secs(7)));
        }
    }

    #[test]
    fn errors_do_not_show_the_password() {
        for options in [
            "colour=red",
            "replica=a,,b",
            "sslmode=prefer",
            "sslmode=",
            "sslrootcert=ca.pem",
            "password_file=secret",
        ] {
            let url = &format!("postgres://ann:secret@one/db?{options}");
            let error = url.parse::<PostgresAddress>().expect_err(url).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn the_options_choose_how_a_server_is_verified() {
        for (options, trust) in [
            ("", None),
            ("?sslmode=disable", None),
            ("?sslmode=require", Some(CertificateCheck::Unverified)),
            ("?sslmode=require&sslrootcert=ca.pem", Some(CertificateCheck::Chain)),
            ("?sslmode=verify-ca", Some(CertificateCheck::Chain)),
            ("?sslrootcert=ca.pem&sslmode=verify-full", Some(CertificateCheck::ChainAndHost)),
        ] {
            let address: PostgresAddress = format!("postgres://ann@one/db{options}").parse().expect(options);
            assert_eq!(address.trust, trust, "{options}");
            let ssl = if trust.is_some() { SslMode::Require } else { SslMode::Disable };
            assert_eq!(address.servers[0].config.get_ssl_mode(), ssl, "never left to the server");
        }
    }

    #[test]
    fn paths_are_relative_to_the_file_that_names_them() {
        let url =
            "postgres://ann@one/db?sslmode=verify-full&sslrootcert=our%20ca.pem&password_file=/run/secret";
        let address = url.parse::<PostgresAddress>().expect("valid").in_folder(Path::new("/etc/tollgate"));
        assert_eq!(address.root.as_deref(), Some(Path::new("/etc/tollgate/our ca.pem")));
        assert_eq!(address.password_file.as_deref(), Some(Path::new("/run/secret")));
    }
}
