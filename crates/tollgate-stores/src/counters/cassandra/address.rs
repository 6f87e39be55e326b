//! Where the cluster is: `cassandra://user:password@a,b:9042/keyspace?consistency=quorum&serial=serial`.

use std::str::FromStr;

use scylla::statement::{Consistency, SerialConsistency};

use crate::counters::place::{Login, Place, PlaceError};

const DEFAULT_PORT: u16 = 9042;
const MAX_KEYSPACE_BYTES: usize = 48;

/// A Cassandra or ScyllaDB cluster, and the keyspace in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CassandraAddress {
    pub(super) servers: Vec<String>,
    pub(super) login: Option<Login>,
    pub(super) keyspace: String,
    /// How many replicas must have a change before it is answered.
    pub(super) consistency: Consistency,
    /// Among whom transactions are one after the other: everybody, or a datacenter.
    pub(super) serial: SerialConsistency,
}

impl CassandraAddress {
    /// The servers, for messages.
    pub(super) fn name(&self) -> String {
        format!("cassandra at {}", self.servers.join(","))
    }

    /// Reads see what transactions have done.
    pub(super) fn read_consistency(&self) -> Consistency {
        match self.serial {
            SerialConsistency::Serial => Consistency::Serial,
            SerialConsistency::LocalSerial => Consistency::LocalSerial,
        }
    }
}

impl FromStr for CassandraAddress {
    type Err = PlaceError;

    fn from_str(url: &str) -> Result<CassandraAddress, PlaceError> {
        let Place { login, servers, path, options } = Place::parse(url, "cassandra", DEFAULT_PORT)?;
        let keyspace = path.ok_or(PlaceError::NoKeyspace)?;
        let named = keyspace.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !named || keyspace.len() > MAX_KEYSPACE_BYTES || !keyspace.starts_with(|c: char| c.is_alphabetic())
        {
            return Err(PlaceError::Keyspace { keyspace });
        }
        let (mut consistency, mut serial) = (Consistency::Quorum, SerialConsistency::Serial);
        for (option, value) in options {
            match option.as_str() {
                "consistency" => consistency = parse_consistency(value)?,
                "serial" => serial = parse_serial(value)?,
                _ => return Err(PlaceError::Extra { extra: option }),
            }
        }
        Ok(CassandraAddress { servers, login, keyspace, consistency, serial })
    }
}

fn parse_consistency(value: String) -> Result<Consistency, PlaceError> {
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
            return Err(PlaceError::Option { option: "consistency", value, expected });
        }
    })
}

fn parse_serial(value: String) -> Result<SerialConsistency, PlaceError> {
    match value.to_ascii_lowercase().as_str() {
        "serial" => Ok(SerialConsistency::Serial),
        "local_serial" => Ok(SerialConsistency::LocalSerial),
        _ => Err(PlaceError::Option { option: "serial", value, expected: "use serial or local_serial" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consistency_is_strict_unless_said_otherwise() {
        let address: CassandraAddress = "cassandra://a,b/limits".parse().expect("valid");
        assert_eq!(address.consistency, Consistency::Quorum);
        assert_eq!(address.read_consistency(), Consistency::Serial);
        let local = "cassandra://a/limits?consistency=LOCAL_QUORUM&serial=local_serial";
        let address: CassandraAddress = local.parse().expect("valid");
        assert_eq!(address.consistency, Consistency::LocalQuorum);
        assert_eq!(address.read_consistency(), Consistency::LocalSerial);
    }

    #[test]
    fn what_cannot_be_meant_is_rejected_with_the_way_out() {
        for (url, says) in [
            ("cassandra://a", "names no keyspace"),
            ("cassandra://a/my-limits", "'my-limits' is no keyspace"),
            ("cassandra://a/k?consistency=most", "local_quorum"),
            ("cassandra://a/k?serial=quorum", "local_serial"),
            ("cassandra://a/k?tls=yes", "'tls' means nothing"),
        ] {
            let told = url.parse::<CassandraAddress>().expect_err(url).to_string();
            assert!(told.contains(says), "{url}: {told}");
        }
    }
}
