//! Where the servers are: `postgres://user:password@primary:5432/db?replica=host2,host3:5433`.

use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::Config;

use crate::rules::DbError;

const MAX_NODES: usize = 16;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// One server.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Its host and port, for messages: never the password.
    pub(super) name: String,
    pub(super) config: Config,
    pub(super) replica: bool,
}

/// The servers of one database. Any of them may be the primary one day.
#[derive(Clone, Debug)]
pub struct PostgresAddress {
    pub(super) nodes: Vec<Node>,
}

impl FromStr for PostgresAddress {
    type Err = DbError;

    fn from_str(url: &str) -> Result<PostgresAddress, DbError> {
        let (rest, options) = url.split_once('?').unwrap_or((url, ""));
        let Some((scheme, rest)) = rest.split_once("://") else { return Err(wrong("expected postgres://")) };
        let (servers, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = servers.rsplit_once('@').map_or(("", servers), |(login, hosts)| (login, hosts));
        let login = if login.is_empty() { String::new() } else { format!("{login}@") };
        let (replicas, options): (Vec<_>, Vec<_>) = options
            .split('&')
            .filter(|option| !option.is_empty())
            .partition(|option| option.starts_with("replica="));
        let replicas = replicas.iter().flat_map(|option| option["replica=".len()..].split(','));
        let hosts = hosts.split(',').map(|host| (host, false)).chain(replicas.map(|host| (host, true)));
        let node = |(host, replica): (&str, bool)| {
            if host.is_empty() {
                return Err(wrong("a host is missing"));
            }
            let url = format!("{scheme}://{login}{host}/{database}?{}", options.join("&"));
            let mut config: Config =
                url.parse().map_err(|error: tokio_postgres::Error| wrong(&error.to_string()))?;
            if config.get_connect_timeout().is_none() {
                config.connect_timeout(CONNECT_TIMEOUT);
            }
            config.application_name("tollgate");
            Ok(Node { name: format!("PostgreSQL at {host}"), config, replica })
        };
        let nodes = hosts.take(MAX_NODES + 1).map(node).collect::<Result<Vec<_>, _>>()?;
        if nodes.len() > MAX_NODES {
            return Err(wrong(&format!("more than {MAX_NODES} servers")));
        }
        Ok(PostgresAddress { nodes })
    }
}

/// An address may hold a password: it is not repeated.
fn wrong(why: &str) -> DbError {
    DbError::Address { text: "postgres://…".to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_have_the_login_and_the_options_of_the_primary() {
        let url = "postgres://ann:secret@one:5433/limits?replica=two,three:5434&connect_timeout=7";
        let address: PostgresAddress = url.parse().expect("valid");
        let told: Vec<_> = address.nodes.iter().map(|node| (node.name.as_str(), node.replica)).collect();
        assert_eq!(
            told,
            [
                ("PostgreSQL at one:5433", false),
                ("PostgreSQL at two", true),
                ("PostgreSQL at three:5434", true)
            ]
        );
        for node in &address.nodes {
            assert_eq!((node.config.get_user(), node.config.get_dbname()), (Some("ann"), Some("limits")));
            assert_eq!(node.config.get_connect_timeout(), Some(&Duration::from_secs(7)));
        }
    }

    #[test]
    fn what_is_wrong_is_told_without_the_password() {
        for url in ["postgres://ann:secret@one/db?colour=red", "postgres://ann:secret@one/db?replica=a,,b"] {
            let told = url.parse::<PostgresAddress>().expect_err(url).to_string();
            assert!(!told.contains("secret"), "{told}");
        }
    }
}
