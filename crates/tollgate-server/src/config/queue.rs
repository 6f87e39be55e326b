//! Settings of the request queue: `queue`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::HeaderName;
use tollgate::internal::document::MapReader;
use tollgate_stores::counters::central::CentralAddress;
use tollgate_stores::counters::redis::RedisAddress;

use crate::config::StoreConfig;
use crate::config::proxy::duration;
use crate::queue::QueueBounds;

const FILE: &str = "tollgate-queue.db";
const NAME: &str = "default";
const MAX_NAME: usize = 64;
const MAX_BODY: u64 = 64 << 20;
const MAX_BODY_DEFAULT: usize = 1 << 20;
const MAX_ITEMS: usize = 100_000;
const MAX_BYTES: usize = 1 << 30;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueConfig {
    pub location: QueueLocation,
    /// The status of the response to an enqueued request: 202 or 429.
    pub accepted_status: u16,
    /// The headers that are stored and replayed; others are dropped.
    pub headers: Vec<HeaderName>,
    pub max_body: usize,
    pub bounds: QueueBounds,
    /// A request older than this becomes dead.
    pub ttl: Duration,
    pub max_tries: u32,
    /// Delay before the first retry; it doubles each time.
    pub backoff: Duration,
}

/// The storage of the queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum QueueLocation {
    File(PathBuf),
    /// Under a name that the nodes in front of the same API share.
    Redis {
        address: Box<RedisAddress>,
        name: String,
    },
}

impl fmt::Display for QueueLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueLocation::File(path) => path.display().fmt(f),
            QueueLocation::Redis { name, .. } => write!(f, "'{name}' on Redis"),
        }
    }
}

impl QueueLocation {
    /// The file, if one is named; otherwise the Redis that is named here, or that of the counters.
    fn read(
        map: &mut MapReader<'_, '_>,
        folder: &Path,
        shared: Option<RedisAddress>,
    ) -> Option<QueueLocation> {
        let store = map.optional("store");
        let name = map.optional("name");
        let file = map.optional_text("file").map(|file| folder.join(file));
        let address = match store.map(|node| (node, node.as_str().unwrap_or_default())) {
            Some((_, "sqlite")) => None,
            Some((node, text)) => match text.parse() {
                Ok(address) => Some(address),
                Err(error) => {
                    map.reject("store", node, format!("expected sqlite or the address of a Redis: {error}"));
                    return None;
                }
            },
            None => shared.filter(|_| file.is_none()),
        };
        if let (Some(_), Some(node), Some(_)) = (&file, store, &address) {
            map.reject("store", node, "a queue is in a file or on a Redis, not both");
        }
        let Some(address) = address else {
            if let Some(node) = name {
                map.reject("name", node, "only a queue on a Redis has a name");
            }
            return file.map(QueueLocation::File);
        };
        let plain = |name: &&str| {
            (1..=MAX_NAME).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        };
        let name = match name.map(|node| (node, node.as_str().filter(plain))) {
            Some((node, None)) => {
                map.reject(
                    "name",
                    node,
                    format!("expected up to {MAX_NAME} letters, digits, '.', '_' or '-'"),
                );
                return None;
            }
            Some((_, Some(name))) => name,
            None => NAME,
        };
        Some(QueueLocation::Redis { address: Box::new(address), name: name.to_owned() })
    }
}

impl QueueConfig {
    fn new(folder: &Path) -> QueueConfig {
        let headers =
            ["accept", "authorization", "content-encoding", "content-type", "cookie", "idempotency-key"];
        QueueConfig {
            location: QueueLocation::File(folder.join(FILE)),
            accepted_status: 202,
            headers: headers.map(HeaderName::from_static).to_vec(),
            max_body: MAX_BODY_DEFAULT,
            bounds: QueueBounds::new(MAX_ITEMS, MAX_BYTES, MAX_BODY_DEFAULT),
            ttl: Duration::from_secs(86_400),
            max_tries: 10,
            backoff: Duration::from_secs(1),
        }
    }

