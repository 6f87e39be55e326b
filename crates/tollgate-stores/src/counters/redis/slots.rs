//! A Redis Cluster: which server keeps which hash slot, followed as it changes.
//!
//! The map is read from any server that answers, again when one says that a slot has moved, and often while one
//! of them is in trouble: then another is about to take its slots over.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::address::Endpoint;
use super::dial::{Manner, ask, dial};
use super::link::{Link, Route};
use super::resp::Reply;
use crate::counters::StoreError;
use crate::counters::breaker::ServerHealth;

pub(super) const SLOTS: u16 = 16384;
/// Between two looks at the map: at rest, in trouble, and at the least.
const AT_REST: Duration = Duration::from_secs(15);
const IN_TROUBLE: Duration = Duration::from_millis(200);
const AT_LEAST: Duration = Duration::from_millis(50);
const ASK_PATIENCE: Duration = Duration::from_millis(500);
/// Servers of a cluster, at the most.
const MAX_SERVERS: usize = 1000;

pub(super) struct Cluster {
    shared: Arc<Shared>,
    known: watch::Receiver<Result<(), String>>,
    task: AbortHandle,
}

struct Shared {
    manner: Manner,
    map: Mutex<Map>,
    moved: Notify,
}

#[derive(Default)]
struct Map {
    /// The server of each slot, where it is known.
    slots: Vec<Option<Arc<Link>>>,
    links: HashMap<Endpoint, Arc<Link>>,
}

/// The slots of one server: first, last, where.
type Range = (u16, u16, Endpoint);

impl Cluster {
    pub(super) fn open(seeds: Vec<Endpoint>, manner: Manner) -> Cluster {
        let slots = (0..SLOTS).map(|_| None).collect();
        let map = Mutex::new(Map { slots, links: HashMap::new() });
        let shared = Arc::new(Shared { manner, map, moved: Notify::new() });
        let (sender, known) = watch::channel(Err("the cluster has not answered yet".to_owned()));
        let task = tokio::spawn(follow(Arc::clone(&shared), seeds, sender)).abort_handle();
        Cluster { shared, known, task }
    }

    /// The server of a slot. Only the first map is waited for.
    pub(super) async fn link(&self, slot: u16, deadline: Instant) -> Result<Arc<Link>, StoreError> {
        let unreachable = |reason| StoreError::Unreachable { server: "cluster".to_owned(), reason };
        if self.known.borrow().is_err() {
            let mut known = self.known.clone();
            let first = timeout_at(deadline, known.wait_for(Result::is_ok)).await;
            if !matches!(first, Ok(Ok(_))) {
                return Err(unreachable(self.known.borrow().clone().err().unwrap_or_default()));
            }
        }
        let link = self.shared.lock().slots[usize::from(slot)].clone();
        link.ok_or_else(|| {
            self.shared.moved.notify_one();
            unreachable(format!("no server keeps slot {slot}"))
        })
    }

    /// The server that another one has named. A slot that has moved there for good is remembered.
    pub(super) fn redirect(&self, moved: Option<u16>, endpoint: Endpoint) -> Arc<Link> {
        let link = self.shared.link(endpoint);
        if let Some(slot) = moved.filter(|slot| *slot < SLOTS) {
            self.shared.lock().slots[usize::from(slot)] = Some(Arc::clone(&link));
            self.shared.moved.notify_one();
        }
        link
    }

