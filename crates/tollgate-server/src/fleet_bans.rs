//! Automatic bans of all nodes that share a central store: violations are sent there in the background, and bans are
//! read back.
//!
//! A ban that results from this node's violations is announced before it is enforced here: a ban that any node enforces
//! can be read by all nodes, even after all of them crash. While the store does not answer, violations are counted on
//! this node.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tollgate::Time;
use tollgate::internal::ban::{Ban, BanSource, ViolationCounter, Violations};
use tollgate::internal::identity::Key;
use tollgate::internal::lock;
use tollgate_stores::counters::StoreError;
use tollgate_stores::counters::violations::{BanEvent, SharedBans, ViolationOutcome};

use crate::connection::{Shutdown, shutdown_requested};
use crate::gate::{CentralBackend, FieldSelection, Gate};

/// How often violations are sent.
const SEND_EVERY: Duration = Duration::from_millis(50);
/// How often announcements are read.
const READ_EVERY: Duration = Duration::from_millis(250);
/// Bound on keys with violations in flight.
const MAX_IN_FLIGHT: usize = 64;
/// Bound on bans and lifts that are not yet announced, and on lifts that are not yet in the store.
const MAX_PENDING: usize = 10_000;
/// An older ban that was not announced never will be: the node that decided it has crashed.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(3);
/// Minimum time that a lift is remembered.
const LIFT_RETENTION: Duration = Duration::from_secs(60);
/// How long a stop waits for unsent data, and a lift for the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);

pub struct FleetBanSync {
    shared: SharedBans,
    pending: Mutex<PendingBanEvents>,
    /// Notified when there is something to announce.
    wake: Notify,
    is_synced: watch::Sender<bool>,
    pub counts: FleetBanCounts,
}

/// Violations by where they were counted, and those that were dropped.
#[derive(Default)]
pub struct FleetBanCounts {
    pub fleet: AtomicU64,
    pub node: AtomicU64,
    pub dropped_events: AtomicU64,
}

struct Announcement {
    event: BanEvent,
    /// The rule of this node's violations that led to the ban; the ban is not in force here yet.
    decided_by: Option<String>,
}

#[derive(Default)]
struct PendingBanEvents {
    /// To be announced.
    events: VecDeque<Announcement>,
    /// To be reset in the store.
    lifted: VecDeque<Key>,
    /// When keys were lifted recently: until the store has reset them it may still report them as banned.
    lifts: HashMap<Key, Time>,
}

impl PendingBanEvents {
    fn record_lift(&mut self, key: &Key, now: Time) {
        if self.lifts.len() >= MAX_PENDING {
            self.lifts.retain(|_, at| now.since(*at) < LIFT_RETENTION);
        }
        if self.lifts.len() < MAX_PENDING {
            self.lifts.insert(key.clone(), now);
        }
    }
}

impl FleetBanSync {
    pub fn new(shared: SharedBans) -> FleetBanSync {
        FleetBanSync {
            shared,
            pending: Mutex::default(),
            wake: Notify::new(),
            is_synced: watch::Sender::new(false),
            counts: FleetBanCounts::default(),
        }
    }

    /// Returns once the bans of the store were read, or the store is unavailable.
    pub async fn wait_for_sync(&self) {
        self.is_synced.subscribe().wait_for(|is_synced| *is_synced).await.ok();
    }

    /// Resets a key in the store and announces the lift to all nodes. While the store does not answer it is retried.
    pub async fn lift(&self, key: &Key, ban: &Ban, now: Time) {
        self.lock().record_lift(key, now);
        let forgiven = timeout(STORE_TIMEOUT, self.shared.forgive(key, now)).await;
        let Ok(Ok(banned_until)) = forgiven else {
            tracing::warn!("a lifted ban could not be removed from the store, which does not answer");
            if ban.source == BanSource::Automatic {
                self.announce(BanEvent::Lifted { key: key.clone(), until: ban.until }, None);
            }
            return self.forgive_later(key.clone(), now);
        };
        let known_until = Some(ban.until).filter(|_| ban.source == BanSource::Automatic);
        if let Some(until) = known_until.max(banned_until) {
            let event = BanEvent::Lifted { key: key.clone(), until };
            let announced =
                timeout(STORE_TIMEOUT, self.shared.publish(std::slice::from_ref(&event), now)).await;
            if !matches!(announced, Ok(Ok(()))) {
                self.announce(event, None);
            }
        }
    }

