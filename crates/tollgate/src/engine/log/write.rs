//! Writes the chunks of a state log: images and changes.

use std::collections::HashSet;
use std::io::{self, Write};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::ban::{Ban, BanList, Offender, RuleDenials};
use crate::codec::chunk::{Chunks, Record};
use crate::engine::EngineCore;
use crate::engine::log::{Chunk, Frames, Sink};
use crate::fingerprint::Fingerprint;
use crate::identity::Key;
use crate::rule::RuleInForce;
use crate::store::memory::Expired;
use crate::sync::{Mutex, lock};
use crate::time::Time;
use crate::track::saved::SavedTrack;
use crate::track::{FirstChange, Track};

/// Entries that are copied under one lock.
const PART: usize = 1024;

/// The rules whose tracked keys have changed since the log was last written.
#[derive(Default)]
pub(crate) struct ChangedTracks(Mutex<HashSet<Box<str>>>);

impl ChangedTracks {
    pub(crate) fn note(&self, first: FirstChange, rule: &RuleInForce) {
        if first == FirstChange::Yes {
            lock(&self.0).insert(rule.id.as_str().into());
        }
    }
}

/// The progress of writing an image.
pub struct Image {
    stage: Stage,
    bytes: u64,
}

enum Stage {
    Counters {
        line: usize,
    },
    Bans {
        part: usize,
    },
    Offenders {
        row: usize,
    },
    /// Restored tracks whose rule had no hit since. They are written before those of rules, so that one which moves to
    /// its rule meanwhile is written twice instead of never.
    UnattachedTracks {
        by_rule: Vec<(Box<str>, Arc<Vec<SavedTrack>>)>,
        row: usize,
    },
    Tracks {
        rules: Vec<Box<str>>,
        row: usize,
    },
    Done,
}

impl Default for Image {
    fn default() -> Self {
        Image { stage: Stage::Counters { line: 0 }, bytes: 0 }
    }
}

impl Image {
    /// Bytes of the chunks written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done)
    }
}

impl EngineCore {
    /// Writes the whole saved state; `rules` is the text of the policy in force.
    pub fn save(&self, mut out: impl Write, rules: &str, now: Time) -> io::Result<()> {
        let (mut frames, header) = self.begin_log();
        out.write_all(&header)?;
        let mut sink = |chunk: Chunk| {
            out.write_all(&frames.frame(&chunk))?;
            frames.advance();
            Ok(())
        };
        self.write_rules(rules, now, &mut sink)?;
        self.write_image(&mut Image::default(), u64::MAX, now, &mut sink)?;
        out.flush()
    }

    /// Starts a file of the log; returns its frames, and the header that precedes them.
    pub fn begin_log(&self) -> (Frames, Vec<u8>) {
        Frames::begin(&self.secret)
    }

    /// Writes the text of the policy in force. Every file needs it, and again after each change.
    pub fn write_rules(&self, rules: &str, now: Time, sink: &mut Sink<'_>) -> io::Result<()> {
        let mut out = Chunks::new(now, sink);
        out.record(Record::Rules).text(rules);
        out.hand_out()
    }

    /// Writes the next part of an image, about the given number of bytes. Changes made meanwhile must be appended to
    /// the same file, and once more when the image is [done](Image::is_done): only then is the file complete.
    pub fn write_image(
        &self,
        image: &mut Image,
        most_bytes: u64,
        now: Time,
        sink: &mut Sink<'_>,
    ) -> io::Result<()> {
        let mut out = Chunks::new(now, sink);
        while !image.is_done() && out.bytes() < most_bytes {
            image.stage = self.write_stage(mem::replace(&mut image.stage, Stage::Done), &mut out);
            out.hand_out_full()?;
        }
        out.hand_out()?;
        image.bytes += out.bytes();
        if image.is_done() {
            self.store.wait_for_moves();
        }
        Ok(())
    }