    pub(super) fn health(&self) -> Vec<ServerHealth> {
        let mut health: Vec<_> = self.shared.lock().links.values().map(|link| link.health()).collect();
        if let Err(trouble) = &*self.known.borrow() {
            let trouble = Some(trouble.clone());
            health.push(ServerHealth { server: "cluster".into(), trouble, refused: 0, opened: 0 });
        }
        health.sort_by(|a, b| a.server.cmp(&b.server));
        health
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn link(&self, endpoint: Endpoint) -> Arc<Link> {
        let open = |endpoint: &Endpoint| Link::open(Route::Fixed(endpoint.clone()), self.manner.clone());
        let mut map = self.lock();
        Arc::clone(map.links.entry(endpoint).or_insert_with_key(|endpoint| Arc::new(open(endpoint))))
    }

    fn take_over(&self, ranges: &[Range]) {
        let links: Vec<_> = ranges.iter().map(|(_, _, endpoint)| self.link(endpoint.clone())).collect();
        let mut map = self.lock();
        for ((first, last, _), link) in ranges.iter().zip(&links) {
            for slot in *first..=*last {
                map.slots[usize::from(slot)] = Some(Arc::clone(link));
            }
        }
        map.links.retain(|endpoint, _| ranges.iter().any(|(_, _, used)| used == endpoint));
    }

    fn in_trouble(&self) -> bool {
        self.lock().links.values().any(|link| link.breaker().is_open())
    }

    fn lock(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn follow(shared: Arc<Shared>, seeds: Vec<Endpoint>, known: watch::Sender<Result<(), String>>) {
    loop {
        match read_map(&shared, &seeds).await {
            Ok(ranges) => {
                shared.take_over(&ranges);
                known.send_replace(Ok(())).ok();
            }
            Err(reason) if known.borrow().is_err() => {
                known.send_replace(Err(reason)).ok();
            }
            Err(reason) => tracing::debug!(%reason, "the cluster's map cannot be read"),
        }
        sleep(AT_LEAST).await;
        let pause = if shared.in_trouble() || known.borrow().is_err() { IN_TROUBLE } else { AT_REST };
        // Trouble may begin while at rest: a link that opens its breaker is looked at within this pause.
        let until = Instant::now() + pause;
        while Instant::now() < until {
            if timeout(IN_TROUBLE.min(pause), shared.moved.notified()).await.is_ok() || shared.in_trouble() {
                break;
            }
        }
    }
}

/// The map as the first server tells it that answers.
async fn read_map(shared: &Shared, seeds: &[Endpoint]) -> Result<Vec<Range>, String> {
    let mut endpoints: Vec<_> = {
        let map = shared.lock();
        let healthy = map.links.iter().filter(|(_, link)| !link.breaker().is_open());
        healthy.map(|(endpoint, _)| endpoint.clone()).collect()
    };
    fastrand::shuffle(&mut endpoints);
    let mut reason = "no server".to_owned();
    for endpoint in endpoints.iter().chain(seeds).take(MAX_SERVERS) {
        let asked = timeout(ASK_PATIENCE, ask_map(endpoint, &shared.manner)).await;
        match asked.unwrap_or_else(|_| Err("no answer".to_owned())) {
            Ok(ranges) => return Ok(ranges),
            Err(error) => reason = format!("{endpoint}: {error}"),
        }
    }
    Err(reason)
}

async fn ask_map(endpoint: &Endpoint, manner: &Manner) -> Result<Vec<Range>, String> {
    let connection = dial(endpoint, manner).await?;
    match ask(&connection, &["CLUSTER", "SLOTS"]).await? {
        Reply::Error(error) => Err(error),
        reply => read_ranges(&reply, endpoint).ok_or_else(|| "no map of slots".to_owned()),
    }
}

fn read_ranges(reply: &Reply, asked: &Endpoint) -> Option<Vec<Range>> {
    let ranges: Option<Vec<_>> = reply.elements()?.iter().map(|range| read_range(range, asked)).collect();
    ranges.filter(|ranges| !ranges.is_empty())
}

fn read_range(range: &Reply, asked: &Endpoint) -> Option<Range> {
    let parts = range.elements()?;
    let slot = |n: usize| {
        parts.get(n)?.number().and_then(|slot| u16::try_from(slot).ok()).filter(|slot| *slot < SLOTS)
    };
    let primary = parts.get(2)?.elements()?;
    let port = primary.get(1)?.number().and_then(|port| u16::try_from(port).ok())?;
    let host = primary.first()?.text().unwrap_or_default();
    Some((slot(0)?, slot(1)?, endpoint_of(host, port, asked)))
}

/// A server that does not know its own name is where it was asked.
pub(super) fn endpoint_of(host: &str, port: u16, asked: &Endpoint) -> Endpoint {
    let host = match (host, asked) {
        ("" | "?", Endpoint::Tcp { host, .. }) => host.clone(),
        (host, _) => host.to_owned(),
    };
    Endpoint::Tcp { host, port }
}

/// The slot of a key: of what stands between its first braces, if anything does.
pub(super) fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % SLOTS
}

/// CRC-16/XMODEM, as the cluster specification has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(
            crc ^ u16::from(*byte) << 8,
            |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
            },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot_of("foo"), 12182);
        assert_eq!(slot_of("{user1000}.following"), slot_of("{user1000}.followers"));
        assert_ne!(slot_of("foo{}{bar}"), slot_of("{bar}"), "an empty tag is none");
    }
}
