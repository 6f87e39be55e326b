//! The log of bans and lifts: numbered entries, and a head with the last number.
//!
//! A writer reserves numbers by a CAS on the head, and writes its entries under them; each entry is kept as long as its
//! ban. A node polls the head a few times a second and reads the new entries. A number without an entry (a gap) has
//! expired or is still being written: recent gaps are read again for a while. A head with another epoch is another
//! log: the store has lost the previous one, and everything is read again.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;
use tollgate::Time;
use tollgate::internal::ban::{Ban, BanSource};
use tollgate::internal::identity::Key;

use super::record::{pop_bytes, pop_text, push_text};
use super::seal::Seal;
use super::{BanEvent, UPDATE_TIMEOUT, foreign_value, round_trip_deadline};
use crate::counters::StoreError;
use crate::counters::cas::{CasOutcome, CasStore, CasValue, CasWrite, MAX_ATTEMPTS, back_off, load_one};
use crate::counters::varint::{pop_varint, push_varints};

const VERSION: u8 = 1;
/// One partition for the whole log, so that it can be read in one call.
const LOG_PARTITION: &str = "tg1:{bans}";
/// Entries before the head that a starting node reads. Older bans are found with the key's next violation.
const MAX_RECENT: u64 = 65_536;
/// Entries read or written in one call.
const PAGE: usize = 256;
/// Gaps that are remembered, and how long each is read again.
const MAX_GAPS: usize = 4_096;
const GAP_TIMEOUT: Duration = Duration::from_secs(5);
/// In the first read of a log, only gaps in the latest numbers are read again.
const RECENT_GAPS: u64 = 64;
/// Longer than the lifetime of any entry.
const HEAD_LIFETIME: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Upper bound of a reason.
const MAX_REASON_BYTES: usize = 256;
/// A key plus the overhead of sealing.
const MAX_SEALED_BYTES: usize = Key::MAX_LEN + 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct BanLogHead {
    epoch: u64,
    last: u64,
}

/// How far a node has read.
#[derive(Debug, Default)]
pub(super) struct BanLogCursor {
    head: Option<BanLogHead>,
    /// Gaps, and when each was first seen.
    gaps: BTreeMap<u64, Instant>,
}

/// Appends entries, each with its lifetime. After an error some of them may be in the log.
pub(super) async fn append<C: CasStore>(
    store: &C,
    entries: Vec<(Vec<u8>, Duration)>,
) -> Result<(), StoreError> {
    if entries.is_empty() {
        return Ok(());
    }
    let numbers = allocate_numbers(store, entries.len() as u64).await?;
    let entries: Vec<_> = numbers.zip(entries).collect();
    // A store that writes one value at a time writes a page of them in parallel. One whose transactions write several has
    // them all in one partition, where parallel transactions conflict: the more values each writes, the fewer run.
    let in_parallel = PAGE / C::MAX_WRITES.pow(2);
    for page in entries.chunks(in_parallel.max(1) * C::MAX_WRITES) {
        let written = page.chunks(C::MAX_WRITES).map(|entries| write_entries(store, entries));
        join_all(written).await.into_iter().collect::<Result<(), _>>()?;
    }
    Ok(())
}

async fn allocate_numbers<C: CasStore>(store: &C, count: u64) -> Result<RangeInclusive<u64>, StoreError> {
    let deadline = Instant::now() + UPDATE_TIMEOUT;
    let name = head_name();
    for attempt in 1..=MAX_ATTEMPTS {
        let CasValue { bytes, token } =
            load_one(store, LOG_PARTITION, &name, round_trip_deadline(deadline)).await?;
        let head = read_head(store, bytes)?;
        let BanLogHead { epoch, last } =
            head.unwrap_or_else(|| BanLogHead { epoch: fastrand::u64(1..), last: 0 });
        let next = BanLogHead { epoch, last: last + count };
        let write = CasWrite { name: name.clone(), token, bytes: next.encode(), lifetime: HEAD_LIFETIME };
        if store.swap(LOG_PARTITION, &[write], round_trip_deadline(deadline)).await? == CasOutcome::Applied {
            return Ok(last + 1..=next.last);
        }
        back_off::<C>(attempt).await;
    }
    Err(StoreError::Contended { server: store.server(LOG_PARTITION) })
}