    /// Resets a key in the store in the background; its ban is lifted here already.
    pub fn forgive_later(&self, key: Key, now: Time) {
        let mut pending = self.lock();
        pending.record_lift(&key, now);
        self.push(&mut pending.lifted, key);
        drop(pending);
        self.wake.notify_one();
    }

    /// `false` if the list of announcements is full.
    fn announce(&self, event: BanEvent, decided_by: Option<String>) -> bool {
        let is_queued = self.push(&mut self.lock().events, Announcement { event, decided_by });
        self.wake.notify_one();
        is_queued
    }

    /// Appends to a bounded queue; a full one drops the item, which is counted.
    fn push<T>(&self, queue: &mut VecDeque<T>, item: T) -> bool {
        let has_room = queue.len() < MAX_PENDING;
        match has_room {
            true => queue.push_back(item),
            false => _ = self.counts.dropped_events.fetch_add(1, Ordering::Relaxed),
        }
        has_room
    }

    /// Announces pending events, and puts decided bans in force; events that cannot be announced stay pending.
    async fn announce_pending(&self, gate: &Gate) -> Result<(), StoreError> {
        let pending: Vec<Announcement> = self.lock().events.drain(..).collect();
        let events: Vec<BanEvent> = pending.iter().map(|each| each.event.clone()).collect();
        let announced = self.shared.publish(&events, gate.now()).await;
        for Announcement { event, decided_by } in &pending {
            if let (BanEvent::Banned { key, ban }, Some(rule)) = (event, decided_by) {
                gate.extend_field_selection(&FieldSelection::of_key(key));
                gate.engine.apply_decided_ban(rule, key, ban, gate.now());
            }
        }
        if announced.is_err() {
            // In their order, before newer events: a lift follows its ban.
            let unannounced = events.into_iter().map(|event| Announcement { event, decided_by: None });
            let mut queue = self.lock();
            unannounced.rev().for_each(|announcement| queue.events.push_front(announcement));
        }
        announced
    }

    /// Resets in the store the keys that were lifted here.
    async fn forgive_pending(&self, now: Time) -> Result<(), StoreError> {
        loop {
            let next = self.lock().lifted.front().cloned();
            let Some(key) = next else { return Ok(()) };
            let banned_until = self.shared.forgive(&key, now).await?;
            self.lock().lifted.pop_front();
            if let Some(until) = banned_until {
                self.announce(BanEvent::Lifted { key, until }, None);
            }
        }
    }

    /// Whether a ban was lifted here, and the store may not know that yet.
    fn is_lifted(&self, key: &Key, started_at: Time) -> bool {
        self.lock().lifts.get(key).is_some_and(|lifted_at| *lifted_at >= started_at)
    }

    async fn count(&self, gate: &Gate, violations: Violations) {
        let now = gate.now();
        let key = &violations.key;
        let counted = match self.shared.count(&violations, now).await {
            Ok(ViolationOutcome::Counted) => &self.counts.fleet,
            Ok(ViolationOutcome::Banned { rule, ban }) => {
                let event = BanEvent::Banned { key: key.clone(), ban: ban.clone() };
                if !self.announce(event, Some(rule.clone())) {
                    gate.extend_field_selection(&FieldSelection::of_key(key));
                    gate.engine.apply_decided_ban(&rule, key, &ban, now);
                }
                &self.counts.fleet
            }
            Ok(ViolationOutcome::AlreadyBanned { ban, started_at }) => {
                if now.since(started_at) > ANNOUNCE_TIMEOUT && !self.is_lifted(key, started_at) {
                    gate.extend_field_selection(&FieldSelection::of_key(key));
                    gate.engine.apply_fleet_ban(key, &ban, now);
                    self.announce(BanEvent::Banned { key: key.clone(), ban }, None);
                }
                &self.counts.fleet
            }
            Err(error) => {
                tracing::debug!(%error, "violations are counted on this node only");
                gate.engine.count_violations_locally(&violations);
                &self.counts.node
            }
        };
        let count =
            violations.by_rule.iter().flat_map(|by| &by.times).map(|(_, count)| u64::from(*count)).sum();
        counted.fetch_add(count, Ordering::Relaxed);
    }

