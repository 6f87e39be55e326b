//! The queue in a Redis that nodes share: each node takes due requests; a delivery that is no longer renewed is claimed
//! by another node.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tollgate::Time;
use tollgate::internal::lock;
use tollgate_stores::counters::redis::{RedisAddress, RedisClient, RedisReply};

use crate::queue::{
    DEAD_RETENTION, DONE_RETENTION, ITEM_OVERHEAD, MAX_DUE_SCANNED, QueueBounds, QueueError, QueuedRequest,
    QueuedState, RequestSender, new_id,
};

/// Generous, since a body may be long.
const DEADLINE: Duration = Duration::from_secs(5);
/// A delivery that was not renewed for this long is claimed by another node.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);
const SWEEP_BATCH: usize = 1_000;
/// A node that was inactive for this long is removed from the group.
const NODE_RETENTION: Duration = Duration::from_secs(3_600);

macro_rules! script {
    ($file:literal) => {
        concat!(include_str!("redis/prelude.lua"), include_str!(concat!("redis/", $file)))
    };
    (= $source:literal) => {
        concat!(include_str!("redis/prelude.lua"), $source)
    };
}

const PUSH: &str = script!("push.lua");
const TAKE: &str = script!("take.lua");
const KEEP: &str = script!("keep.lua");
const UPDATE: &str = script!("update.lua");
const LIST: &str = script!("list.lua");
const SWEEP: &str = script!("sweep.lua");
const FIND: &str = script!(= "return fields_of(ARGV[1])");
const REMOVE: &str = script!(= "return forget(ARGV[1])");
const COUNTS: &str = script!(= "return { redis.call('ZCARD', part('later')), redis.call('XLEN', stream), \
    redis.call('ZCARD', part('done')), redis.call('ZCARD', part('dead')) }");

pub struct RedisQueue {
    client: RedisClient,
    /// The name of the stream, and the prefix of all other keys.
    name: String,
    /// The name of this process among the nodes that share the queue.
    node: String,
    /// Deliveries in flight from this node.
    deliveries: Mutex<ActiveDeliveries>,
    bounds: QueueBounds,
}

#[derive(Default)]
struct ActiveDeliveries {
    tags: HashSet<String>,
    renewed_at: Option<Instant>,
}

/// The immutable part of a request.
#[derive(Serialize, Deserialize)]
struct StoredRequest {
    method: String,
    target: String,
    host: String,
    headers: Vec<(String, String)>,
    body_bytes: usize,
    sender: RequestSender,
    queued_at: u64,
}

impl RedisQueue {
    /// Connects in the background; it must be called inside a tokio runtime.
    pub fn open(address: RedisAddress, name: &str, bounds: QueueBounds) -> Result<RedisQueue, QueueError> {
        let client = RedisClient::open(address, DEADLINE).map_err(QueueError::Setup)?;
        let name = format!("tg1:queue:{{{name}}}");
        let node = new_id();
        Ok(RedisQueue { client, name, node, deliveries: Mutex::default(), bounds })
    }

    async fn eval(&self, script: &str, words: &[&[u8]]) -> Result<RedisReply, QueueError> {
        let head: [&[u8]; 4] = [b"EVAL", script.as_bytes(), b"1", self.name.as_bytes()];
        Ok(self.client.command(&self.name, &[&head, words].concat()).await?)
    }

    pub async fn push(&self, item: QueuedRequest, body: Vec<u8>) -> Result<(), QueueError> {
        let QueuedRequest { id, method, target, host, headers, body_bytes, sender, queued_at, .. } = item;
        let queued_at = queued_at.nanos();
        let share = sender.share();
        let request = StoredRequest { method, target, host, headers, body_bytes, sender, queued_at };
        let request = serde_json::to_vec(&request).expect("texts are valid JSON");
        let size = request.len() + body.len() + ITEM_OVERHEAD;
        let words = [
            id.into_bytes(),
            request,
            body,
            micros(item.next_at),
            nanos(item.next_at),
            nanos(item.expires_at),
            decimal(self.bounds.items),
            decimal(size),
            decimal(self.bounds.bytes),
            share.into_bytes(),
            decimal(self.bounds.sender_items),
            decimal(self.bounds.sender_bytes),
        ];
        match self.eval(PUSH, &words.each_ref().map(Vec::as_slice)).await?.number() {
            Some(1) => Ok(()),
            Some(0) => Err(QueueError::Full),
            Some(2) => Err(QueueError::SenderFull),
            _ => Err(QueueError::Malformed),
        }
    }

    pub async fn take_due(
        &self,
        now: Time,
        count: usize,
    ) -> Result<(Vec<QueuedRequest>, Option<Time>), QueueError> {
        let words = [
            self.node.clone().into_bytes(),
            decimal(count),
            micros(now),
            decimal(DELIVERY_TIMEOUT.as_millis()),
            decimal(MAX_DUE_SCANNED),
        ];
        let reply = self.eval(TAKE, &words.each_ref().map(Vec::as_slice)).await?;
        let Some([next, deliveries]) = reply.elements() else { return Err(QueueError::Malformed) };
        // A score is a double, which may be written with an exponent.
        let next = next.text().and_then(|micros| micros.parse::<f64>().ok());
        let next = next.map(|micros| Time::from_nanos((micros as u64).saturating_mul(1_000)));
        let deliveries = deliveries.elements().ok_or(QueueError::Malformed)?;
        // An entry that cannot be parsed does not block the others.
        let items: Vec<QueuedRequest> = deliveries.iter().filter_map(try_parse_item).collect();
        if items.len() < deliveries.len() {
            tracing::error!(count = deliveries.len() - items.len(), "queued requests cannot be read");
        }
        self.lock().tags.extend(items.iter().filter_map(|item| item.delivery_tag.clone()));
        Ok((items, next))
    }

