//! The queue on a Redis that several nodes share: each takes what is due, and what one has taken and no longer keeps
//! is claimed by another.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tollgate::Time;
use tollgate_stores::counters::redis::{RedisAddress, RedisClient, Reply};

use crate::queue::{Bounds, ITEM_OVERHEAD, Item, KEEP_DEAD, KEEP_DONE, QueueError, Sender, State, new_id};

/// A body may be long.
const DEADLINE: Duration = Duration::from_secs(5);
/// A node that has not kept what it took for so long is taken for dead.
const LEASE: Duration = Duration::from_secs(10);
/// Requests that are due and looked at, to find the oldest of them.
const LOOKED_AT: usize = 256;
const SWEPT_AT_ONCE: usize = 1_000;
/// A node that has sent nothing for so long is no longer listed.
const FORGET_NODE: Duration = Duration::from_secs(3_600);

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
const FIND: &str = script!(= "return told(ARGV[1])");
const REMOVE: &str = script!(= "return forget(ARGV[1])");
const COUNTS: &str = script!(= "return { redis.call('ZCARD', part('later')), redis.call('XLEN', stream), \
    redis.call('ZCARD', part('done')), redis.call('ZCARD', part('dead')) }");

pub struct RedisQueue {
    client: RedisClient,
    /// The stream, and the beginning of all other names.
    name: String,
    /// This process, among those that share the queue.
    node: String,
    /// What this node is sending.
    taken: Mutex<Taken>,
    bounds: Bounds,
}

#[derive(Default)]
struct Taken {
    leases: HashSet<String>,
    kept: Option<Instant>,
}

/// What never changes of a request.
#[derive(Serialize, Deserialize)]
struct Request {
    method: String,
    target: String,
    host: String,
    headers: Vec<(String, String)>,
    body_bytes: usize,
    sender: Sender,
    queued_at: u64,
}

impl RedisQueue {
    /// Connects in the background; it must be called inside a tokio runtime.
    pub fn open(address: RedisAddress, name: &str, bounds: Bounds) -> Result<RedisQueue, QueueError> {
        let client = RedisClient::open(address, DEADLINE).map_err(QueueError::Setup)?;
        let (name, node) = (format!("tg1:queue:{{{name}}}"), new_id());
        Ok(RedisQueue { client, name, node, taken: Mutex::default(), bounds })
    }

    async fn run(&self, script: &str, words: &[&[u8]]) -> Result<Reply, QueueError> {
        let head: [&[u8]; 4] = [b"EVAL", script.as_bytes(), b"1", self.name.as_bytes()];
        Ok(self.client.ask(&self.name, &[&head, words].concat()).await?)
    }