    fn write_stage(&self, stage: Stage, out: &mut Chunks<'_, '_>) -> Stage {
        match stage {
            Stage::Counters { line } if line >= self.store.lines_in_use() => Stage::Bans { part: 0 },
            Stage::Counters { line } => {
                self.store.write_line(line, Expired::Omitted, out);
                Stage::Counters { line: line + 1 }
            }
            Stage::Bans { part } if part >= BanList::PARTS => Stage::Offenders { row: 0 },
            Stage::Bans { part } => {
                let bans = self.bans.part(part, out.now());
                bans.iter().for_each(|(fingerprint, key, ban)| write_ban(*fingerprint, key, ban, out));
                Stage::Bans { part: part + 1 }
            }
            Stage::Offenders { row } => {
                let rows = self.bans.offenders().rows(row, PART);
                if rows.is_empty() {
                    return Stage::UnattachedTracks { by_rule: self.saved_tracks.waiting(), row: 0 };
                }
                rows.iter()
                    .for_each(|(key, touched, offender)| write_offender(*key, *touched, offender, out));
                Stage::Offenders { row: row + PART }
            }
            Stage::UnattachedTracks { mut by_rule, row } => {
                let Some((rule, tracks)) = by_rule.last() else {
                    return Stage::Tracks { rules: self.tracking_rules(), row: 0 };
                };
                let rows = tracks.iter().skip(row).take(PART);
                rows.for_each(|SavedTrack { key, track }| write_track(rule, *key, track, out));
                if row + PART < tracks.len() {
                    return Stage::UnattachedTracks { by_rule, row: row + PART };
                }
                by_rule.pop();
                Stage::UnattachedTracks { by_rule, row: 0 }
            }
            Stage::Tracks { mut rules, row } => {
                let Some(rule) = rules.last() else { return Stage::Done };
                let policy = self.policy();
                let found = policy.rule(rule);
                let rows = found.and_then(|rule| rule.stats().tracks.rows(row, PART, out.now()));
                let Some(rows) = rows else {
                    rules.pop();
                    return Stage::Tracks { rules, row: 0 };
                };
                rows.iter().for_each(|SavedTrack { key, track }| write_track(rule, *key, track, out));
                Stage::Tracks { rules, row: row + PART }
            }
            Stage::Done => Stage::Done,
        }
    }

    fn tracking_rules(&self) -> Vec<Box<str>> {
        let policy = self.policy();
        let tracking = policy.rules().iter().filter(|rule| rule.track.is_some());
        tracking
            .filter(|rule| rule.stats().tracks.is_initialized())
            .map(|rule| rule.id.as_str().into())
            .collect()
    }

    /// Writes what has changed since the last call. After an error the caller must still write the chunks that the
    /// sink was given; everything else is written next time.
    pub fn write_changes(&self, now: Time, sink: &mut Sink<'_>) -> io::Result<()> {
        let mut out = Chunks::new(now, sink);
        self.write_changed_bans(&mut out)?;
        self.write_changed_offenders(&mut out)?;
        self.write_changed_tracks(&mut out)?;
        self.store.write_changes(&mut out)?;
        out.hand_out()
    }

    fn write_changed_bans(&self, out: &mut Chunks<'_, '_>) -> io::Result<()> {
        let (fingerprints, lost) = self.bans.take_changed();
        self.changes_lost(lost);
        let write =
            |fingerprint, out: &mut Chunks<'_, '_>| match self.bans.by_fingerprint(fingerprint, out.now()) {
                Some((fingerprint, key, ban)) => write_ban(fingerprint, &key, &ban, out),
                None => out.record(Record::NoBan).word(fingerprint.0),
            };
        write_each(fingerprints, out, write, |rest| self.bans.note_all_changed(rest))
    }

    fn write_changed_offenders(&self, out: &mut Chunks<'_, '_>) -> io::Result<()> {
        let offenders = self.bans.offenders();
        let (keys, lost) = offenders.take_changed();
        self.changes_lost(lost);
        let write = |key, out: &mut Chunks<'_, '_>| match offenders.get(key) {
            Some((touched, offender)) => write_offender(key, touched, &offender, out),
            None => out.record(Record::NoOffender).word(key.0),
        };
        write_each(keys, out, write, |rest| offenders.note_changed(rest))
    }

