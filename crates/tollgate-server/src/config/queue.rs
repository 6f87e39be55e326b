//! How requests are put aside: the `queue` of the file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::HeaderName;
use tollgate::document::MapReader;

use crate::config::proxy::span;

const FILE: &str = "tollgate-queue.db";
const MAX_BODY: u64 = 64 << 20;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueConfig {
    pub file: PathBuf,
    /// What the caller is told: 202 or 429.
    pub answer: u16,
    /// The headers that are sent later; others are not kept.
    pub headers: Vec<HeaderName>,
    pub max_body: usize,
    pub max_items: usize,
    /// A request older than this is given up.
    pub ttl: Duration,
    pub max_tries: u32,
    /// Before the first repetition; each further one waits twice as long.
    pub backoff: Duration,
}

impl QueueConfig {
    fn new(folder: &Path) -> QueueConfig {
        let headers =
            ["accept", "authorization", "content-encoding", "content-type", "cookie", "idempotency-key"];
        QueueConfig {
            file: folder.join(FILE),
            answer: 202,
            headers: headers.map(HeaderName::from_static).to_vec(),
            max_body: 1 << 20,
            max_items: 100_000,
            ttl: Duration::from_secs(86_400),
            max_tries: 10,
            backoff: Duration::from_secs(1),
        }
    }

    /// `folder`: where state is kept.
    pub(super) fn read(map: &mut MapReader<'_, '_>, folder: &Path) -> QueueConfig {
        let mut config = QueueConfig::new(folder);
        let Some(mut map) = map.optional_map("queue") else { return config };
        if let Some(file) = map.optional_text("file") {
            config.file = folder.join(file);
        }
        if let Some(node) = map.optional("answer") {
            match node.as_u64() {
                Some(answer @ (202 | 429)) => config.answer = answer as u16,
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
        config.max_items =
            bounded(&mut map, "max_items", 10_000_000).map_or(config.max_items, |most| most as usize);
        config.max_tries = bounded(&mut map, "max_tries", 1_000).map_or(config.max_tries, |most| most as u32);
        config.ttl = span(&mut map, "ttl").unwrap_or(config.ttl);
        config.backoff = span(&mut map, "backoff").unwrap_or(config.backoff);
        map.finish();
        config
    }
}
