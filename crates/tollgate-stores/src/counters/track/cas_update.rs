//! Updates records by compare-and-swap.

use std::fmt::Write as _;

use tokio::time::Instant;
use tollgate::internal::track::{Delta, Track};

use super::{MAX_WRITERS, TRACK_TIMEOUT, TrackRecord, micros, write_times};
use crate::counters::StoreError;
use crate::counters::cas::{CasOutcome, CasStore, CasValue, CasWrite, MAX_ATTEMPTS, back_off, load_one};

/// Adds a delta to a record by compare-and-swap.
pub(crate) async fn add<C: CasStore>(
    store: &C,
    partition: &str,
    name: &str,
    delta: &Delta,
) -> Result<(), StoreError> {
    let deadline = Instant::now() + TRACK_TIMEOUT;
    for attempt in 1..=MAX_ATTEMPTS {
        let (mut record, token) = load(store, partition, name, deadline).await?;
        if !record.add(delta) {
            return Ok(());
        }
        let bytes = record.write().into_bytes();
        let lifetime = delta.tracking.keep();
        let write = CasWrite { name: name.to_owned(), token, bytes, lifetime };
        match store.swap(partition, &[write], deadline).await? {
            CasOutcome::Applied => return Ok(()),
            CasOutcome::Conflict => back_off::<C>(attempt).await,
        }
    }
    Err(StoreError::Contended { server: store.server(partition) })
}

/// Reads a record.
pub(crate) async fn read<C: CasStore>(
    store: &C,
    partition: &str,
    name: &str,
) -> Result<TrackRecord, StoreError> {
    Ok(load(store, partition, name, Instant::now() + TRACK_TIMEOUT).await?.0)
}

async fn load<C: CasStore>(
    store: &C,
    partition: &str,
    name: &str,
    deadline: Instant,
) -> Result<(TrackRecord, C::Token), StoreError> {
    let CasValue { bytes, token } = load_one(store, partition, name, deadline).await?;
    let record =
        bytes.map_or(Ok(TrackRecord::default()), |bytes| TrackRecord::read(&bytes, &store.server(partition)));
    Ok((record?, token))
}

impl TrackRecord {
    pub(crate) fn write(&self) -> String {
        let Track { tries, denials, last_seen, latest } = &self.track;
        let latest = write_times(latest.iter());
        let mut text = format!(
            "v1 tries={tries} denials={denials} last_seen={} latest={latest} writers=",
            micros(*last_seen)
        );
        for (n, (writer, sequence)) in self.writers.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            write!(text, "{comma}{writer:016x}:{sequence}").expect("a string takes all that is written");
        }
        text
    }

    /// Adds a delta; `false` if the record already includes it.
    pub(crate) fn add(&mut self, delta: &Delta) -> bool {
        if self.last_sequence(delta.writer) >= delta.sequence {
            return false;
        }
        self.writers.retain(|(writer, _)| *writer != delta.writer);
        self.writers.push((delta.writer, delta.sequence));
        let surplus = self.writers.len().saturating_sub(MAX_WRITERS);
        self.writers.drain(..surplus);
        self.track.add(&delta.track, delta.tracking.times());
        true
    }
}

#[cfg(test)]
mod tests {
    use tollgate::Time;

    use super::*;

    #[test]
    fn a_record_is_a_line_that_reads_the_same() {
        let text = "v1 tries=30 denials=10 last_seen=1794750468123456 latest=1794750467000000,1794750468123456 \
                    writers=00000000000000ff:17,9f2c000000000001:3";
        let record = TrackRecord::parse(text.as_bytes()).expect("a record");
        assert_eq!((record.track.tries, record.track.denials, record.track.latest.len()), (30, 10, 2));
        assert_eq!(record.track.last_seen, Time::from_nanos(1_794_750_468_123_456_000));
        assert_eq!((record.last_sequence(255), record.last_sequence(1)), (17, 0));
        assert_eq!(record.write(), text);
        let empty = TrackRecord::default();
        assert_eq!(TrackRecord::parse(empty.write().as_bytes()), Some(empty));
        for bad in ["", "v1", "v2 tries=1", "v1 tries=x denials=0 last_seen=0 latest= writers=", "\u{1}\u{2}"]
        {
            assert_eq!(TrackRecord::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
