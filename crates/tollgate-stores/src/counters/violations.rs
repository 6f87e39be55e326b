//! Violations counted across all nodes, and the bans that follow from them.
//!
//! The record of a ban key is one value, updated by compare-and-swap with [`tollgate::internal::ban::Offender`]. The ban is
//! decided in that update, so all nodes agree; the ban stays in the record until it ends. Other nodes learn of it from
//! a log of bans and lifts (`log`), or when they count a violation of the same key.
//!
//! Every write has an id, and the record keeps the latest id of each writer: a write with an unknown outcome is
//! retried and counts once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;
use tollgate::Time;
use tollgate::internal::ban::{Ban, Violations};
use tollgate::internal::identity::Key;
use tollgate::internal::store::KeyPart;

use self::log::BanLogCursor;
use self::record::{OffenderRecord, RecordChange, WriteId};
use self::seal::Seal;
use super::StoreError;
use super::cas::{CasOutcome, CasStore, CasValue, CasWrite, MAX_ATTEMPTS, back_off, load_one};
use super::central::CentralStore;
use super::name::Naming;

mod log;
mod record;
mod seal;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;

/// For all round trips of one update; no request waits for it.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(2);
/// One round trip gets 1/`ROUND_TRIP_FRACTION` of it; the rest is for retries after an unknown outcome.
const ROUND_TRIP_FRACTION: u32 = 4;
/// A forgiven record is kept this long, so that a delayed write still finds its id.
const FORGIVEN_TTL: Duration = Duration::from_secs(60);

/// Published to all nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BanEvent {
    Banned {
        key: Key,
        ban: Ban,
    },
    /// An automatic ban was lifted before its end, `until`.
    Lifted {
        key: Key,
        until: Time,
    },
}

/// The result of counting violations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ViolationOutcome {
    Counted,
    /// They led to a ban by this rule.
    Banned {
        rule: String,
        ban: Ban,
    },
    /// The key was already banned. This node may not know the ban yet.
    AlreadyBanned {
        ban: Ban,
        started_at: Time,
    },
}

/// Violations and bans shared by all nodes.
pub struct SharedBans {
    store: CentralStore,
    naming: Naming,
    seal: Seal,
    /// Identifies this process among all writers.
    writer: u64,
    sequence: AtomicU64,
    position: Mutex<BanLogCursor>,
}

/// Evaluates `$call` with the [`CasStore`] of the backend.
macro_rules! with_cas_store {
    ($store:expr, |$cas_store:ident| $call:expr) => {
        match $store {
            #[cfg(feature = "redis")]
            CentralStore::Redis(store) => {
                let $cas_store = &store.values();
                $call
            }
            #[cfg(feature = "memcached")]
            CentralStore::Memcached(store) => {
                let $cas_store = store.values();
                $call
            }
            #[cfg(feature = "cassandra")]
            CentralStore::Cassandra(store) => {
                let $cas_store = store.rows()?;
                $call
            }
        }
    };
}

impl SharedBans {
    pub fn new(store: CentralStore, naming: Naming) -> SharedBans {
        SharedBans {
            store,
            seal: Seal::of(&naming),
            naming,
            writer: fastrand::u64(1..),
            sequence: AtomicU64::new(0),
            position: Mutex::default(),
        }
    }

    fn record_name(&self, key: &Key) -> String {
        let parts: Vec<_> = key.encoded_parts().map(KeyPart::from).collect();
        self.naming.ban_record_name(&parts)
    }

    /// Counts violations of one key. After an error the outcome is unknown.
    pub async fn count(&self, violations: &Violations, now: Time) -> Result<ViolationOutcome, StoreError> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        let write_id = WriteId { writer: self.writer, sequence };
        let name = self.record_name(&violations.key);
        let change = |record: &mut OffenderRecord| match record.count(violations, write_id) {
            RecordChange::Unchanged => (record.outcome(write_id, now), None),
            RecordChange::Changed => (record.outcome(write_id, now), Some(record.expires_at().since(now))),
        };
        with_cas_store!(&self.store, |cas_store| update(cas_store, &name, change).await)
    }

    /// Clears the violations and bans of a key; returns when its ban would have ended, if it was banned.
    pub async fn forgive(&self, key: &Key, now: Time) -> Result<Option<Time>, StoreError> {
        let name = self.record_name(key);
        let change = |record: &mut OffenderRecord| {
            let until = Some(record.banned_until()).filter(|until| *until > now);
            match record.forgive() {
                true => (until, Some(FORGIVEN_TTL)),
                false => (None, None),
            }
        };
        with_cas_store!(&self.store, |cas_store| update(cas_store, &name, change).await)
    }

    /// Appends events to the log that all nodes read, this one included.
    pub async fn publish(&self, events: &[BanEvent], now: Time) -> Result<(), StoreError> {
        let lifetime = |event: &BanEvent| match event {
            BanEvent::Banned { ban, .. } => ban.until.since(now),
            BanEvent::Lifted { until, .. } => until.since(now),
        };
        let entries: Vec<_> =
            events.iter().map(|event| (log::encode(event, &self.seal), lifetime(event))).collect();
        with_cas_store!(&self.store, |cas_store| log::append(cas_store, entries).await)
    }

    /// Events since the last call; in the first call, all that have not expired. Unreadable entries are skipped.
    pub async fn read_events(&self) -> Result<Vec<BanEvent>, StoreError> {
        let mut position = self.position.lock().await;
        let entries = with_cas_store!(&self.store, |cas_store| log::read(cas_store, &mut position).await)?;
        Ok(entries.iter().filter_map(|bytes| log::decode(bytes, &self.seal)).collect())
    }
}

/// Updates a record by CAS; `change` returns its result, and the lifetime of the record if it changed.
async fn update<C: CasStore, T>(
    store: &C,
    name: &str,
    change: impl Fn(&mut OffenderRecord) -> (T, Option<Duration>),
) -> Result<T, StoreError> {
    let deadline = Instant::now() + UPDATE_TIMEOUT;
    let mut failed = None;
    for attempt in 1..=MAX_ATTEMPTS {
        let CasValue { bytes, token } = load_one(store, name, name, round_trip_deadline(deadline)).await?;
        let mut record = match bytes {
            Some(bytes) => {
                OffenderRecord::decode(&bytes).ok_or_else(|| foreign_value(store.server(name), name))?
            }
            None => OffenderRecord::default(),
        };
        let (answer, lifetime) = change(&mut record);
        let Some(lifetime) = lifetime else { return Ok(answer) };
        let write = CasWrite { name: name.to_owned(), token, bytes: record.encode(), lifetime };
        match store.swap(name, &[write], round_trip_deadline(deadline)).await {
            Ok(CasOutcome::Applied) => return Ok(answer),
            Ok(CasOutcome::Conflict) => {}
            // The write may have been applied: the retry finds its id in the record.
            Err(error @ (StoreError::Deadline { .. } | StoreError::Unreachable { .. })) => {
                failed = Some(error)
            }
            Err(error) => return Err(error),
        }
        if Instant::now() >= deadline {
            break;
        }
        back_off::<C>(attempt).await;
    }
    Err(failed.unwrap_or_else(|| StoreError::Contended { server: store.server(name) }))
}

fn round_trip_deadline(deadline: Instant) -> Instant {
    deadline.min(Instant::now() + UPDATE_TIMEOUT / ROUND_TRIP_FRACTION)
}

fn foreign_value(server: String, name: &str) -> StoreError {
    StoreError::Refused {
        server,
        reason: format!("{name}: the value under this name has an unexpected format"),
    }
}
