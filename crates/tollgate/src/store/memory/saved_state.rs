//! The memory store's part of a saved state: all entries that have not expired, or those that have changed.
//!
//! States are in Unix time, so downtime counts as elapsed. A line is read under the lock of its shard, which keeps
//! classes and slab items of its entries in place. The lock is released after each line of four entries, and before they
//! are encoded.

use std::collections::HashSet;
use std::io;

use smallvec::SmallVec;

use crate::codec::Decoder;
#[cfg(shuttle)]
use crate::codec::chunk::Chunk;
use crate::codec::chunk::{Chunks, Record};
use crate::fingerprint::Fingerprint;
use crate::store::memory::changes::ChangedLines;
use crate::store::memory::packed::Class;
use crate::store::memory::saved::{class_words, read_class, read_state, write_state};
use crate::store::memory::shard::{SavedEntry, ShardInner};
use crate::store::memory::slab::WideEntry;
use crate::store::memory::slot::{SLOTS_PER_LINE, SlotEntry};
use crate::store::memory::table::{class_number, fingerprint_of};
use crate::store::memory::{MemoryStore, SHARDS, first_fingerprint, shard_of};
use crate::sync::{count_steps, end_section, lock};
use crate::time::Time;

/// What is written for an entry that has expired.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expired {
    /// Nothing: there is no earlier record.
    Omitted,
    /// A removal.
    Noted,
}

/// An entry as it was while its shard was locked.
enum EntryCopy {
    Wide(WideEntry),
    Packed { fingerprint: u64, class: [u64; 4], word: u64 },
    Expired { fingerprint: u64 },
}

impl EntryCopy {
    fn write(&self, expired: Expired, out: &mut Chunks<'_, '_>) {
        match self {
            EntryCopy::Wide(wide) => {
                let out = out.record(Record::Wide);
                out.words([wide.key(), wide.expires_at().nanos()]);
                write_state(out, &wide.state);
            }
            EntryCopy::Packed { fingerprint, class, word } => {
                let number = out.class(*class);
                let out = out.record(Record::Packed);
                out.word(*fingerprint);
                out.short(number);
                out.word(*word);
            }
            EntryCopy::Expired { fingerprint } if expired == Expired::Noted => {
                out.record(Record::NoCounter).word(*fingerprint);
            }
            EntryCopy::Expired { .. } => {}
        }
    }
}

/// Lines whose entries are encoded to estimate the total size.
const SAMPLE_LINES: usize = 1024;
/// Copying so many bytes of a state counts as a step.
const COPIED_BYTES_PER_STEP: usize = 1024;

impl MemoryStore {
    /// Number of lines that may contain entries.
    pub(crate) fn lines_in_use(&self) -> usize {
        self.tables.iter().map(|table| table.size().lines()).max().unwrap_or(0) * SHARDS
    }

    /// Writes the entries of a line.
    pub(crate) fn write_line(&self, line: usize, expired: Expired, out: &mut Chunks<'_, '_>) {
        let n = line % SHARDS;
        let mut copies = SmallVec::<[EntryCopy; SLOTS_PER_LINE]>::new();
        let inner = self.lock(n);
        for slot in &self.region.line(line).0 {
            copies.extend(self.copy_entry(n, slot.load().entry(), &inner, out.now()));
        }
        drop(inner);
        end_section();
        copies.iter().for_each(|copy| copy.write(expired, out));
    }

    /// Copies an entry while its shard is locked, to encode it afterwards; `None` if the slot is empty.
    fn copy_entry(
        &self,
        n: usize,
        (tag, word): SlotEntry,
        inner: &ShardInner,
        now: Time,
    ) -> Option<EntryCopy> {
        if tag == 0 {
            return None;
        }
        let fingerprint = fingerprint_of(tag).0 | first_fingerprint(n).0;
        let wide = inner.wide((tag, word));
        let class = self.classes.get(class_number(tag));
        Some(match (wide, class) {
            (Some(wide), _) if wide.expires_at() > now => {
                count_steps(1 + wide.state.heap_bytes() / COPIED_BYTES_PER_STEP);
                EntryCopy::Wide(wide.clone())
            }
            (None, Some(class)) if class.encoding.expires_at(word) > now => {
                EntryCopy::Packed { fingerprint, class: class_words(&class), word }
            }
            _ => EntryCopy::Expired { fingerprint },
        })
    }