    /// `folder` is that of the state; `store` is the central store.
    pub(super) fn read(
        map: &mut MapReader<'_, '_>,
        folder: &Path,
        store: Option<&StoreConfig>,
    ) -> QueueConfig {
        let mut config = QueueConfig::new(folder);
        let shared = store.and_then(|store| match &store.address {
            CentralAddress::Redis(address) => Some(address.clone()),
            _ => None,
        });
        let Some(mut map) = map.optional_map("queue") else {
            if let Some(address) = shared {
                config.location = QueueLocation::Redis { address: Box::new(address), name: NAME.to_owned() };
            }
            return config;
        };
        if let Some(location) = QueueLocation::read(&mut map, folder, shared) {
            config.location = location;
        }
        if let Some(node) = map.optional("answer") {
            match node.as_u64() {
                Some(answer @ (202 | 429)) => config.accepted_status = answer as u16,
                _ => map.reject("answer", node, "expected 202 or 429"),
            }
        }
        if let Some(nodes) = map.optional_list("headers") {
            config.headers.clear();
            for (n, node) in nodes.iter().enumerate() {
                match node.as_str().and_then(|name| HeaderName::from_bytes(name.as_bytes()).ok()) {
                    Some(name) => config.headers.push(name),
                    None => map.reject(&format!("headers[{n}]"), node, "expected the name of a header"),
                }
            }
        }
        let bounded = |map: &mut MapReader<'_, '_>, name: &'static str, most: u64| {
            let node = map.optional(name)?;
            let number = node.as_u64().filter(|number| (1..=most).contains(number));
            if number.is_none() {
                map.reject(name, node, format!("expected a number from 1 to {most}"));
            }
            number
        };
        config.max_body =
            bounded(&mut map, "max_body", MAX_BODY).map_or(config.max_body, |most| most as usize);
        let items = bounded(&mut map, "max_items", 10_000_000).map_or(MAX_ITEMS, |most| most as usize);
        let bytes = bounded(&mut map, "max_bytes", 1 << 50).map_or(MAX_BYTES, |most| most as usize);
        config.bounds = QueueBounds::new(items, bytes, config.max_body);
        config.max_tries = bounded(&mut map, "max_tries", 1_000).map_or(config.max_tries, |most| most as u32);
        config.ttl = duration(&mut map, "ttl").unwrap_or(config.ttl);
        config.backoff = duration(&mut map, "backoff").unwrap_or(config.backoff);
        map.finish();
        config
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    use super::*;

    const RULES: &str = "upstreams: [http://a:1]\nrules: [{ id: a, limit: 1/s, on_exceed: queue }]\n";

    fn location(text: &str) -> Result<String, String> {
        let config = Config::parse(&format!("{RULES}{text}"), Path::new("/etc"));
        let problems = |problems: tollgate::internal::document::Problems| {
            problems.into_iter().map(|problem| problem.to_string()).collect::<Vec<_>>().join("; ")
        };
        let config = config.map_err(problems)?;
        Ok(config.queue.expect("a rule queues").location.to_string())
    }

    #[test]
    fn the_queue_is_at_its_configured_location_or_with_the_counters() {
        let on_redis = |name: &str| Ok(format!("'{name}' on Redis"));
        assert_eq!(location(""), Ok("/etc/tollgate-queue.db".to_owned()));
        assert_eq!(location("counters: redis://b"), on_redis("default"));
        assert_eq!(location("counters: redis://b\nqueue: { name: jobs }"), on_redis("jobs"));
        assert_eq!(location("counters: memcached://b"), Ok("/etc/tollgate-queue.db".to_owned()));
        assert_eq!(location("queue: { store: 'redis+cluster://a,b' }"), on_redis("default"));
        assert_eq!(location("counters: redis://b\nqueue: { store: sqlite }"), location(""));
        assert_eq!(location("counters: redis://b\nqueue: { file: q.db }"), Ok("/etc/q.db".to_owned()));
        for (text, part) in [
            ("queue: { store: memcached://b }", "expected sqlite or the address of a Redis"),
            ("queue: { store: redis://b, file: q.db }", "not both"),
            ("queue: { name: jobs }", "only a queue on a Redis has a name"),
            ("queue: { store: redis://b, name: 'a}' }", "letters, digits"),
        ] {
            let message = location(text).expect_err(text);
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
