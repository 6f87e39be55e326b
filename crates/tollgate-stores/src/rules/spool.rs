//! Very many rules on their way into the database, sorted by id, in an unlinked temporary file.
//!
//! An external merge sort: rules are collected up to [`RUN_BYTES`], sorted and appended as a run; reading merges the
//! runs. Inserting rules in the order of their ids fills the database's pages sequentially.

use std::fs::{File, OpenOptions, remove_file};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::internal::document::TextPosition;

use crate::rules::{ParsedRule, RuleText};

/// Bytes sorted in memory.
const RUN_BYTES: usize = 16 << 20;
/// Bytes read from a run at once.
const READ_BYTES: usize = 64 << 10;
/// Index, line, column and the lengths of id and text, four bytes each.
const HEADER_BYTES: usize = 20;

/// A rule with its index and position in the source text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpooledRule {
    pub number: u32,
    pub position: TextPosition,
    pub text: RuleText,
}

pub struct RuleSpool {
    file: Arc<File>,
    /// The end offset of each run.
    runs: Vec<u64>,
    pending: Vec<SpooledRule>,
    pending_bytes: usize,
    count: u32,
}

impl RuleSpool {
    /// Creates an unlinked file in this folder: it is freed when the last handle is closed.
    pub fn new(folder: &Path) -> io::Result<RuleSpool> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".tollgate-import-{}-{next}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        remove_file(&path)?;
        Ok(RuleSpool { file: file.into(), runs: Vec::new(), pending: Vec::new(), pending_bytes: 0, count: 0 })
    }

    pub fn push(&mut self, read: ParsedRule) -> io::Result<()> {
        let ParsedRule { position, text, .. } = read;
        self.pending_bytes += size_of::<SpooledRule>() + text.id().len() + text.as_str().len();
        self.pending.push(SpooledRule { number: self.count, position, text });
        self.count += 1;
        if self.pending_bytes >= RUN_BYTES { self.write_run() } else { Ok(()) }
    }

    fn write_run(&mut self) -> io::Result<()> {
        self.pending.sort_by(|a, b| a.text.id().cmp(b.text.id()));
        let mut bytes = Vec::with_capacity(self.pending_bytes);
        for SpooledRule { number, position, text } in self.pending.drain(..) {
            let lengths = [text.id().len(), text.as_str().len()].map(|length| length as u32);
            for word in [number, position.line, position.column, lengths[0], lengths[1]] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
            bytes.extend_from_slice(text.id().as_bytes());
            bytes.extend_from_slice(text.as_str().as_bytes());
        }
        (&*self.file).write_all(&bytes)?;
        self.runs.push(self.runs.last().copied().unwrap_or(0) + bytes.len() as u64);
        self.pending_bytes = 0;
        Ok(())
    }

    /// Writes the last run.
    pub fn finish(mut self) -> io::Result<RuleSpool> {
        if !self.pending.is_empty() {
            self.write_run()?;
        }
        self.pending = Vec::new();
        Ok(self)
    }

    pub fn len(&self) -> usize {
        self.count as usize
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All rules of a finished spool, ordered by id.
    pub fn rules(&self) -> io::Result<SortedRules> {
        let starts = std::iter::once(0).chain(self.runs.iter().copied());
        let mut runs = Vec::with_capacity(self.runs.len());
        for (start, end) in starts.zip(self.runs.iter().copied()) {
            let mut run = SortedRun {
                file: Arc::clone(&self.file),
                at: start,
                end,
                bytes: Vec::new(),
                consumed: 0,
                next: None,
            };
            run.next = run.read()?;
            runs.push(run);
        }
        Ok(SortedRules { runs })
    }
}

/// Merges the runs of a spool.
pub struct SortedRules {
    runs: Vec<SortedRun>,
}

impl Iterator for SortedRules {
    type Item = io::Result<SpooledRule>;

    fn next(&mut self) -> Option<io::Result<SpooledRule>> {
        let ready = self.runs.iter_mut().filter(|run| run.next.is_some());
        let first = ready.min_by(|a, b| a.id().cmp(b.id()))?;
        match first.read() {
            Ok(after) => std::mem::replace(&mut first.next, after).map(Ok),
            Err(error) => {
                self.runs.clear();
                Some(Err(error))
            }
        }
    }
}

struct SortedRun {
    file: Arc<File>,
    at: u64,
    end: u64,
    /// Bytes read ahead, and how many of them are consumed.
    bytes: Vec<u8>,
    consumed: usize,
    next: Option<SpooledRule>,
}

impl SortedRun {
    fn id(&self) -> &str {
        self.next.as_ref().map_or("", |next| next.text.id())
    }

    fn read(&mut self) -> io::Result<Option<SpooledRule>> {
        if self.consumed == self.bytes.len() && self.at == self.end {
            return Ok(None);
        }
        let head = self.take_bytes(HEADER_BYTES)?;
        let (words, _) = head.as_chunks::<4>();
        let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let [number, line, column, id, text] = words[..] else { return Err(damaged()) };
        let id = String::from_utf8(self.take_bytes(id as usize)?.to_vec()).map_err(|_| damaged())?;
        let text = String::from_utf8(self.take_bytes(text as usize)?.to_vec()).map_err(|_| damaged())?;
        Ok(Some(SpooledRule {
            number,
            position: TextPosition { line, column },
            text: RuleText::from_stored(id.into(), text),
        }))
    }

    /// The next bytes of the run.
    fn take_bytes(&mut self, length: usize) -> io::Result<&[u8]> {
        if self.bytes.len() - self.consumed < length {
            self.bytes.drain(..self.consumed);
            self.consumed = 0;
            let unread = self.bytes.len();
            let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
            let more = left.min(READ_BYTES.max(length - unread));
            self.bytes.resize(unread + more, 0);
            self.file.read_exact_at(&mut self.bytes[unread..], self.at)?;
            self.at += more as u64;
        }
        self.consumed += length;
        self.bytes.get(self.consumed - length..self.consumed).ok_or_else(damaged)
    }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the spool is damaged")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::for_each_rule;

    #[test]
    fn rules_come_back_by_id_whatever_their_number() {
        for count in [0, 1, 100_000] {
            let start = || RuleSpool::new(&std::env::temp_dir()).expect("a file");
            let mut spool = start();
            let id = |n: usize| format!("r{:06}", (n * 7_919) % 100_003);
            let list = |numbers: std::ops::Range<usize>| -> String {
                let long = "x".repeat(40);
                numbers
                    .map(|n| format!("- {{\"id\":\"{}\",\"limit\":\"5/m\",\"match\":\"/{long}\"}}\n", id(n)))
                    .collect()
            };
            if count > 0 {
                let read = for_each_rule(&list(0..count), start, |spool, rule| {
                    spool.push(rule).expect("room on the disk");
                });
                spool = read.expect("valid rules");
            }
            let spool = spool.finish().expect("room on the disk");
            assert_eq!((spool.len(), spool.is_empty()), (count, count == 0));
            let mut expected: Vec<_> = (0..count).map(|n| (id(n), n as u32, n as u32 + 1)).collect();
            expected.sort();
            let found = spool.rules().expect("it can be read").map(|rule| {
                let rule = rule.expect("it can be read");
                (rule.text.id().to_owned(), rule.number, rule.position.line)
            });
            assert!(found.eq(expected), "{count} rules");
        }
    }
}
