//! The address of the servers: `memcached://user:password@a,b:11212`.

use std::str::FromStr;

use crate::counters::store_url::{Credentials, StoreUrl, StoreUrlError};

const DEFAULT_PORT: u16 = 11211;

/// One memcached server, or several that share the keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemcachedAddress {
    pub(super) servers: Vec<String>,
    pub(super) credentials: Option<Credentials>,
}

impl FromStr for MemcachedAddress {
    type Err = StoreUrlError;

    fn from_str(url: &str) -> Result<MemcachedAddress, StoreUrlError> {
        let StoreUrl { credentials, servers, path, options } =
            StoreUrl::parse(url, "memcached", DEFAULT_PORT)?;
        match path.or(options.into_iter().next().map(|(name, _)| name)) {
            Some(extra) => Err(StoreUrlError::UnexpectedPart { extra }),
            None => Ok(MemcachedAddress { servers, credentials }),
        }
    }
}
