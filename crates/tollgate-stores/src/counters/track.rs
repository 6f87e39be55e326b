//! The record of a tracked key: what all nodes have seen of it, in one line that people can read.
//!
//! `v1 tries=30 denials=10 last_seen=1794750468123456 latest=…,… writers=9f2c…:17,…`, times in microseconds since 1970.
//! `writers` has the number of the last delta of each process that has written lately, the latest writer last. A delta
//! that is part of the record already is not added again. That holds for as long as fewer than [`MAX_WRITERS`] other
//! processes have written the same key between a write and its repetition.

use std::fmt::Write as _;
use std::time::Duration;

#[cfg(any(feature = "memcached", feature = "cassandra"))]
use tokio::time::{Instant, sleep};
use tollgate::Time;
use tollgate::track::central::SharedTrack;
use tollgate::track::{Delta, Track};

use super::StoreError;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
use super::cells::{Cells, Loaded, Swap, Write};

/// Processes whose last delta a record remembers.
pub(crate) const MAX_WRITERS: usize = 32;
/// A record is read or written in the background, or for an operator who waits.
pub(crate) const DEADLINE: Duration = Duration::from_secs(2);
/// How often a record is read anew because another node was faster.
#[cfg(any(feature = "memcached", feature = "cassandra"))]
const MAX_TRIES: u32 = 12;
const NANOS_PER_MICRO: u64 = 1_000;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Record {
    track: Track,
    /// The latest writer last.
    writers: Vec<(u64, u64)>,
}

impl Record {
    /// `None` if the text is not a record.
    pub(crate) fn parse(text: &[u8]) -> Option<Record> {
        let mut fields = std::str::from_utf8(text).ok()?.strip_prefix("v1 ")?.split(' ');
        let mut field = |name: &str| fields.next()?.strip_prefix(name)?.strip_prefix('=');
        let track = Track {
            tries: field("tries")?.parse().ok()?,
            denials: field("denials")?.parse().ok()?,
            last_seen: parse_time(field("last_seen")?)?,
            latest: list(field("latest")?).map(parse_time).collect::<Option<_>>()?,
        };
        let writer = |text: &str| {
            let (writer, sequence) = text.split_once(':')?;
            Some((u64::from_str_radix(writer, 16).ok()?, sequence.parse().ok()?))
        };
        let writers = list(field("writers")?).map(writer).collect::<Option<_>>()?;
        Some(Record { track, writers })
    }

    /// The record, or the error of a value under its name that is not one.
    pub(crate) fn read(text: &[u8], server: &str) -> Result<Record, StoreError> {
        Record::parse(text).ok_or_else(|| StoreError::Refused {
            server: server.to_owned(),
            reason: "it holds a value under the name of a tracking record that is not one".to_owned(),
        })
    }

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

    /// Adds a delta; `false` if it is part of the record already.
    pub(crate) fn add(&mut self, delta: &Delta) -> bool {
        if self.applied(delta.writer) >= delta.sequence {
            return false;
        }
        self.writers.retain(|(writer, _)| *writer != delta.writer);
        self.writers.push((delta.writer, delta.sequence));
        let surplus = self.writers.len().saturating_sub(MAX_WRITERS);
        self.writers.drain(..surplus);
        self.track.add(&delta.track, delta.tracking.times());
        true
    }

    pub(crate) fn shared(self, writer: u64) -> SharedTrack {
        SharedTrack { applied: self.applied(writer), track: self.track }
    }

    fn applied(&self, writer: u64) -> u64 {
        self.writers.iter().find(|(known, _)| *known == writer).map_or(0, |(_, sequence)| *sequence)
    }
}

pub(crate) fn micros(time: Time) -> u64 {
    time.nanos() / NANOS_PER_MICRO
}

/// Times as a record has them.
pub(crate) fn write_times<'t>(times: impl Iterator<Item = &'t Time>) -> String {
    let mut text = String::new();
    for time in times {
        let comma = if text.is_empty() { "" } else { "," };
        write!(text, "{comma}{}", micros(*time)).expect("a string takes all that is written");
    }
    text
}

fn parse_time(text: &str) -> Option<Time> {
    Some(Time::from_nanos(text.parse::<u64>().ok()?.saturating_mul(NANOS_PER_MICRO)))
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(|item| !item.is_empty())
}

/// Adds a delta where records are replaced if no other node was faster.
#[cfg(any(feature = "memcached", feature = "cassandra"))]
pub(crate) async fn add<C: Cells>(
    cells: &C,
    lane: &str,
    name: &str,
    delta: &Delta,
) -> Result<(), StoreError> {
    let deadline = Instant::now() + DEADLINE;
    for tried in 1..=MAX_TRIES {
        let (mut record, seen) = load(cells, lane, name, deadline).await?;
        if !record.add(delta) {
            return Ok(());
        }
        let (bytes, lifetime) = (record.write().into_bytes(), delta.tracking.keep());
        let write = Write { name: name.to_owned(), seen, bytes, lifetime };
        match cells.swap(lane, &[write], deadline).await? {
            Swap::Done => return Ok(()),
            Swap::Lost => sleep(C::PAUSE.mul_f64(f64::from(tried) * fastrand::f64())).await,
        }
    }
    Err(StoreError::Contended { server: cells.server(lane) })
}

/// Reads a record for an operator.
#[cfg(any(feature = "memcached", feature = "cassandra"))]
pub(crate) async fn read<C: Cells>(cells: &C, lane: &str, name: &str) -> Result<Record, StoreError> {
    Ok(load(cells, lane, name, Instant::now() + DEADLINE).await?.0)
}

#[cfg(any(feature = "memcached", feature = "cassandra"))]
async fn load<C: Cells>(
    cells: &C,
    lane: &str,
    name: &str,
    deadline: Instant,
) -> Result<(Record, C::Seen), StoreError> {
    let mut loaded = cells.load(lane, &[name.to_owned()], deadline).await?;
    let missing = || StoreError::Refused { server: cells.server(lane), reason: "no answer".to_owned() };
    let Loaded { bytes, seen } = loaded.pop().ok_or_else(missing)?;
    let record = bytes.map_or(Ok(Record::default()), |bytes| Record::read(&bytes, &cells.server(lane)));
    Ok((record?, seen))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_a_line_that_reads_the_same() {
        let text = "v1 tries=30 denials=10 last_seen=1794750468123456 latest=1794750467000000,1794750468123456 \
                    writers=00000000000000ff:17,9f2c000000000001:3";
        let record = Record::parse(text.as_bytes()).expect("a record");
        assert_eq!((record.track.tries, record.track.denials, record.track.latest.len()), (30, 10, 2));
        assert_eq!(record.track.last_seen, Time::from_nanos(1_794_750_468_123_456_000));
        assert_eq!((record.applied(255), record.applied(1)), (17, 0));
        assert_eq!(record.write(), text);
        let empty = Record::default();
        assert_eq!(Record::parse(empty.write().as_bytes()), Some(empty));
        for bad in ["", "v1", "v2 tries=1", "v1 tries=x denials=0 last_seen=0 latest= writers=", "\u{1}\u{2}"]
        {
            assert_eq!(Record::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