async fn write_entries<C: CasStore>(
    store: &C,
    entries: &[(u64, (Vec<u8>, Duration))],
) -> Result<(), StoreError> {
    let deadline = Instant::now() + UPDATE_TIMEOUT;
    let names: Vec<_> = entries.iter().map(|(number, _)| entry_name(*number)).collect();
    let loaded = store.load(LOG_PARTITION, &names, round_trip_deadline(deadline)).await?;
    let mut writes = Vec::with_capacity(entries.len());
    for ((name, value), (_, (bytes, lifetime))) in names.into_iter().zip(loaded).zip(entries) {
        writes.push(CasWrite { name, token: value.token, bytes: bytes.clone(), lifetime: *lifetime });
    }
    store.swap(LOG_PARTITION, &writes, round_trip_deadline(deadline)).await.map(|_| ())
}

/// The entries after the cursor, in order; in the first call, all that have not expired.
pub(super) async fn read<C: CasStore>(
    store: &C,
    cursor: &mut BanLogCursor,
) -> Result<Vec<Vec<u8>>, StoreError> {
    let deadline = Instant::now() + UPDATE_TIMEOUT;
    let loaded = load_one(store, LOG_PARTITION, &head_name(), round_trip_deadline(deadline)).await?;
    let Some(head) = read_head(store, loaded.bytes)? else {
        *cursor = BanLogCursor::default();
        return Ok(Vec::new());
    };
    let numbers = cursor.unread(head);
    let mut entries = Vec::new();
    for page in numbers.chunks(PAGE) {
        let names: Vec<_> = page.iter().map(|number| entry_name(*number)).collect();
        let loaded =
            store.load(LOG_PARTITION, &names, round_trip_deadline(Instant::now() + UPDATE_TIMEOUT)).await?;
        for (number, loaded) in page.iter().zip(loaded) {
            match loaded.bytes {
                Some(bytes) => entries.push((*number, bytes)),
                None => cursor.record_gap(*number, head),
            }
        }
    }
    // Advance only now: after an error everything is read again.
    cursor.head = Some(head);
    entries.iter().for_each(|(number, _)| _ = cursor.gaps.remove(number));
    Ok(entries.into_iter().map(|(_, bytes)| bytes).collect())
}

/// Decodes the head, if there is one; a value that was not written by tollgate is an error.
fn read_head<C: CasStore>(store: &C, bytes: Option<Vec<u8>>) -> Result<Option<BanLogHead>, StoreError> {
    let foreign = || foreign_value(store.server(LOG_PARTITION), &head_name());
    bytes.map(|bytes| BanLogHead::decode(&bytes).ok_or_else(foreign)).transpose()
}

impl BanLogCursor {
    /// The numbers to read, in order.
    fn unread(&mut self, head: BanLogHead) -> Vec<u64> {
        let known = self.head.filter(|known| known.epoch == head.epoch && known.last <= head.last);
        if known.is_none() {
            *self = BanLogCursor::default();
        }
        let now = Instant::now();
        self.gaps.retain(|_, since| now.duration_since(*since) < GAP_TIMEOUT);
        // Whatever the head says: a store must not choose how much memory this takes.
        let recent = head.last.saturating_sub(MAX_RECENT);
        let first = known.map_or(recent, |known| known.last.max(recent)) + 1;
        self.gaps.keys().copied().chain(first..=head.last).collect()
    }

    fn record_gap(&mut self, number: u64, head: BanLogHead) {
        let may_come = self.head.is_some() || number + RECENT_GAPS > head.last;
        if may_come && self.gaps.len() < MAX_GAPS {
            self.gaps.entry(number).or_insert_with(Instant::now);
        }
    }
}

fn head_name() -> String {
    format!("{LOG_PARTITION}:head")
}

fn entry_name(number: u64) -> String {
    format!("{LOG_PARTITION}:{number}")
}