    /// Reads and applies the announcements of other nodes.
    async fn read(&self, gate: &Gate) -> Result<(), StoreError> {
        let events = self.shared.read_events().await?;
        for event in events {
            let now = gate.now();
            match event {
                BanEvent::Banned { key, ban } => {
                    gate.extend_field_selection(&FieldSelection::of_key(&key));
                    gate.engine.apply_fleet_ban(&key, &ban, now);
                }
                BanEvent::Lifted { key, until } => {
                    self.lock().record_lift(&key, now);
                    gate.engine.apply_fleet_lift(&key, until, now);
                    if let Some(follower) = gate.rules_follower.get() {
                        follower.queue_ban_removal(key, until);
                    }
                }
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, PendingBanEvents> {
        lock(&self.pending)
    }
}

/// Sends and reads until the shutdown.
pub async fn run(gate: Arc<Gate>, mut shutdown: Shutdown) {
    let Some(central) = gate.central.get() else { return };
    let bans = &central.bans;
    gate.engine.set_violation_counter(ViolationCounter::Fleet);
    tokio::select! {
        () = shutdown_requested(&mut shutdown) => {}
        () = send_loop(&gate) => {}
        () = announce_loop(&gate, bans) => {}
        () = read_loop(&gate, bans) => {}
    }
    let final_flush = async {
        send(&gate).await;
        announce(&gate, bans).await.ok();
    };
    timeout(STORE_TIMEOUT, final_flush).await.ok();
}

async fn send_loop(gate: &Arc<Gate>) {
    let mut ticks = interval(SEND_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        send(gate).await;
    }
}

async fn send(gate: &Arc<Gate>) {
    let mut counting = JoinSet::new();
    for violations in gate.engine.take_violations() {
        if counting.len() >= MAX_IN_FLIGHT {
            counting.join_next().await;
        }
        let gate = Arc::clone(gate);
        counting.spawn(async move {
            if let Some(central) = gate.central.get() {
                central.bans.count(&gate, violations).await;
            }
        });
    }
    while counting.join_next().await.is_some() {}
}

async fn announce_loop(gate: &Gate, bans: &FleetBanSync) {
    loop {
        bans.wake.notified().await;
        while let Err(error) = announce(gate, bans).await {
            tracing::debug!(%error, "bans and lifts wait to be announced");
            sleep(READ_EVERY).await;
        }
    }
}

async fn announce(gate: &Gate, bans: &FleetBanSync) -> Result<(), StoreError> {
    let forgiven = bans.forgive_pending(gate.now()).await;
    bans.announce_pending(gate).await.and(forgiven)
}

async fn read_loop(gate: &Gate, bans: &FleetBanSync) {
    let mut ticks = interval(READ_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let counter = match bans.read(gate).await {
            Ok(()) => ViolationCounter::Fleet,
            Err(error) => {
                tracing::debug!(%error, "bans of other nodes cannot be read");
                ViolationCounter::Node
            }
        };
        gate.engine.set_violation_counter(counter);
        // A store that is still connecting is not known to be impaired.
        let is_down = || gate.central.get().is_some_and(CentralBackend::is_impaired);
        if counter == ViolationCounter::Fleet || is_down() {
            bans.is_synced.send_replace(true);
        }
    }
}
