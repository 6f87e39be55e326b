//! The durable request queue (`on_exceed: queue`): requests are stored until the API has answered them, in a local
//! SQLite file or in a Redis that nodes share.
//!
//! Delivery is at least once: a request in flight when a process ended is sent again, with the same idempotency key.

use std::net::IpAddr;
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tollgate::internal::identity::Attribute;
use tollgate::{Hit, Time};
use tollgate_stores::counters::StoreError;

use crate::config::{QueueConfig, QueueLocation};

mod redis;
mod sqlite;

use redis::RedisQueue;
use sqlite::SqliteQueue;
#[cfg(feature = "testing")]
pub use sqlite::enqueue_and_answer;

/// How long the status of answered requests can be queried.
const DONE_RETENTION: Duration = Duration::from_secs(3_600);
/// Due requests that are scanned to find the oldest.
const MAX_DUE_SCANNED: usize = 256;
/// How long dead requests are kept for an operator.
const DEAD_RETENTION: Duration = Duration::from_secs(7 * 86_400);

pub enum QueueBackend {
    Sqlite(SqliteQueue),
    Redis(RedisQueue),
}

#[derive(Debug, Error)]
pub enum QueueError {
    #[error("the queue is full")]
    Full,
    #[error("too many requests of this sender are queued already")]
    SenderFull,
    #[error("the queue cannot be used: {0}")]
    File(#[from] std::io::Error),
    #[error("the queue cannot be used: {0}")]
    Sqlite(rusqlite::Error),
    #[error("the queue cannot be used: {0}")]
    Redis(#[from] StoreError),
    #[error("the queue cannot be used: {0}")]
    Setup(String),
    #[error("the queue holds an entry that is not a valid request")]
    Malformed,
    #[error("the queue is closed")]
    Closed,
}

impl QueueError {
    /// Whether there is no room, for the sender or at all: the client's matter, not the operator's.
    pub fn is_full(&self) -> bool {
        matches!(self, QueueError::Full | QueueError::SenderFull)
    }
}

impl From<rusqlite::Error> for QueueError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DiskFull) => QueueError::Full, // page limit of the file, or disk full
            _ => QueueError::Sqlite(error),
        }
    }
}

macro_rules! dispatch {
    ($queue:expr, $method:ident($($with:expr),*)) => {
        match $queue {
            QueueBackend::Sqlite(queue) => queue.$method($($with),*).await,
            QueueBackend::Redis(queue) => queue.$method($($with),*).await,
        }
    };
}

impl QueueBackend {
    /// It must be called inside a tokio runtime.
    pub fn open(config: &QueueConfig) -> Result<QueueBackend, QueueError> {
        match &config.location {
            QueueLocation::File(path) => SqliteQueue::open(path, config.bounds).map(QueueBackend::Sqlite),
            QueueLocation::Redis { address, name } => {
                RedisQueue::open((**address).clone(), name, config.bounds).map(QueueBackend::Redis)
            }
        }
    }

    /// Enqueues a request; when this returns it is stored durably.
    pub async fn push(&self, item: QueuedRequest, body: Vec<u8>) -> Result<(), QueueError> {
        dispatch!(self, push(item, body))
    }

    /// Takes the oldest due requests, at most `count`; also returns when the next one is due.
    pub async fn take_due(
        &self,
        now: Time,
        count: usize,
    ) -> Result<(Vec<QueuedRequest>, Option<Time>), QueueError> {
        dispatch!(self, take_due(now, count))
    }

    /// Renews this node's deliveries. One that is not renewed in time is redelivered by another node.
    pub async fn renew_deliveries(&self) -> Result<(), QueueError> {
        match self {
            QueueBackend::Sqlite(_) => Ok(()),
            QueueBackend::Redis(queue) => queue.renew_deliveries().await,
        }
    }

    /// Saves the result of an attempt.
    pub async fn update(&self, item: QueuedRequest) -> Result<(), QueueError> {
        dispatch!(self, update(item))
    }

    /// Deletes answered and dead requests after their retention time.
    pub async fn sweep(&self, now: Time) -> Result<(), QueueError> {
        dispatch!(self, sweep(now))
    }

    pub async fn find(&self, id: &str) -> Result<Option<QueuedRequest>, QueueError> {
        dispatch!(self, find(id))
    }

    /// The body of a request; `None` if the request was removed meanwhile.
    pub async fn body(&self, id: &str) -> Result<Option<Vec<u8>>, QueueError> {
        dispatch!(self, body(id))
    }

