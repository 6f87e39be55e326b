//! Violations of all nodes counted together, and the bans that come of it.
//!
//! What is held against a ban key is one value, read, changed by the library's own function
//! ([`tollgate::ban::Offender`]) and written back if it is as it was read: the ban is decided in that step, so
//! all nodes agree on it, and it stays there until it is over. Other nodes learn of it from a log of bans and lifts
//! (`log`), or when they count a violation of the same key.
//!
//! Every write carries a stamp, and a value remembers the latest stamp of each writer: a write whose fate is unknown is
//! sent again, and counts once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};
use tollgate::Time;
use tollgate::ban::{Ban, Violations};
use tollgate::identity::Key;
use tollgate::store::KeyPart;

use self::log::BanLogCursor;
use self::record::{OffenderRecord, RecordChange, WriteId};
use self::seal::Seal;
use super::StoreError;
use super::cas::{CasOutcome, CasStore, CasValue, CasWrite};
use super::central::CentralStore;
use super::name::Naming;

mod log;
mod record;
mod seal;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;

/// How often a change is tried before others have won for good.
const MAX_TRIES: u32 = 12;
/// For all round trips of one change; nobody waits for it.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(2);
/// The part of it that one round trip gets: the rest is for finding out what became of it.
const ROUND_TRIP_FRACTION: u32 = 4;
/// What was forgiven is remembered for this long, so that a write that is late finds its stamp.
const FORGIVEN_TTL: Duration = Duration::from_secs(60);

/// What nodes tell each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BanEvent {
    Banned {
        key: Key,
        ban: Ban,
    },
    /// An automatic ban was lifted that would have held until then.
    Lifted {
        key: Key,
        until: Time,
    },
}

/// What came of violations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ViolationOutcome {
    Counted,
    /// They have led to a ban, by this rule.
    Banned {
        rule: String,
        ban: Ban,
    },
    /// The key was banned already. The ban may be news to this node.
    AlreadyBanned {
        ban: Ban,
        started_at: Time,
    },
}

/// The violations and bans that nodes share.
pub struct SharedBans {
    store: CentralStore,
    naming: Naming,
    seal: Seal,
    /// This process among all that write.
    writer: u64,
    sequence: AtomicU64,
    position: Mutex<BanLogCursor>,
}

/// Calls `$call` with the values of the store, whatever it is.
macro_rules! with_cells {
    ($store:expr, |$cells:ident| $call:expr) => {
        match $store {
            #[cfg(feature = "redis")]
            CentralStore::Redis(store) => {
                let $cells = &store.values();
                $call
            }
            #[cfg(feature = "memcached")]
            CentralStore::Memcached(store) => {
                let $cells = store.values();
                $call
            }
            #[cfg(feature = "cassandra")]
            CentralStore::Cassandra(store) => {
                let $cells = store.rows()?;
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

    /// Counts violations of one key. After an error it is not known whether they count.
    pub async fn count(&self, violations: &Violations, now: Time) -> Result<ViolationOutcome, StoreError> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        let write_id = WriteId { writer: self.writer, sequence };
        let name = self.record_name(&violations.key);
        let change = |record: &mut OffenderRecord| match record.count(violations, write_id) {
            RecordChange::Unchanged => (record.outcome(write_id, now), None),
            RecordChange::Changed => (record.outcome(write_id, now), Some(record.expires_at().since(now))),
        };
        with_cells!(&self.store, |cells| update(cells, &name, change).await)
    }

    /// Forgets the violations and bans of a key; says until when it would have been banned, if it would.
    pub async fn forgive(&self, key: &Key, now: Time) -> Result<Option<Time>, StoreError> {
        let name = self.record_name(key);
        let change = |record: &mut OffenderRecord| {
            let until = Some(record.banned_until()).filter(|until| *until > now);
            match record.forgive() {
                true => (until, Some(FORGIVEN_TTL)),
                false => (None, None),
            }
        };
        with_cells!(&self.store, |cells| update(cells, &name, change).await)
    }

    /// Tells all nodes, this one included.
    pub async fn publish(&self, events: &[BanEvent], now: Time) -> Result<(), StoreError> {
        let lives = |event: &BanEvent| match event {
            BanEvent::Banned { ban, .. } => ban.until.since(now),
            BanEvent::Lifted { until, .. } => until.since(now),
        };
        let entries: Vec<_> =
            events.iter().map(|event| (log::encode(event, &self.seal), lives(event))).collect();
        with_cells!(&self.store, |cells| log::append(cells, entries).await)
    }

    /// What was announced since the last call; at first, all that is not over. What cannot be read is left out.
    pub async fn read_events(&self) -> Result<Vec<BanEvent>, StoreError> {
        let mut position = self.position.lock().await;
        let entries = with_cells!(&self.store, |cells| log::read(cells, &mut position).await)?;
        Ok(entries.iter().filter_map(|bytes| log::decode(bytes, &self.seal)).collect())
    }
}

/// Changes a record; `change` returns its answer, and how long what it has changed is of interest.
async fn update<C: CasStore, T>(
    cells: &C,
    name: &str,
    change: impl Fn(&mut OffenderRecord) -> (T, Option<Duration>),
) -> Result<T, StoreError> {
    let deadline = Instant::now() + UPDATE_TIMEOUT;
    let mut failed = None;
    for tried in 1..=MAX_TRIES {
        let CasValue { bytes, token } = load_one(cells, name, name, deadline).await?;
        let mut record = match bytes {
            Some(bytes) => {
                OffenderRecord::decode(&bytes).ok_or_else(|| foreign_value(cells.server(name), name))?
            }
            None => OffenderRecord::default(),
        };
        let (answer, lifetime) = change(&mut record);
        let Some(lifetime) = lifetime else { return Ok(answer) };
        let write = CasWrite { name: name.to_owned(), token, bytes: record.encode(), lifetime };
        match cells.swap(name, &[write], round_trip_deadline(deadline)).await {
            Ok(CasOutcome::Applied) => return Ok(answer),
            Ok(CasOutcome::Conflict) => {}
            // It may have been done: the stamp will tell.
            Err(error @ (StoreError::Deadline { .. } | StoreError::Unreachable { .. })) => {
                failed = Some(error)
            }
            Err(error) => return Err(error),
        }
        if Instant::now() >= deadline {
            break;
        }
        sleep(C::RETRY_BACKOFF.mul_f64(f64::from(tried) * fastrand::f64())).await;
    }
    Err(failed.unwrap_or_else(|| StoreError::Contended { server: cells.server(name) }))
}

async fn load_one<C: CasStore>(
    cells: &C,
    partition: &str,
    name: &str,
    deadline: Instant,
) -> Result<CasValue<C::Token>, StoreError> {
    let loaded = cells.load(partition, &[name.to_owned()], round_trip_deadline(deadline)).await?;
    let missing = || StoreError::Refused {
        server: cells.server(partition),
        reason: "no answer to a question".to_owned(),
    };
    loaded.into_iter().next().ok_or_else(missing)
}

fn round_trip_deadline(deadline: Instant) -> Instant {
    deadline.min(Instant::now() + UPDATE_TIMEOUT / ROUND_TRIP_FRACTION)
}

fn foreign_value(server: String, name: &str) -> StoreError {
    StoreError::Refused {
        server,
        reason: format!("{name}: it holds a value under this name that is none of ours"),
    }
}