impl BanLogHead {
    fn encode(self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        push_varints(&mut bytes, [self.epoch, self.last]);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<BanLogHead> {
        let (&version, mut rest) = bytes.split_first()?;
        let head = BanLogHead { epoch: pop_varint(&mut rest)?, last: pop_varint(&mut rest)? };
        (version == VERSION && rest.is_empty() && head.last < 1 << 62).then_some(head)
    }
}

const BANNED: u64 = 1;
const LIFTED: u64 = 2;

pub(super) fn encode(event: &BanEvent, seal: &Seal) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    let (key, until) = match event {
        BanEvent::Banned { key, ban } => (key, ban.until),
        BanEvent::Lifted { key, until } => (key, *until),
    };
    let sealed = seal.seal(key.to_string().into_bytes());
    push_varints(&mut bytes, [if matches!(event, BanEvent::Banned { .. }) { BANNED } else { LIFTED }]);
    push_varints(&mut bytes, [until.nanos(), sealed.len() as u64]);
    bytes.extend_from_slice(&sealed);
    if let BanEvent::Banned { ban, .. } = event {
        push_varints(&mut bytes, [ban.strikes.into()]);
        push_text(&mut bytes, &ban.reason);
    }
    bytes
}

/// `None` if the bytes are not an entry, or are sealed with another secret.
pub(super) fn decode(bytes: &[u8], seal: &Seal) -> Option<BanEvent> {
    let (&version, mut rest) = bytes.split_first()?;
    if version != VERSION {
        return None;
    }
    let rest = &mut rest;
    let kind = pop_varint(rest)?;
    let until = Time::from_nanos(pop_varint(rest)?);
    let key = seal.open(pop_bytes(rest, MAX_SEALED_BYTES)?.to_vec())?;
    let key = Key::parse(std::str::from_utf8(&key).ok()?).ok()?;
    match kind {
        BANNED => {
            let strikes = u32::try_from(pop_varint(rest)?).ok()?;
            let reason = pop_text(rest, MAX_REASON_BYTES)?;
            Some(BanEvent::Banned { key, ban: Ban { until, reason, source: BanSource::Automatic, strikes } })
        }
        LIFTED => Some(BanEvent::Lifted { key, until }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::name::{NameHash, Naming};

    /// A regression: all numbers up to the head were collected, and a wrong head ended the process.
    #[test]
    fn a_head_that_is_far_ahead_costs_no_more_than_the_recent_entries() {
        let mut cursor = BanLogCursor::default();
        for last in [7, 1_000, (1 << 62) - 1] {
            let head = BanLogHead { epoch: 1, last };
            let unread = cursor.unread(head);
            assert!(unread.len() as u64 <= MAX_RECENT && unread.last() == Some(&last), "{}", unread.len());
            cursor.head = Some(head);
        }
        assert!(cursor.unread(BanLogHead { epoch: 1, last: (1 << 62) - 1 }).is_empty(), "all are read");
    }

    #[test]
    fn an_entry_is_read_as_it_was_written_and_only_under_its_secret() {
        let key = Key::parse("email:ann@example.com").expect("valid");
        let until = Time::from_secs(1_800_000_000);
        let ban =
            Ban { until, reason: "3 denials by rule a".into(), source: BanSource::Automatic, strikes: 2 };
        let keyed = |secret| NameHash::keyed(&[secret; 32]);
        let naming =
            [Naming::Plain, Naming::default(), Naming::Sensitive(keyed(1)), Naming::Hashed(keyed(2))];
        let seals = naming.map(|naming| Seal::of(&naming));
        for event in [BanEvent::Banned { key: key.clone(), ban }, BanEvent::Lifted { key, until }] {
            for (n, seal) in seals.iter().enumerate() {
                let bytes = encode(&event, seal);
                assert_eq!(decode(&bytes, seal).as_ref(), Some(&event));
                let is_readable = bytes.windows(3).any(|part| part == b"ann");
                assert_eq!(is_readable, n == 0, "an identity that is hashed in names is sealed in values");
                for (m, other) in seals.iter().enumerate().filter(|(m, _)| *m != n) {
                    assert_eq!(decode(&bytes, other), None, "{n} by {m}");
                }
                for end in 0..bytes.len() {
                    assert_eq!(decode(&bytes[..end], seal), None);
                }
            }
        }
    }
}
