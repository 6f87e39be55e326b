//! The address of a cluster: `cassandra://user:password@a,b:9042/keyspace?consistency=quorum&serial=serial`, or
//! `scylla://…` with the options that only ScyllaDB has.

use std::str::FromStr;

use scylla::statement::{Consistency, SerialConsistency};

use crate::counters::store_url::{Credentials, StoreUrl, StoreUrlError};

const DEFAULT_PORT: u16 = 9042;
const MAX_KEYSPACE_BYTES: usize = 48;
const MAX_DATACENTER_BYTES: usize = 128;
const OPTIONS: &str = "consistency, serial, datacenter";
const SCYLLA_OPTIONS: &str = "consistency, serial, datacenter, tablets, shard_aware_port";

/// A Cassandra or ScyllaDB cluster, and its keyspace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CassandraAddress {
    scheme: &'static str,
    pub(super) servers: Vec<String>,
    pub(super) credentials: Option<Credentials>,
    pub(super) keyspace: String,
    /// Replicas that must have a change before it is acknowledged.
    pub(super) consistency: Consistency,
    /// Replicas among which transactions are serial: all, or those of one datacenter.
    pub(super) serial: SerialConsistency,
    /// The datacenter whose servers receive requests.
    pub(super) datacenter: Option<String>,
    pub(super) tablets: Tablets,
    pub(super) shard_aware_port: ShardAwarePort,
}

/// Whether a keyspace that we create uses ScyllaDB tablets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tablets {
    /// The server's default.
    Default,
    On,
    Off,
}

/// Whether connections to single shards of ScyllaDB may use the shard-aware port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ShardAwarePort {
    /// If the server offers it.
    On,
    /// For networks that translate the port or the client's source port.
    Off,
}

impl CassandraAddress {
    /// The servers, for messages.
    pub(super) fn name(&self) -> String {
        format!("{} at {}", self.scheme, self.servers.join(","))
    }

    /// Consistency of reads that see all completed transactions.
    pub(super) fn read_consistency(&self) -> Consistency {
        match self.serial {
            SerialConsistency::Serial => Consistency::Serial,
            SerialConsistency::LocalSerial => Consistency::LocalSerial,
        }
    }
}

impl FromStr for CassandraAddress {
    type Err = StoreUrlError;

    fn from_str(url: &str) -> Result<CassandraAddress, StoreUrlError> {
        let scheme = if url.starts_with("scylla:") { "scylla" } else { "cassandra" };
        let StoreUrl { credentials, servers, path, options } = StoreUrl::parse(url, scheme, DEFAULT_PORT)?;
        let keyspace = parse_keyspace(path.ok_or(StoreUrlError::NoKeyspace { scheme })?)?;
        let mut address = CassandraAddress {
            scheme,
            servers,
            credentials,
            keyspace,
            consistency: Consistency::Quorum,
            serial: SerialConsistency::Serial,
            datacenter: None,
            tablets: Tablets::Default,
            shard_aware_port: ShardAwarePort::On,
        };
        let mut seen: Vec<&str> = Vec::with_capacity(options.len());
        for (option, value) in &options {
            if seen.contains(&option.as_str()) {
                return Err(StoreUrlError::DuplicateOption { option: option.clone() });
            }
            seen.push(option);
            address.set(option, value)?;
        }
        if address.serial == SerialConsistency::LocalSerial && address.datacenter.is_none() {
            return Err(StoreUrlError::NoDatacenter);
        }
        Ok(address)
    }
}

impl CassandraAddress {
    fn set(&mut self, option: &str, value: &str) -> Result<(), StoreUrlError> {
        match option {
            "consistency" => self.consistency = parse_consistency(value)?,
            "serial" => self.serial = parse_serial(value)?,
            "datacenter" => self.datacenter = Some(parse_datacenter(value)?),
            "tablets" | "shard_aware_port" if self.scheme != "scylla" => {
                return Err(StoreUrlError::ScyllaOnlyOption { option: option.to_owned() });
            }
            "tablets" => self.tablets = parse_switch("tablets", value, [Tablets::On, Tablets::Off])?,
            "shard_aware_port" => {
                let switch = [ShardAwarePort::On, ShardAwarePort::Off];
                self.shard_aware_port = parse_switch("shard_aware_port", value, switch)?;
            }
            _ => {
                let known = if self.scheme == "scylla" { SCYLLA_OPTIONS } else { OPTIONS };
                return Err(StoreUrlError::UnknownOption { option: option.to_owned(), known });
            }
        }
        Ok(())
    }
}

fn parse_keyspace(keyspace: String) -> Result<String, StoreUrlError> {
    let named = keyspace.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if named && keyspace.len() <= MAX_KEYSPACE_BYTES && keyspace.starts_with(|c: char| c.is_alphabetic()) {
        Ok(keyspace)
    } else {
        Err(StoreUrlError::InvalidKeyspace { keyspace })
    }
}