    /// Lists requests of one state or of all, the oldest first.
    pub async fn list(
        &self,
        state: Option<QueuedState>,
        count: usize,
    ) -> Result<Vec<QueuedRequest>, QueueError> {
        dispatch!(self, list(state, count))
    }

    /// Removes a request, whatever its state; returns whether it existed.
    pub async fn remove(&self, id: &str) -> Result<bool, QueueError> {
        dispatch!(self, remove(id))
    }

    /// The number of requests in each state.
    pub async fn counts(&self) -> Result<Vec<(QueuedState, u64)>, QueueError> {
        dispatch!(self, counts())
    }
}

/// Bounds of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueBounds {
    /// Waiting requests.
    pub items: usize,
    /// All stored bytes, including answered and dead requests: those are evicted when space is needed.
    pub bytes: usize,
    /// Waiting requests of one sender.
    pub sender_items: usize,
    /// Bytes of their bodies.
    pub sender_bytes: usize,
}

/// One sender may use this fraction of the queue.
const SENDER_SHARE: usize = 10;
/// The share of a sender in a small queue is at least this.
const MIN_SENDER_ITEMS: usize = 10;
/// Bytes of a request beside its texts.
const ITEM_OVERHEAD: usize = 512;

impl QueueBounds {
    /// The bounds always admit one request per sender with the longest body.
    pub fn new(items: usize, bytes: usize, max_body: usize) -> QueueBounds {
        QueueBounds {
            items,
            bytes,
            sender_items: (items / SENDER_SHARE).max(MIN_SENDER_ITEMS).min(items),
            sender_bytes: (bytes / SENDER_SHARE).max(max_body),
        }
    }
}

/// 128 random bits: the id must not be guessable.
pub fn new_id() -> String {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).expect("the system has random numbers");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One request, as it will be sent. Its body is loaded at that time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueuedRequest {
    pub id: String,
    pub method: String,
    /// Path and query.
    pub target: String,
    pub host: String,
    /// The stored headers.
    pub headers: Vec<(String, String)>,
    pub body_bytes: usize,
    pub sender: RequestSender,
    pub state: QueuedState,
    pub queued_at: Time,
    pub expires_at: Time,
    /// Not sent before this time.
    pub next_at: Time,
    pub tries: u32,
    /// The status of the API's last response.
    pub status: Option<u16>,
    pub error: Option<String>,
    /// The delivery under which a node has taken it, where nodes share the queue.
    pub delivery_tag: Option<String>,
}

/// The sender's identity as rules see it: resolved when the request arrived, since tokens expire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RequestSender {
    pub ip: IpAddr,
    /// The network of the address (`ipv6_prefix`), which has a share of the queue. `None` if an earlier version has queued
    /// the request: the share is that of the address.
    #[serde(default)]
    pub network: Option<String>,
    /// Attributes, named as in rules, with their values.
    pub identity: Vec<(String, String)>,
}

impl RequestSender {
    /// Whose share of the queue the request takes.
    fn share(&self) -> String {
        self.network.clone().unwrap_or_else(|| self.ip.to_string())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueuedState {
    Queued = 0,
    /// In flight to the API.
    Sending = 1,
    /// The API has answered.
    Done = 2,
    /// Too many attempts, or too old.
    Dead = 3,
}

impl QueuedState {
    pub const ALL: [QueuedState; 4] =
        [QueuedState::Queued, QueuedState::Sending, QueuedState::Done, QueuedState::Dead];

    pub const fn name(self) -> &'static str {
        match self {
            QueuedState::Queued => "queued",
            QueuedState::Sending => "sending",
            QueuedState::Done => "done",
            QueuedState::Dead => "dead",
        }
    }

    pub fn parse(name: &str) -> Option<QueuedState> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

impl QueuedRequest {
    /// The hit that is charged when it is sent.
    pub fn hit(&self) -> Hit<'_> {
        let hit = Hit::on(&self.method, &self.host, &self.target).ip(self.sender.ip);
        self.sender.identity.iter().fold(hit, |hit, (name, value)| match Attribute::parse(name) {
            Ok(Attribute::User) => hit.user(value.as_str()),
            Ok(Attribute::Email) => hit.email(value.as_str()),
            Ok(Attribute::Mac) => hit.mac(value.as_str()),
            Ok(Attribute::ApiKey) => hit.api_key(value.as_str()),
            Ok(Attribute::Field(source, name)) => hit.field(source, name.to_string(), value.as_str()),
            Ok(Attribute::Ip | Attribute::Path | Attribute::Method | Attribute::Host) | Err(_) => hit,
        })
    }
}