    /// Writes what has changed since the last call. If the sink fails, the changes that it was not given stay recorded
    /// for the next call; the chunk it failed with is for the sink to keep.
    pub(crate) fn write_changes(&self, out: &mut Chunks<'_, '_>) -> io::Result<()> {
        let Some(changed) = &self.region.changed else { return Ok(()) };
        let removed = lock(changed.removed()).take();
        self.write_removed(removed, out)?;
        for word in 0..self.lines_in_use().div_ceil(ChangedLines::LINES_PER_WORD) {
            changed.take_and_read(word, |mut lines| {
                while lines != 0 {
                    let line = word * ChangedLines::LINES_PER_WORD + lines.trailing_zeros() as usize;
                    self.write_line(line, Expired::Noted, out);
                    lines &= lines - 1;
                }
            });
            out.hand_out_full()?;
        }
        Ok(())
    }

    /// Writes explicitly removed keys in their present state: removed, or counted again since.
    fn write_removed(&self, removed: HashSet<Fingerprint>, out: &mut Chunks<'_, '_>) -> io::Result<()> {
        let mut removed = removed.into_iter();
        while let Some(fingerprint) = removed.next() {
            let n = shard_of(fingerprint);
            let inner = self.lock(n);
            let entry = self.find(fingerprint).map(|slot| slot.load().entry());
            let copy = entry.map(|entry| self.copy_entry(n, entry, &inner, out.now()));
            drop(inner);
            end_section();
            match copy {
                Some(copy) => copy.iter().for_each(|copy| copy.write(Expired::Noted, out)),
                None => out.record(Record::NoCounter).word(fingerprint.0),
            }
            if let Err(error) = out.hand_out_full() {
                removed.for_each(|fingerprint| self.region.note_removed(fingerprint));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Clears the record of changes.
    pub(crate) fn forget_changes(&self) {
        let Some(changed) = &self.region.changed else { return };
        for word in 0..self.lines_in_use().div_ceil(ChangedLines::LINES_PER_WORD) {
            changed.take(word);
        }
        let mut removed = lock(changed.removed());
        removed.take();
        removed.take_overflow();
    }

    /// Whether changes were lost: then only an image is complete.
    pub(crate) fn take_overflow(&self) -> bool {
        self.region.changed.as_ref().is_some_and(|changed| lock(changed.removed()).take_overflow())
    }

    /// Returns after every thread that is moving an entry has marked its new line.
    pub(crate) fn wait_for_moves(&self) {
        (0..SHARDS).for_each(|n| drop(self.lock(n)));
    }

    /// The approximate bytes that [`write_line`](Self::write_line) writes for all lines: exact for small tables.
    pub(crate) fn estimated_bytes(&self, now: Time) -> u64 {
        let lines = self.lines_in_use();
        let step = lines.div_ceil(SAMPLE_LINES).max(1);
        let mut bytes = 0;
        let mut sampled = 0;
        let mut count = |chunk: crate::codec::chunk::Chunk| {
            bytes += chunk.bytes().len();
            Ok(())
        };
        let mut out = Chunks::new(now, &mut count);
        for line in (0..lines).step_by(step) {
            self.write_line(line, Expired::Omitted, &mut out);
            sampled += 1;
            out.hand_out_full().expect("counting does not fail");
        }
        out.hand_out().expect("counting does not fail");
        bytes as u64 * lines as u64 / (sampled as u64).max(1)
    }
}

/// A state log in memory, for the model checker.
#[cfg(shuttle)]
impl MemoryStore {
    /// Appends the entries that have changed since the last call.
    pub fn append_changes(&self, log: &mut Vec<Vec<u8>>, now: Time) {
        let mut append = |chunk: Chunk| {
            log.push(chunk.bytes().to_vec());
            Ok(())
        };
        let mut out = Chunks::new(now, &mut append);
        self.write_changes(&mut out).and_then(|()| out.hand_out()).expect("memory does not fail");
    }

    /// Restores the entries of a log, the last record of each.
    pub fn replay(&self, log: &[Vec<u8>], now: Time) {
        for chunk in log {
            let mut from = Decoder::new(chunk);
            from.word().expect("a chunk begins with its time");
            let mut entries = EntryReader::new(self, now);
            while !from.is_empty() {
                let read = match Record::read(&mut from) {
                    Some(Record::Class) => entries.read_class(&mut from),
                    Some(Record::Packed) => entries.read_packed(&mut from).map(drop),
                    Some(Record::Wide) => entries.read_wide(&mut from).map(drop),
                    Some(Record::NoCounter) => entries.read_removed(&mut from).map(drop),
                    _ => None,
                };
                read.expect("a record of a counter");
            }
        }
    }
}

/// Restores entries from a chunk, or from a whole saved state.
pub(crate) struct EntryReader<'s> {
    store: &'s MemoryStore,
    now: Time,
    /// In the order of their records.
    classes: Vec<Class>,
}

impl<'s> EntryReader<'s> {
    pub(crate) fn new(store: &'s MemoryStore, now: Time) -> Self {
        EntryReader { store, now, classes: Vec::new() }
    }

    pub(crate) fn read_class(&mut self, from: &mut Decoder<'_>) -> Option<()> {
        self.classes.push(read_class([from.word()?, from.word()?, from.word()?, from.word()?])?);
        Some(())
    }

    /// Reads an entry and replaces the key's present one; returns the change of the number of entries.
    pub(crate) fn read_packed(&self, from: &mut Decoder<'_>) -> Option<i64> {
        let fingerprint = from.word()?;
        let class = from.short()?;
        let word = from.word()?;
        self.take_packed(fingerprint, u64::from(class), word)
    }

    pub(crate) fn read_wide(&self, from: &mut Decoder<'_>) -> Option<i64> {
        let key = from.word()?;
        let fresh_at = Time::from_nanos(from.word()?);
        let state = read_state(from)?;
        Some(
            self.put(Fingerprint(key), |_| {
                Some(SavedEntry::Wide(WideEntry::from_saved(key, state, fresh_at)))
            }),
        )
    }

    pub(crate) fn read_removed(&self, from: &mut Decoder<'_>) -> Option<i64> {
        Some(self.put(Fingerprint(from.word()?), |_| None))
    }

    fn take_packed(&self, fingerprint: u64, class: u64, word: u64) -> Option<i64> {
        let class = self.classes.get(usize::try_from(class).ok()?)?;
        let word = class.encoding.accepts(word).then(|| class.clamped(word, self.now))?;
        Some(self.put(Fingerprint(fingerprint), |inner| {
            // The lock is held until the entry names the number.
            let number = self.store.classes.intern(*class, &mut inner.recent_numbers)?;
            Some(SavedEntry::Packed(number, word))
        }))
    }

    fn put(
        &self,
        fingerprint: Fingerprint,
        saved: impl FnOnce(&mut ShardInner) -> Option<SavedEntry>,
    ) -> i64 {
        let n = shard_of(fingerprint);
        let mut inner = self.store.lock(n);
        let shard = self.store.shard_context(n, self.now);
        let was_stored = inner.remove(&shard, fingerprint);
        let is_stored = saved(&mut inner).is_some_and(|saved| inner.restore(&shard, fingerprint, saved));
        i64::from(is_stored) - i64::from(was_stored)
    }

    /// Reads the counters of a saved state in a format older than state logs; returns their number.
    pub(crate) fn read_whole(&mut self, from: &mut Decoder<'_>) -> Option<i64> {
        const END: u64 = u64::MAX;
        const PACKED: u64 = 0;
        const WIDE: u64 = 1;
        loop {
            let first = from.word()?;
            if first == END {
                break;
            }
            self.classes.push(read_class([first, from.word()?, from.word()?, from.word()?])?);
        }
        let mut entries = 0;
        loop {
            entries += match from.word()? {
                END => return Some(entries),
                PACKED => self.take_packed(from.word()?, from.word()?, from.word()?)?,
                WIDE => self.read_wide(from)?,
                _ => return None,
            };
        }
    }
}
