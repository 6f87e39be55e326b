//! Replays the chunks of a state log.

use std::collections::HashMap;

use crate::ban::{Ban, BanSource, Offender, RuleDenials, Strikes};
use crate::codec::Decoder;
use crate::codec::chunk::Record;
use crate::engine::EngineCore;
use crate::fingerprint::Fingerprint;
use crate::identity::Key;
use crate::store::memory::EntryReader;
use crate::time::Time;
use crate::track::saved::SavedTrack;

/// The state read so far. Counters go directly to the store; of everything else the last record of each key wins.
pub(crate) struct Replay<'e> {
    engine: &'e EngineCore,
    now: Time,
    counters: i64,
    bans: HashMap<u64, (Key, Ban)>,
    offenders: HashMap<u64, (Time, Offender)>,
    tracks: HashMap<Box<str>, HashMap<u64, SavedTrack>>,
}

/// Number of entries restored, by kind.
pub(crate) struct Replayed {
    pub(crate) counters: u64,
    pub(crate) bans: u64,
    pub(crate) tracked_keys: u64,
}

impl<'e> Replay<'e> {
    pub(crate) fn new(engine: &'e EngineCore, now: Time) -> Self {
        Replay {
            engine,
            now,
            counters: 0,
            bans: HashMap::new(),
            offenders: HashMap::new(),
            tracks: HashMap::new(),
        }
    }

    /// The time of a chunk, and the text of the rules if it is their chunk.
    pub(crate) fn peek(chunk: &[u8]) -> Option<(Time, Option<&str>)> {
        let mut from = Decoder::new(chunk);
        let at = Time::from_nanos(from.word()?);
        let rules = match Record::read(&mut from)? {
            Record::Rules => Some(from.text()?),
            _ => None,
        };
        Some((at, rules))
    }

    /// Reads a chunk; `None` if its contents are not valid. Records before the invalid one are applied.
    pub(crate) fn read(&mut self, chunk: &[u8]) -> Option<()> {
        let mut from = Decoder::new(chunk);
        from.word()?;
        let mut entries = EntryReader::new(self.engine.store(), self.now);
        let mut rule = None;
        while !from.is_empty() {
            match Record::read(&mut from)? {
                Record::Rules => _ = from.text()?,
                Record::Class => entries.read_class(&mut from)?,
                Record::Packed => self.counters += entries.read_packed(&mut from)?,
                Record::Wide => self.counters += entries.read_wide(&mut from)?,
                Record::NoCounter => self.counters += entries.read_removed(&mut from)?,
                Record::Ban => self.read_ban(&mut from)?,
                Record::NoBan => _ = self.bans.remove(&from.word()?),
                Record::Offender => self.read_offender(&mut from)?,
                Record::NoOffender => _ = self.offenders.remove(&from.word()?),
                Record::TrackedRule => rule = Some(from.text()?),
                Record::Track => {
                    let saved = SavedTrack::read(&mut from)?;
                    self.tracks.entry(rule?.into()).or_default().insert(saved.key.0, saved);
                }
                Record::NoTrack => {
                    let key = from.word()?;
                    self.tracks.get_mut(rule?).and_then(|tracks| tracks.remove(&key));
                }
            }
        }
        Some(())
    }

    fn read_ban(&mut self, from: &mut Decoder<'_>) -> Option<()> {
        let fingerprint = from.word()?;
        let key = Key::parse(from.text()?).ok()?;
        let reason = from.text()?.to_owned();
        let source = BanSource::parse(from.text()?)?;
        let until = Time::from_nanos(from.word()?);
        let strikes = u32::try_from(from.word()?).ok()?;
        self.bans.insert(fingerprint, (key, Ban { until, reason, source, strikes }));
        Some(())
    }

    fn read_offender(&mut self, from: &mut Decoder<'_>) -> Option<()> {
        let key = from.word()?;
        let touched = Time::from_nanos(from.word()?);
        let count = u32::try_from(from.word()?).ok()?;
        let until = Time::from_nanos(from.word()?);
        let mut offender = Offender { strikes: Strikes { count, until }, ..Offender::default() };
        for _ in 0..from.word()? {
            let rule = from.word()?;
            let times = from.word()?;
            let time = |_| Some((Time::from_nanos(from.word()?), u32::try_from(from.word()?).ok()?));
            let times = (0..times).map(time).collect::<Option<_>>()?;
            offender.denials.push(RuleDenials { rule, times });
        }
        self.offenders.insert(key, (touched, offender));
        Some(())
    }

    /// Applies everything to the engine.
    pub(crate) fn finish(self) -> Replayed {
        let engine = self.engine;
        let now = self.now;
        let mut bans = 0;
        for (key, ban) in self.bans.into_values().filter(|(_, ban)| ban.until > now) {
            engine.bans.insert(key, ban, now);
            bans += 1;
        }
        // In the order in which they were touched: a full table keeps the latest.
        let mut offenders: Vec<_> = self.offenders.into_iter().collect();
        offenders.sort_unstable_by_key(|(_, (touched, _))| *touched);
        for (key, (touched, offender)) in offenders {
            engine.bans.offenders().restore(Fingerprint(key), touched, offender);
        }
        let mut tracked_keys = 0;
        for (rule, tracks) in self.tracks {
            let tracks: Vec<_> = tracks.into_values().filter(|saved| saved.matters(now)).collect();
            tracked_keys += tracks.len() as u64;
            engine.saved_tracks.put(&rule, tracks);
        }
        Replayed { counters: u64::try_from(self.counters).unwrap_or(0), bans, tracked_keys }
    }
}
