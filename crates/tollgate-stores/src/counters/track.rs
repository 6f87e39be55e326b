//! The record of a tracked key: the activity seen by all nodes, as one line of readable text.
//!
//! `v1 tries=30 denials=10 last_seen=1794750468123456 latest=…,… writers=9f2c…:17,…`, times in microseconds since
//! 1970. `writers` has the sequence number of the last delta of each recent writer process, the latest writer last. A
//! delta that the record already includes is not added again. This holds as long as fewer than [`MAX_WRITERS`] other
//! processes write the same key between a write and its retry.

use std::fmt::Write as _;
use std::time::Duration;

use tollgate::Time;
use tollgate::internal::track::Track;
use tollgate::internal::track::central::SharedTrack;

use super::StoreError;

#[cfg(any(feature = "memcached", feature = "cassandra"))]
pub(super) mod cas_update;

/// Writers whose last sequence number a record keeps.
pub(crate) const MAX_WRITERS: usize = 32;
/// Records are read and written in the background, or for an operator.
pub(crate) const TRACK_TIMEOUT: Duration = Duration::from_secs(2);
const NANOS_PER_MICRO: u64 = 1_000;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct TrackRecord {
    track: Track,
    /// The latest writer last.
    writers: Vec<(u64, u64)>,
}

impl TrackRecord {
    /// `None` if the text is not a record.
    pub(crate) fn parse(text: &[u8]) -> Option<TrackRecord> {
        let mut fields = std::str::from_utf8(text).ok()?.strip_prefix("v1 ")?.split(' ');
        let mut field = |name: &str| fields.next()?.strip_prefix(name)?.strip_prefix('=');
        let track = Track {
            tries: field("tries")?.parse().ok()?,
            denials: field("denials")?.parse().ok()?,
            last_seen: parse_time(field("last_seen")?)?,
            latest: split_list(field("latest")?).map(parse_time).collect::<Option<_>>()?,
        };
        let writer = |text: &str| {
            let (writer, sequence) = text.split_once(':')?;
            Some((u64::from_str_radix(writer, 16).ok()?, sequence.parse().ok()?))
        };
        let writers = split_list(field("writers")?).map(writer).collect::<Option<_>>()?;
        Some(TrackRecord { track, writers })
    }

    /// Parses the record; a value that is not one is an error.
    pub(crate) fn read(text: &[u8], server: &str) -> Result<TrackRecord, StoreError> {
        TrackRecord::parse(text).ok_or_else(|| StoreError::Refused {
            server: server.to_owned(),
            reason: "the value under the name of a tracking record has an unexpected format".to_owned(),
        })
    }

    pub(crate) fn into_shared(self, writer: u64) -> SharedTrack {
        SharedTrack { applied: self.last_sequence(writer), track: self.track }
    }

    fn last_sequence(&self, writer: u64) -> u64 {
        self.writers.iter().find(|(known, _)| *known == writer).map_or(0, |(_, sequence)| *sequence)
    }
}

pub(crate) fn micros(time: Time) -> u64 {
    time.nanos() / NANOS_PER_MICRO
}

/// Timestamps as a record writes them.
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

fn split_list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(|item| !item.is_empty())
}
