//! Chunks of a state log: records that are written and read together.
//!
//! A chunk begins with its timestamp and is self-contained. A record replaces every earlier record of its key, so a
//! log is read from the beginning, and the last record of a key is its state.

use std::collections::HashMap;
use std::io;

use crate::codec::{Decoder, Encoder};
use crate::time::Time;

/// A chunk of this size is passed to the sink.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;

/// Some records of a state log, to be written as one frame.
pub struct Chunk(Vec<u8>);

impl Chunk {
    #[cfg(feature = "testing")]
    pub(crate) fn of(bytes: Vec<u8>) -> Chunk {
        Chunk(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Consumes chunks. A sink that fails keeps the chunk and writes it later: it is not made again.
pub type Sink<'s> = dyn FnMut(Chunk) -> io::Result<()> + 's;

/// The kinds of records, by the byte that they begin with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Record {
    Rules,
    /// A class of the packed states that follow in this chunk; numbered in order of appearance.
    Class,
    Packed,
    Wide,
    NoCounter,
    Ban,
    NoBan,
    Offender,
    NoOffender,
    /// The rule of the tracks that follow in this chunk.
    TrackedRule,
    Track,
    NoTrack,
}

impl Record {
    const ALL: [Record; 12] = [
        Record::Rules,
        Record::Class,
        Record::Packed,
        Record::Wide,
        Record::NoCounter,
        Record::Ban,
        Record::NoBan,
        Record::Offender,
        Record::NoOffender,
        Record::TrackedRule,
        Record::Track,
        Record::NoTrack,
    ];

    pub(crate) fn read(from: &mut Decoder<'_>) -> Option<Record> {
        Record::ALL.get(usize::from(from.byte()?)).copied()
    }
}

/// Collects records in chunks, and passes each to the sink when it is full.
pub(crate) struct Chunks<'c, 's> {
    open: Encoder,
    now: Time,
    sink: &'c mut Sink<'s>,
    classes: HashMap<[u64; 4], u16>,
    rule: Option<Box<str>>,
    bytes: u64,
}

impl<'c, 's> Chunks<'c, 's> {
    pub(crate) fn new(now: Time, sink: &'c mut Sink<'s>) -> Self {
        Chunks { open: Encoder::default(), now, sink, classes: HashMap::new(), rule: None, bytes: 0 }
    }

    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// Starts a record.
    pub(crate) fn record(&mut self, kind: Record) -> &mut Encoder {
        if self.open.len() == 0 {
            self.open.word(self.now.nanos());
        }
        self.open.byte(kind as u8);
        &mut self.open
    }

    /// The number in this chunk of the class that is defined by these words.
    pub(crate) fn class(&mut self, words: [u64; 4]) -> u16 {
        if let Some(number) = self.classes.get(&words) {
            return *number;
        }
        let number = self.classes.len() as u16;
        self.record(Record::Class).words(words);
        self.classes.insert(words, number);
        number
    }

    /// Sets the rule of the tracks that follow.
    pub(crate) fn tracked_rule(&mut self, rule: &str) {
        if self.rule.as_deref() != Some(rule) {
            self.record(Record::TrackedRule).text(rule);
            self.rule = Some(rule.into());
        }
    }

    /// Passes the chunk to the sink if it is full. Called between records.
    pub(crate) fn hand_out_full(&mut self) -> io::Result<()> {
        if self.open.len() < CHUNK_BYTES { Ok(()) } else { self.hand_out() }
    }

    /// Passes the chunk to the sink, unless it is empty.
    pub(crate) fn hand_out(&mut self) -> io::Result<()> {
        if self.open.len() == 0 {
            return Ok(());
        }
        self.classes.clear();
        self.rule = None;
        let chunk = std::mem::take(&mut self.open).into_bytes();
        self.bytes += chunk.len() as u64;
        (self.sink)(Chunk(chunk))
    }

    /// Bytes of all chunks so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes + self.open.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_read_as_it_was_written() {
        for kind in Record::ALL {
            assert_eq!(Record::read(&mut Decoder::new(&[kind as u8])), Some(kind));
        }
        assert_eq!(Record::read(&mut Decoder::new(&[Record::ALL.len() as u8])), None);
    }
}
