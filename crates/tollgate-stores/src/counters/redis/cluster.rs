//! Redis Cluster: the map from hash slots to servers, kept up to date.
//!
//! The slot map is fetched in the background over existing connections; only the first fetch is waited for. It is
//! refreshed periodically, on MOVED, and at short intervals while any server is unreachable (a failover is expected).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tollgate::internal::lock;

use futures_util::future::{join_all, select_ok};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::address::Endpoint;
use super::connection::RedisConnection;
use super::dial::{RedisConnectOptions, dial, send_command};
use super::link::{RedisDiscovery, RedisLink};
use super::resp::RedisReply;
use crate::counters::StoreError;
use crate::counters::breaker::ServerHealth;
use crate::counters::name::hash_tag;

pub(super) const SLOTS: u16 = 16384;
/// Intervals between fetches of the map: normally, while a server is unreachable, and when that lasts long.
const IDLE_REFRESH: Duration = Duration::from_secs(15);
const DEGRADED_REFRESH: Duration = Duration::from_millis(50);
const LONG_DEGRADED_REFRESH: Duration = Duration::from_millis(250);
const LONG_DEGRADED_AFTER: Duration = Duration::from_secs(30);
/// Timeouts of a fetch: from a connected server, and from a seed that has to be dialled first.
const SLOTS_TIMEOUT: Duration = Duration::from_millis(100);
const SEED_TIMEOUT: Duration = Duration::from_millis(500);
/// Connected servers that are queried for the map: a single one may have a stale map.
const MAX_QUERIED_SERVERS: usize = 3;
/// Upper bound of the servers of a cluster.
const MAX_SERVERS: usize = 1000;

pub(super) struct ClusterTopology {
    shared: Arc<ClusterShared>,
    ready: watch::Receiver<Result<(), String>>,
    task: AbortHandle,
}

struct ClusterShared {
    options: RedisConnectOptions,
    map: Mutex<SlotMap>,
    /// Signalled when the map may have changed.
    refresh: Arc<Notify>,
}

#[derive(Default)]
struct SlotMap {
    /// The server of each slot, if known.
    slots: Vec<Option<Arc<RedisLink>>>,
    links: HashMap<Endpoint, Arc<RedisLink>>,
}

/// A range of slots on one server: first, last, endpoint.
type SlotRange = (u16, u16, Endpoint);

impl ClusterTopology {
    pub(super) fn open(seeds: Vec<Endpoint>, options: RedisConnectOptions) -> ClusterTopology {
        let slots = (0..SLOTS).map(|_| None).collect();
        let map = Mutex::new(SlotMap { slots, links: HashMap::new() });
        let shared = Arc::new(ClusterShared { options, map, refresh: Arc::default() });
        let (sender, ready) = watch::channel(Err("the cluster has not answered yet".to_owned()));
        let task = tokio::spawn(refresh_loop(Arc::clone(&shared), seeds, sender)).abort_handle();
        ClusterTopology { shared, ready, task }
    }

    /// The server of a slot. Waits only for the first map.
    pub(super) async fn link(&self, slot: u16, deadline: Instant) -> Result<Arc<RedisLink>, StoreError> {
        let unreachable = |reason| StoreError::Unreachable { server: "cluster".to_owned(), reason };
        if self.ready.borrow().is_err() {
            let mut ready = self.ready.clone();
            let first = timeout_at(deadline, ready.wait_for(Result::is_ok)).await;
            if !matches!(first, Ok(Ok(_))) {
                return Err(unreachable(self.ready.borrow().clone().err().unwrap_or_default()));
            }
        }
        let link = self.shared.lock().slots[usize::from(slot)].clone();
        link.ok_or_else(|| {
            self.request_refresh();
            unreachable(format!("no server serves slot {slot}"))
        })
    }