    fn write_changed_tracks(&self, out: &mut Chunks<'_, '_>) -> io::Result<()> {
        let mut rules = mem::take(&mut *lock(&self.changed_tracks.0)).into_iter();
        let policy = self.policy();
        while let Some(id) = rules.next() {
            let Some(rule) = policy.rule(&id) else { continue };
            let tracks = &rule.stats().tracks;
            let (keys, lost) = tracks.take_changed();
            self.changes_lost(lost);
            let write = |key: Fingerprint, out: &mut Chunks<'_, '_>| match tracks.live(key, out.now()) {
                Some(track) => write_track(&id, key, &track, out),
                None => {
                    out.tracked_rule(&id);
                    out.record(Record::NoTrack).word(key.0);
                }
            };
            if let Err(error) = write_each(keys, out, write, |rest| tracks.note_changed(rest)) {
                lock(&self.changed_tracks.0).extend(rules.chain([id]));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Whether only an image is complete: more keys have changed than can be recorded.
    pub fn needs_image(&self) -> bool {
        let lost = self.store.take_overflow();
        self.changes_lost(lost);
        self.lost_changes.swap(false, Ordering::Relaxed)
    }

    fn changes_lost(&self, lost: bool) {
        if lost {
            self.lost_changes.store(true, Ordering::Relaxed);
        }
    }

    /// The approximate bytes of the counters in an image.
    pub fn estimated_counter_bytes(&self, now: Time) -> u64 {
        self.store.estimated_bytes(now)
    }

    /// Clears the record of changes: an image that is started afterwards, or a log that was just read, has them all.
    pub fn forget_changes(&self) {
        self.store.forget_changes();
        self.bans.take_changed();
        self.bans.offenders().take_changed();
        let policy = self.policy();
        for id in mem::take(&mut *lock(&self.changed_tracks.0)) {
            policy.rule(&id).inspect(|rule| _ = rule.stats().tracks.take_changed());
        }
        self.lost_changes.store(false, Ordering::Relaxed);
    }
}

/// Writes keys one by one; those that a failed sink was not given are recorded again.
fn write_each(
    keys: HashSet<Fingerprint>,
    out: &mut Chunks<'_, '_>,
    write: impl Fn(Fingerprint, &mut Chunks<'_, '_>),
    put_back: impl FnOnce(&mut dyn Iterator<Item = Fingerprint>),
) -> io::Result<()> {
    let mut keys = keys.into_iter();
    while let Some(key) = keys.next() {
        write(key, out);
        if let Err(error) = out.hand_out_full() {
            put_back(&mut keys);
            return Err(error);
        }
    }
    Ok(())
}

fn write_track(rule: &str, key: Fingerprint, track: &Track, out: &mut Chunks<'_, '_>) {
    out.tracked_rule(rule);
    SavedTrack::write(key, track, out.record(Record::Track));
}

fn write_ban(fingerprint: Fingerprint, key: &Key, ban: &Ban, out: &mut Chunks<'_, '_>) {
    let out = out.record(Record::Ban);
    out.word(fingerprint.0);
    out.text(&key.to_string());
    out.text(&ban.reason);
    out.text(ban.source.name());
    out.words([ban.until.nanos(), u64::from(ban.strikes)]);
}

fn write_offender(key: Fingerprint, touched: Time, offender: &Offender, out: &mut Chunks<'_, '_>) {
    let Offender { strikes, denials } = offender;
    let out = out.record(Record::Offender);
    out.words([
        key.0,
        touched.nanos(),
        u64::from(strikes.count),
        strikes.until.nanos(),
        denials.len() as u64,
    ]);
    for RuleDenials { rule, times } in denials {
        out.words([*rule, times.len() as u64]);
        times.iter().for_each(|(at, count)| out.words([at.nanos(), u64::from(*count)]));
    }
}