    pub async fn renew_deliveries(&self) -> Result<(), QueueError> {
        let tags: Vec<String> = {
            let mut deliveries = self.lock();
            if deliveries.tags.is_empty()
                || deliveries.renewed_at.is_some_and(|renewed| renewed.elapsed() < DELIVERY_TIMEOUT / 4)
            {
                return Ok(());
            }
            deliveries.renewed_at = Some(Instant::now());
            deliveries.tags.iter().cloned().collect()
        };
        let entries = tags.iter().filter_map(|tag| tag.split('/').next());
        let words: Vec<&[u8]> =
            std::iter::once(self.node.as_str()).chain(entries).map(str::as_bytes).collect();
        self.eval(KEEP, &words).await.map(|_| ())
    }

    pub async fn update(&self, item: QueuedRequest) -> Result<(), QueueError> {
        let tag = item.delivery_tag.unwrap_or_default();
        // The delivery ends here, saved or not: one that is not saved will be claimed and sent again.
        self.lock().tags.remove(&tag);
        let words = [
            item.id.into_bytes(),
            tag.into_bytes(),
            item.state.name().as_bytes().to_vec(),
            micros(item.next_at),
            nanos(item.next_at),
            nanos(item.expires_at),
            decimal(item.tries),
            item.status.map_or_else(Vec::new, decimal),
            item.error.unwrap_or_default().into_bytes(),
        ];
        let changed = self.eval(UPDATE, &words.each_ref().map(Vec::as_slice)).await?;
        if changed.number() == Some(0) {
            tracing::debug!("a queued request was removed, or taken over by another node");
        }
        Ok(())
    }

    pub async fn sweep(&self, now: Time) -> Result<(), QueueError> {
        let before =
            |age: Duration| micros(Time::from_nanos(now.nanos().saturating_sub(age.as_nanos() as u64)));
        let words = [
            before(DONE_RETENTION),
            before(DEAD_RETENTION),
            decimal(SWEEP_BATCH),
            decimal(NODE_RETENTION.as_millis()),
        ];
        self.eval(SWEEP, &words.each_ref().map(Vec::as_slice)).await.map(|_| ())
    }

    pub async fn find(&self, id: &str) -> Result<Option<QueuedRequest>, QueueError> {
        match self.eval(FIND, &[id.as_bytes()]).await? {
            RedisReply::Nil => Ok(None),
            fields => parse_item(&fields).map(Some),
        }
    }

    pub async fn body(&self, id: &str) -> Result<Option<Vec<u8>>, QueueError> {
        let name = format!("{}:body:{id}", self.name);
        match self.client.command(&name, &["GET", &name]).await? {
            RedisReply::Bulk(body) => Ok(Some(body)),
            _ => Ok(None),
        }
    }

    pub async fn list(
        &self,
        state: Option<QueuedState>,
        count: usize,
    ) -> Result<Vec<QueuedRequest>, QueueError> {
        let state = state.map_or("", QueuedState::name);
        parse_items(&self.eval(LIST, &[state.as_bytes(), &decimal(count)]).await?)
    }

    pub async fn remove(&self, id: &str) -> Result<bool, QueueError> {
        Ok(self.eval(REMOVE, &[id.as_bytes()]).await?.number() == Some(1))
    }

    pub async fn counts(&self) -> Result<Vec<(QueuedState, u64)>, QueueError> {
        let reply = self.eval(COUNTS, &[]).await?;
        let counts: Option<Vec<u64>> =
            reply.elements().and_then(|counts| counts.iter().map(RedisReply::number).collect());
        let counts =
            counts.filter(|counts| counts.len() == QueuedState::ALL.len()).ok_or(QueueError::Malformed)?;
        Ok(QueuedState::ALL.into_iter().zip(counts).collect())
    }

    fn lock(&self) -> MutexGuard<'_, ActiveDeliveries> {
        lock(&self.deliveries)
    }
}

fn decimal(number: impl ToString) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn nanos(at: Time) -> Vec<u8> {
    decimal(at.nanos())
}

/// Microseconds: scores are doubles. Rounded up, so that nothing is due too early.
fn micros(at: Time) -> Vec<u8> {
    decimal(at.nanos().div_ceil(1_000))
}

fn parse_items(reply: &RedisReply) -> Result<Vec<QueuedRequest>, QueueError> {
    reply.elements().ok_or(QueueError::Malformed)?.iter().map(parse_item).collect()
}

/// Parses a request from a script's reply.
fn parse_item(reply: &RedisReply) -> Result<QueuedRequest, QueueError> {
    try_parse_item(reply).ok_or(QueueError::Malformed)
}

fn try_parse_item(reply: &RedisReply) -> Option<QueuedRequest> {
    let words: Vec<&str> = reply.elements()?.iter().map(RedisReply::text).collect::<Option<_>>()?;
    let [id, request, state, next_at, expires_at, tries, status, error, tag] = words[..] else {
        return None;
    };
    let StoredRequest { method, target, host, headers, body_bytes, sender, queued_at } =
        serde_json::from_str(request).ok()?;
    let time = |word: &str| word.parse().ok().map(Time::from_nanos);
    let filled = |word: &str| Some(word.to_owned()).filter(|word| !word.is_empty());
    Some(QueuedRequest {
        id: id.to_owned(),
        method,
        target,
        host,
        headers,
        body_bytes,
        sender,
        state: QueuedState::parse(state)?,
        queued_at: Time::from_nanos(queued_at),
        expires_at: time(expires_at)?,
        next_at: time(next_at)?,
        tries: tries.parse().ok()?,
        status: status.parse().ok(),
        error: filled(error),
        delivery_tag: filled(tag),
    })
}