    /// The server named in a redirect. A slot that has moved permanently is updated in the map.
    pub(super) fn redirect(&self, moved: Option<u16>, endpoint: Endpoint) -> Arc<RedisLink> {
        let link = self.shared.link(endpoint);
        if let Some(slot) = moved.filter(|slot| *slot < SLOTS) {
            self.shared.lock().slots[usize::from(slot)] = Some(Arc::clone(&link));
            self.request_refresh();
        }
        link
    }

    /// Refreshes the map at once: a reply contradicts it.
    pub(super) fn request_refresh(&self) {
        self.shared.refresh.notify_one();
    }

    pub(super) fn health(&self) -> Vec<ServerHealth> {
        let mut health: Vec<_> = self.shared.lock().links.values().map(|link| link.health()).collect();
        if let Err(trouble) = &*self.ready.borrow() {
            let trouble = Some(trouble.clone());
            health.push(ServerHealth { server: "cluster".into(), trouble, refused: 0, opened: 0 });
        }
        health.sort_by(|a, b| a.server.cmp(&b.server));
        health
    }
}

impl Drop for ClusterTopology {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ClusterShared {
    fn link(&self, endpoint: Endpoint) -> Arc<RedisLink> {
        let open = |endpoint: &Endpoint| {
            let discovery = RedisDiscovery::Fixed(endpoint.clone());
            Arc::new(RedisLink::open(discovery, self.options.clone(), Arc::clone(&self.refresh)))
        };
        Arc::clone(self.lock().links.entry(endpoint).or_insert_with_key(open))
    }

    fn install(&self, ranges: &[SlotRange]) {
        let links: Vec<_> = ranges.iter().map(|(_, _, endpoint)| self.link(endpoint.clone())).collect();
        let mut map = self.lock();
        for ((first, last, _), link) in ranges.iter().zip(&links) {
            for slot in *first..=*last {
                map.slots[usize::from(slot)] = Some(Arc::clone(link));
            }
        }
        map.links.retain(|endpoint, _| ranges.iter().any(|(_, _, used)| used == endpoint));
    }

    fn is_degraded(&self) -> bool {
        self.lock().links.values().any(|link| link.established().is_none())
    }

    /// A random sample of the connected servers.
    fn some_connected(&self) -> Vec<(Endpoint, Arc<RedisConnection>)> {
        let map = self.lock();
        let connected = map.links.iter().filter(|(_, link)| !link.breaker().is_open());
        let connected =
            connected.filter_map(|(endpoint, link)| Some((endpoint.clone(), link.established()?)));
        let mut connected: Vec<_> = connected.collect();
        drop(map);
        fastrand::shuffle(&mut connected);
        connected.truncate(MAX_QUERIED_SERVERS);
        connected
    }

    /// Number of slots that a map assigns to connected servers.
    fn served(&self, ranges: &[SlotRange]) -> usize {
        let map = self.lock();
        let serves = |endpoint| map.links.get(endpoint).is_some_and(|link| link.established().is_some());
        let served = ranges.iter().filter(|(_, _, endpoint)| serves(endpoint));
        served.map(|(first, last, _)| usize::from(last.saturating_sub(*first)) + 1).sum()
    }

    fn lock(&self) -> MutexGuard<'_, SlotMap> {
        lock(&self.map)
    }
}

async fn refresh_loop(
    shared: Arc<ClusterShared>,
    seeds: Vec<Endpoint>,
    ready: watch::Sender<Result<(), String>>,
) {
    let mut degraded_since = None;
    loop {
        match fetch_slots(&shared, &seeds).await {
            Ok(ranges) => {
                shared.install(&ranges);
                ready.send_replace(Ok(())).ok();
            }
            Err(reason) if ready.borrow().is_err() => {
                ready.send_replace(Err(reason)).ok();
            }
            Err(reason) => tracing::debug!(%reason, "the slot map of the cluster cannot be read"),
        }
        let is_degraded_now = shared.is_degraded() || ready.borrow().is_err();
        degraded_since = if is_degraded_now { degraded_since.or(Some(Instant::now())) } else { None };
        match degraded_since {
            // No wait for `refresh`: failing requests notify it continuously and would raise the rate.
            Some(since) if since.elapsed() > LONG_DEGRADED_AFTER => sleep(LONG_DEGRADED_REFRESH).await,
            Some(_) => sleep(DEGRADED_REFRESH).await,
            None => {
                sleep(DEGRADED_REFRESH).await;
                timeout(IDLE_REFRESH, shared.refresh.notified()).await.ok();
            }
        }
    }
}

