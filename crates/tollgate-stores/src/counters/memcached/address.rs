//! Where the servers are: `memcached://user:password@a,b:11212`.

use std::str::FromStr;

use crate::counters::place::{Login, Place, PlaceError};

const DEFAULT_PORT: u16 = 11211;

/// One memcached, or several that share the keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemcachedAddress {
    pub(super) servers: Vec<String>,
    pub(super) login: Option<Login>,
}

impl FromStr for MemcachedAddress {
    type Err = PlaceError;

    fn from_str(url: &str) -> Result<MemcachedAddress, PlaceError> {
        let Place { login, servers, path, options } = Place::parse(url, "memcached", DEFAULT_PORT)?;
        match path.or(options.into_iter().next().map(|(name, _)| name)) {
            Some(extra) => Err(PlaceError::Extra { extra }),
            None => Ok(MemcachedAddress { servers, login }),
        }
    }
}