    pub async fn push(&self, item: Item, body: Vec<u8>) -> Result<(), QueueError> {
        let Item { id, method, target, host, headers, body_bytes, sender, queued_at, .. } = item;
        let (queued_at, ip) = (queued_at.nanos(), sender.ip);
        let request = Request { method, target, host, headers, body_bytes, sender, queued_at };
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
            decimal(ip),
            decimal(self.bounds.sender_items),
            decimal(self.bounds.sender_bytes),
        ];
        match self.run(PUSH, &words.each_ref().map(Vec::as_slice)).await?.number() {
            Some(1) => Ok(()),
            Some(0) => Err(QueueError::Full),
            Some(2) => Err(QueueError::SenderFull),
            _ => Err(QueueError::Strange),
        }
    }

    pub async fn take_due(&self, now: Time, count: usize) -> Result<(Vec<Item>, Option<Time>), QueueError> {
        let words = [
            self.node.clone().into_bytes(),
            decimal(count),
            micros(now),
            decimal(LEASE.as_millis()),
            decimal(LOOKED_AT),
        ];
        let reply = self.run(TAKE, &words.each_ref().map(Vec::as_slice)).await?;
        let Some([next, taken]) = reply.elements() else { return Err(QueueError::Strange) };
        // A score is a double, which may be written with an exponent.
        let next = next.text().and_then(|micros| micros.parse::<f64>().ok());
        let next = next.map(|micros| Time::from_nanos((micros as u64).saturating_mul(1_000)));
        let taken = taken.elements().ok_or(QueueError::Strange)?;
        // One that cannot be read does not stop the others.
        let items: Vec<Item> = taken.iter().filter_map(try_read).collect();
        if items.len() < taken.len() {
            tracing::error!(count = taken.len() - items.len(), "queued requests cannot be read");
        }
        self.lock().leases.extend(items.iter().filter_map(|item| item.lease.clone()));
        Ok((items, next))
    }

    pub async fn keep_taken(&self) -> Result<(), QueueError> {
        let leases: Vec<String> = {
            let mut taken = self.lock();
            if taken.leases.is_empty() || taken.kept.is_some_and(|kept| kept.elapsed() < LEASE / 4) {
                return Ok(());
            }
            taken.kept = Some(Instant::now());
            taken.leases.iter().cloned().collect()
        };
        let entries = leases.iter().filter_map(|lease| lease.split('/').next());
        let words: Vec<&[u8]> =
            std::iter::once(self.node.as_str()).chain(entries).map(str::as_bytes).collect();
        self.run(KEEP, &words).await.map(|_| ())
    }

    pub async fn update(&self, item: Item) -> Result<(), QueueError> {
        let lease = item.lease.unwrap_or_default();
        // It ends here, written down or not: what is not will be claimed, and sent again.
        self.lock().leases.remove(&lease);
        let words = [
            item.id.into_bytes(),
            lease.into_bytes(),
            item.state.name().as_bytes().to_vec(),
            micros(item.next_at),
            nanos(item.next_at),
            nanos(item.expires_at),
            decimal(item.tries),
            item.status.map_or_else(Vec::new, decimal),
            item.error.unwrap_or_default().into_bytes(),
        ];
        let changed = self.run(UPDATE, &words.each_ref().map(Vec::as_slice)).await?;
        if changed.number() == Some(0) {
            tracing::debug!("a queued request was removed, or taken over by another node");
        }
        Ok(())
    }

    pub async fn sweep(&self, now: Time) -> Result<(), QueueError> {
        let before =
            |age: Duration| micros(Time::from_nanos(now.nanos().saturating_sub(age.as_nanos() as u64)));
        let words =
            [before(KEEP_DONE), before(KEEP_DEAD), decimal(SWEPT_AT_ONCE), decimal(FORGET_NODE.as_millis())];
        self.run(SWEEP, &words.each_ref().map(Vec::as_slice)).await.map(|_| ())
    }

    pub async fn find(&self, id: &str) -> Result<Option<Item>, QueueError> {
        match self.run(FIND, &[id.as_bytes()]).await? {
            Reply::Nil => Ok(None),
            told => read(&told).map(Some),
        }
    }

    pub async fn body(&self, id: &str) -> Result<Option<Vec<u8>>, QueueError> {
        let name = format!("{}:body:{id}", self.name);
        match self.client.ask(&name, &["GET", &name]).await? {
            Reply::Bulk(body) => Ok(Some(body)),
            _ => Ok(None),
        }
    }

    pub async fn list(&self, state: Option<State>, count: usize) -> Result<Vec<Item>, QueueError> {
        let state = state.map_or("", State::name);
        read_all(&self.run(LIST, &[state.as_bytes(), &decimal(count)]).await?)
    }

    pub async fn remove(&self, id: &str) -> Result<bool, QueueError> {
        Ok(self.run(REMOVE, &[id.as_bytes()]).await?.number() == Some(1))
    }

    pub async fn counts(&self) -> Result<Vec<(State, u64)>, QueueError> {
        let reply = self.run(COUNTS, &[]).await?;
        let counts: Option<Vec<u64>> =
            reply.elements().and_then(|counts| counts.iter().map(Reply::number).collect());
        let counts = counts.filter(|counts| counts.len() == State::ALL.len()).ok_or(QueueError::Strange)?;
        Ok(State::ALL.into_iter().zip(counts).collect())
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn decimal(number: impl ToString) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn nanos(at: Time) -> Vec<u8> {
    decimal(at.nanos())
}

/// As the server's numbers have it, which are doubles; rounded up, so that nothing is due too early.
fn micros(at: Time) -> Vec<u8> {
    decimal(at.nanos().div_ceil(1_000))
}

fn read_all(reply: &Reply) -> Result<Vec<Item>, QueueError> {
    reply.elements().ok_or(QueueError::Strange)?.iter().map(read).collect()
}

/// A request as the scripts tell it.
fn read(reply: &Reply) -> Result<Item, QueueError> {
    try_read(reply).ok_or(QueueError::Strange)
}

fn try_read(reply: &Reply) -> Option<Item> {
    let words: Vec<&str> = reply.elements()?.iter().map(Reply::text).collect::<Option<_>>()?;
    let [id, request, state, next_at, expires_at, tries, status, error, lease] = words[..] else {
        return None;
    };
    let Request { method, target, host, headers, body_bytes, sender, queued_at } =
        serde_json::from_str(request).ok()?;
    let time = |word: &str| word.parse().ok().map(Time::from_nanos);
    let filled = |word: &str| Some(word.to_owned()).filter(|word| !word.is_empty());
    Some(Item {
        id: id.to_owned(),
        method,
        target,
        host,
        headers,
        body_bytes,
        sender,
        state: State::parse(state)?,
        queued_at: Time::from_nanos(queued_at),
        expires_at: time(expires_at)?,
        next_at: time(next_at)?,
        tries: tries.parse().ok()?,
        status: status.parse().ok(),
        error: filled(error),
        lease: filled(lease),
    })
}