/// The map according to connected servers, or to any seed if none is connected.
async fn fetch_slots(shared: &ClusterShared, seeds: &[Endpoint]) -> Result<Vec<SlotRange>, String> {
    let connected = shared.some_connected();
    let replies = connected.iter().map(|(endpoint, connection)| async move {
        timeout(SLOTS_TIMEOUT, query_slots(connection, endpoint)).await.ok()?.ok()
    });
    let maps = join_all(replies).await.into_iter().flatten();
    // A server that has not yet learned of a failover still lists the old primary: prefer the map with the most slots
    // on connected servers.
    if let Some(newest) = maps.max_by_key(|ranges| shared.served(ranges)) {
        return Ok(newest);
    }
    let dialed =
        seeds.iter().take(MAX_SERVERS).map(|seed| Box::pin(fetch_slots_from_seed(seed, &shared.options)));
    select_ok(dialed).await.map(|(ranges, _)| ranges)
}

async fn fetch_slots_from_seed(
    endpoint: &Endpoint,
    options: &RedisConnectOptions,
) -> Result<Vec<SlotRange>, String> {
    let reply = timeout(SEED_TIMEOUT, async {
        let connection = dial(endpoint, options).await?;
        query_slots(&connection, endpoint).await
    });
    let reply = reply.await.unwrap_or_else(|_| Err("no answer".to_owned()));
    reply.map_err(|error| format!("{endpoint}: {error}"))
}

async fn query_slots(connection: &RedisConnection, endpoint: &Endpoint) -> Result<Vec<SlotRange>, String> {
    match send_command(connection, &["CLUSTER", "SLOTS"]).await? {
        RedisReply::Error(error) => Err(error),
        reply => read_ranges(&reply, endpoint).ok_or_else(|| "CLUSTER SLOTS returned no slot map".to_owned()),
    }
}

fn read_ranges(reply: &RedisReply, source: &Endpoint) -> Option<Vec<SlotRange>> {
    let ranges: Option<Vec<_>> = reply.elements()?.iter().map(|range| read_range(range, source)).collect();
    ranges.filter(|ranges| !ranges.is_empty())
}

fn read_range(range: &RedisReply, source: &Endpoint) -> Option<SlotRange> {
    let parts = range.elements()?;
    let slot = |n: usize| {
        parts.get(n)?.number().and_then(|slot| u16::try_from(slot).ok()).filter(|slot| *slot < SLOTS)
    };
    let primary = parts.get(2)?.elements()?;
    let port = primary.get(1)?.number().and_then(|port| u16::try_from(port).ok())?;
    let host = primary.first()?.text().unwrap_or_default();
    Some((slot(0)?, slot(1)?, endpoint_of(host, port, source)))
}

/// A server that does not know its own host name has the host that was queried.
pub(super) fn endpoint_of(host: &str, port: u16, source: &Endpoint) -> Endpoint {
    let host = match (host, source) {
        ("" | "?", Endpoint::Tcp { host, .. }) => host.clone(),
        (host, _) => host.to_owned(),
    };
    Endpoint::Tcp { host, port }
}

/// The hash slot of a key.
pub(super) fn slot_of(key: &str) -> u16 {
    crc16(hash_tag(key).as_bytes()) % SLOTS
}

/// CRC-16/XMODEM, as in the cluster specification.
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
        assert_ne!(slot_of("foo{}{bar}"), slot_of("{bar}"), "an empty tag is not a tag");
    }
}