fn parse_consistency(value: &str) -> Result<Consistency, StoreUrlError> {
    Ok(match value.to_ascii_lowercase().as_str() {
        "one" => Consistency::One,
        "two" => Consistency::Two,
        "three" => Consistency::Three,
        "quorum" => Consistency::Quorum,
        "all" => Consistency::All,
        "local_quorum" => Consistency::LocalQuorum,
        "each_quorum" => Consistency::EachQuorum,
        "local_one" => Consistency::LocalOne,
        _ => {
            let expected = "use one, two, three, quorum, all, local_quorum, each_quorum or local_one";
            return Err(refused("consistency", value, expected));
        }
    })
}

fn parse_serial(value: &str) -> Result<SerialConsistency, StoreUrlError> {
    match value.to_ascii_lowercase().as_str() {
        "serial" => Ok(SerialConsistency::Serial),
        "local_serial" => Ok(SerialConsistency::LocalSerial),
        _ => Err(refused("serial", value, "use serial or local_serial")),
    }
}

fn parse_datacenter(value: &str) -> Result<String, StoreUrlError> {
    match value {
        "" => Err(refused("datacenter", value, "use the name that nodetool status shows, such as dc1")),
        long if long.len() > MAX_DATACENTER_BYTES => {
            Err(refused("datacenter", value, "use the name that nodetool status shows, up to 128 bytes"))
        }
        name => Ok(name.to_owned()),
    }
}

fn parse_switch<T>(option: &'static str, value: &str, [on, off]: [T; 2]) -> Result<T, StoreUrlError> {
    match value.to_ascii_lowercase().as_str() {
        "on" => Ok(on),
        "off" => Ok(off),
        _ => Err(refused(option, value, "use on or off")),
    }
}

fn refused(option: &'static str, value: &str, expected: &'static str) -> StoreUrlError {
    StoreUrlError::InvalidOption { option, value: value.to_owned(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> CassandraAddress {
        url.parse().unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn consistency_is_strict_by_default() {
        let address = parse("cassandra://a,b/limits");
        assert_eq!(address.consistency, Consistency::Quorum);
        assert_eq!(address.read_consistency(), Consistency::Serial);
        assert_eq!(address.datacenter, None);
        let local =
            parse("cassandra://a/limits?consistency=LOCAL_QUORUM&serial=local_serial&datacenter=eu%20west");
        assert_eq!(local.consistency, Consistency::LocalQuorum);
        assert_eq!(local.read_consistency(), Consistency::LocalSerial);
        assert_eq!(local.datacenter.as_deref(), Some("eu west"));
    }

    #[test]
    fn scylla_has_options_of_its_own() {
        let address = parse("scylla://a,b/limits");
        assert_eq!((address.tablets, address.shard_aware_port), (Tablets::Default, ShardAwarePort::On));
        assert_eq!(address.name(), "scylla at a:9042,b:9042");
        let address =
            parse("scylla://me:secret@a:19042/limits?tablets=off&shard_aware_port=OFF&datacenter=dc1");
        assert_eq!((address.tablets, address.shard_aware_port), (Tablets::Off, ShardAwarePort::Off));
        assert_eq!(address.servers, ["a:19042"]);
        assert_eq!(parse("scylla://a/limits?tablets=on").tablets, Tablets::On);
    }

    #[test]
    fn invalid_addresses_are_rejected_with_a_hint() {
        let long = format!("cassandra://a/k?datacenter={}", "x".repeat(MAX_DATACENTER_BYTES + 1));
        for (url, says) in [
            ("cassandra://a", "names no keyspace: write cassandra://host/keyspace"),
            ("scylla://a", "names no keyspace: write scylla://host/keyspace"),
            ("scylladb://a/k", "begin with cassandra://"),
            ("cassandra://a/my-limits", "'my-limits' is not a valid keyspace name"),
            ("cassandra://a/k?consistency=most", "local_quorum"),
            ("cassandra://a/k?serial=quorum", "local_serial"),
            ("cassandra://a/k?serial=local_serial", "local_serial needs datacenter="),
            ("cassandra://a/k?datacenter=", "datacenter=: use the name"),
            (long.as_str(), "up to 128 bytes"),
            ("cassandra://a/k?tls=yes", "unknown option 'tls': use consistency, serial, datacenter"),
            ("scylla://a/k?tls=yes", "unknown option 'tls': use consistency, serial, datacenter, tablets"),
            ("cassandra://a/k?tablets=off", "'tablets' is an option of ScyllaDB: write scylla://"),
            ("cassandra://a/k?shard_aware_port=off", "'shard_aware_port' is an option of ScyllaDB"),
            ("scylla://a/k?tablets=no", "tablets=no: use on or off"),
            ("scylla://a/k?shard_aware_port=19042", "shard_aware_port=19042: use on or off"),
            ("cassandra://a/k?serial=serial&serial=serial", "option 'serial' is given twice"),
        ] {
            let error = url.parse::<CassandraAddress>().expect_err(url).to_string();
            assert!(error.contains(says), "{url}: {error}");
        }
    }
}
