//! The stream of decisions for operators: the latest ones, and a sample of all.
//!
//! A ring per stripe of threads, bounded, without a lock or an allocation per decision. The slot of a decision follows
//! from its number within the stripe, which its id has, too.
//!
//! A slot is a sequence lock. Its version is `2 * number + 1` while the decision `number` is written and one more
//! afterwards; a writer takes the slot by a CAS of the version, and drops its event if another writer has the slot or
//! a later one has used it. A reader discards what it has read if the version was odd or has changed meanwhile: the
//! release fence after the CAS and the acquire fence before the second load of the version order them, because a
//! reader that saw a word of the new event then sees its version.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::fingerprint::{Fingerprint, ShortPart};
use crate::rule::RuleId;
use crate::stripes::STRIPES;
use crate::time::Time;
use crate::verdict::{Reason, VerdictId};

/// Maximum number of latest decisions.
pub const MAX_RECENT: usize = 10_000;
/// Maximum size of the sample, and its interval in decisions.
pub const MAX_SAMPLED: usize = 1_000;
const SAMPLE_EVERY: u64 = 100;
/// Bytes of a plain key; longer ones are truncated.
pub const MAX_KEY_LEN: usize = 512;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    pub id: VerdictId,
    pub at: Time,
    pub allowed: bool,
    pub reason: Reason,
    pub rule: Option<RuleId>,
    pub key: EventKey,
}

/// The key of a decision, redacted if required.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventKey {
    Unknown,
    /// The same key has the same mark during the lifetime of the process.
    Redacted(Fingerprint),
    /// At most [`MAX_KEY_LEN`] bytes of it.
    Plain(Box<str>),
}

impl std::fmt::Display for EventKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EventKey::Unknown => f.write_str("-"),
            EventKey::Redacted(mark) => write!(f, "#{:016x}", mark.0),
            EventKey::Plain(key) => f.write_str(key),
        }
    }
}

/// An event to be written. Passed by value: a reference would keep it in memory.
#[derive(Clone, Copy)]
pub(crate) struct NewEvent<'e> {
    pub(crate) id: VerdictId,
    pub(crate) at: Time,
    pub(crate) allowed: bool,
    pub(crate) reason: Reason,
    pub(crate) rule: Option<&'e RuleId>,
    pub(crate) key: NewEventKey<'e>,
}

#[derive(Clone, Copy)]
pub(crate) enum NewEventKey<'e> {
    Unknown,
    Redacted(Fingerprint),
    Plain(&'e str),
}

/// Whether events may have plain keys, which take more memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeyText {
    Never,
    Stored,
}

pub struct Events {
    node: u32,
    key_text: KeyText,
    /// Allocated with the first decision of a stripe.
    rings: Box<[OnceLock<EventRings>; STRIPES]>,
    dropped: AtomicU64,
}

struct EventRings {
    recent: EventRing<MAX_RECENT>,
    sampled: EventRing<MAX_SAMPLED>,
}

impl EventRings {
    #[cold]
    fn sample(&self, number: u64, event: NewEvent<'_>) {
        self.sampled.write(number / SAMPLE_EVERY, number, event);
    }
}

/// The latest `CAPACITY` events.
struct EventRing<const CAPACITY: usize> {
    words: Box<[AtomicU64]>,
    slot_words: usize,
}

/// The words of a slot: a header, the rule's id, then the key as text if it is stored.
const HEADER_WORDS: usize = 5;
const RULE_WORDS: usize = RuleId::MAX_LEN / 8;

type SlotHead = [AtomicU64; HEADER_WORDS + RULE_WORDS];

#[inline(always)]
fn split_head(head: &SlotHead) -> (&[AtomicU64; HEADER_WORDS], &[AtomicU64; RULE_WORDS]) {
    let (header, rule) = head.split_at(HEADER_WORDS);
    let lengths = "the lengths of both parts are those of their types";
    (header.try_into().expect(lengths), rule.try_into().expect(lengths))
}

/// The fields of an event that fit one word.
#[derive(Clone, Copy)]
struct EventMeta {
    allowed: bool,
    reason: Reason,
    key: KeyKind,
    rule_len: u8,
    key_len: u16,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyKind {
    Unknown,
    Redacted,
    Plain,
}

impl EventMeta {
    #[inline(always)]
    fn of(event: NewEvent<'_>) -> EventMeta {
        let (key, key_len) = match event.key {
            NewEventKey::Unknown => (KeyKind::Unknown, 0),
            NewEventKey::Redacted(_) => (KeyKind::Redacted, 0),
            NewEventKey::Plain(text) => (KeyKind::Plain, text.len() as u16),
        };
        let rule_len = event.rule.map_or(0, |rule| rule.as_str().len() as u8);
        EventMeta { allowed: event.allowed, reason: event.reason, key, rule_len, key_len }
    }

    fn to_word(self) -> u64 {
        u64::from(self.allowed)
            | (self.reason as u64) << 8
            | (self.key as u64) << 16
            | u64::from(self.rule_len) << 24
            | u64::from(self.key_len) << 32
    }

    fn from_word(word: u64) -> Option<EventMeta> {
        let byte = |at: u32| (word >> at) as u8;
        let key = match byte(16) {
            0 => KeyKind::Unknown,
            1 => KeyKind::Redacted,
            _ => KeyKind::Plain,
        };
        let reason = *Reason::ALL.get(usize::from(byte(8)))?;
        let key_len = (word >> 32) as u16;
        Some(EventMeta { allowed: byte(0) != 0, reason, key, rule_len: byte(24), key_len })
    }
}

impl<const CAPACITY: usize> EventRing<CAPACITY> {
    fn new(key_text: KeyText) -> Self {
        let key_words = if key_text == KeyText::Stored { MAX_KEY_LEN / 8 } else { 0 };
        let slot_words = HEADER_WORDS + RULE_WORDS + key_words;
        EventRing { words: (0..CAPACITY * slot_words).map(|_| AtomicU64::new(0)).collect(), slot_words }
    }

    /// The slot with this index, counted round and round.
    #[inline(always)]
    fn slot(&self, index: u64) -> Option<(&SlotHead, &[AtomicU64])> {
        let start = (index % CAPACITY as u64) as usize * self.slot_words;
        self.words.get(start..start + self.slot_words)?.split_first_chunk()
    }

    /// Writes an event; `false` if it was dropped.
    #[inline(always)]
    fn write(&self, index: u64, number: u64, event: NewEvent<'_>) -> bool {
        let Some((head, key_text)) = self.slot(index) else { return false };
        let (header, rule_text) = split_head(head);
        let [version, generation, at, key, meta] = header;
        let writing = 2 * number + 1;
        let known = version.load(Ordering::Relaxed);
        let is_free = known.is_multiple_of(2) && known < writing;
        if !is_free || version.compare_exchange(known, writing, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return false;
        }
        fence(Ordering::Release);
        generation.store(event.id.generation, Ordering::Relaxed);
        at.store(event.at.nanos(), Ordering::Relaxed);
        meta.store(EventMeta::of(event).to_word(), Ordering::Relaxed);
        if let Some(rule) = event.rule {
            write_text(rule_text, rule.as_str());
        }
        match event.key {
            NewEventKey::Redacted(mark) => key.store(mark.0, Ordering::Relaxed),
            NewEventKey::Plain(text) => write_text(key_text, text),
            NewEventKey::Unknown => {}
        }
        version.store(writing + 1, Ordering::Release);
        true
    }

    /// The number and the event in a slot; `None` if there is none, or it is being written.
    fn read(&self, index: u64, node: u32, stripe: usize) -> Option<(u64, Event)> {
        let (head, key_text) = self.slot(index)?;
        let ([version, generation, at, mark, meta], rule_text) = split_head(head);
        let before = version.load(Ordering::Acquire);
        if before == 0 || !before.is_multiple_of(2) {
            return None;
        }
        let number = before / 2 - 1;
        let generation = generation.load(Ordering::Relaxed);
        let at = Time::from_nanos(at.load(Ordering::Relaxed));
        let mark = Fingerprint(mark.load(Ordering::Relaxed));
        let meta = EventMeta::from_word(meta.load(Ordering::Relaxed));
        let load = |words: &[AtomicU64]| -> Vec<u64> {
            words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
        };
        let rule_text = load(rule_text);
        let key_text = load(key_text);
        fence(Ordering::Acquire);
        if version.load(Ordering::Relaxed) != before {
            return None;
        }
        let meta = meta?;
        let key = match meta.key {
            KeyKind::Unknown => EventKey::Unknown,
            KeyKind::Redacted => EventKey::Redacted(mark),
            KeyKind::Plain => EventKey::Plain(text_of(&key_text, usize::from(meta.key_len)).into()),
        };
        let rule = RuleId::new(&text_of(&rule_text, usize::from(meta.rule_len)));
        let id = VerdictId::new(node, generation, stripe, number);
        Some((number, Event { id, at, allowed: meta.allowed, reason: meta.reason, rule, key }))
    }

    /// All events, oldest first.
    fn oldest_first(&self, node: u32, stripe: usize) -> Vec<Event> {
        let slots = 0..CAPACITY as u64;
        let mut events: Vec<_> = slots.filter_map(|index| self.read(index, node, stripe)).collect();
        events.sort_unstable_by_key(|(number, _)| *number);
        events.into_iter().map(|(_, event)| event).collect()
    }
}

/// Writes a text, eight bytes a word and two words at a time. What follows it in the last two is arbitrary.
#[inline]
fn write_text(words: &[AtomicU64], text: &str) {
    let (pairs, _) = words.as_chunks::<2>();
    let (blocks, rest) = text.as_bytes().as_chunks::<16>();
    let store = |[low, high]: &[AtomicU64; 2], block: u128| {
        low.store(block as u64, Ordering::Relaxed);
        high.store((block >> 64) as u64, Ordering::Relaxed);
    };
    for (pair, block) in pairs.iter().zip(blocks) {
        store(pair, u128::from_le_bytes(*block));
    }
    if let (Some(pair), Some(last)) = (pairs.get(blocks.len()), ShortPart::bytes(rest)) {
        store(pair, last.0);
    }
}

fn text_of(words: &[u64], len: usize) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).take(len).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The text, truncated to what an event stores of a key.
fn truncated(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_KEY_LEN)]
}

impl Events {
    pub(crate) fn new(node: u32, key_text: KeyText) -> Events {
        Events {
            node,
            key_text,
            rings: Box::new([const { OnceLock::new() }; STRIPES]),
            dropped: AtomicU64::new(0),
        }
    }

    #[inline(always)]
    pub(crate) fn push(&self, event: NewEvent<'_>) {
        match event.key {
            NewEventKey::Plain(text) => self.push_plain(event, text),
            NewEventKey::Redacted(_) | NewEventKey::Unknown => self.write(event),
        }
    }

    /// Writes an event with a plain key, of which it stores no more than may be.
    #[inline(never)]
    fn push_plain(&self, event: NewEvent<'_>, text: &str) {
        let key = match self.key_text {
            KeyText::Never => NewEventKey::Unknown,
            KeyText::Stored => NewEventKey::Plain(truncated(text)),
        };
        self.write(NewEvent { key, ..event });
    }

    #[inline(always)]
    fn write(&self, event: NewEvent<'_>) {
        let number = event.id.number();
        let rings = self.rings[event.id.stripe() % STRIPES].get_or_init(|| EventRings {
            recent: EventRing::new(self.key_text),
            sampled: EventRing::new(self.key_text),
        });
        if number % SAMPLE_EVERY == 1 {
            rings.sample(number, event);
        }
        if !rings.recent.write(number, number, event) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The latest `count` decisions, newest first; those of different threads by their time.
    pub fn recent(&self, count: usize) -> Vec<Event> {
        self.merged(count.min(MAX_RECENT), |rings, stripe| rings.recent.oldest_first(self.node, stripe))
    }

    /// One in a hundred decisions of each thread, newest first.
    pub fn sampled(&self) -> Vec<Event> {
        self.merged(MAX_SAMPLED, |rings, stripe| rings.sampled.oldest_first(self.node, stripe))
    }

    pub fn find(&self, id: VerdictId) -> Option<Event> {
        let stripe = id.stripe();
        let (_, event) = self.rings.get(stripe)?.get()?.recent.read(id.number(), self.node, stripe)?;
        (event.id == id).then_some(event)
    }

    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The newest events of all stripes.
    fn merged(&self, count: usize, events: impl Fn(&EventRings, usize) -> Vec<Event>) -> Vec<Event> {
        let used = self.rings.iter().enumerate().filter_map(|(stripe, rings)| Some((stripe, rings.get()?)));
        let mut stripes: Vec<Vec<Event>> = used.map(|(stripe, rings)| events(rings, stripe)).collect();
        let mut merged = Vec::new();
        while merged.len() < count {
            let newest = stripes.iter_mut().max_by_key(|events| events.last().map(|event| event.at));
            let Some(event) = newest.and_then(Vec::pop) else { break };
            merged.push(event);
        }
        merged
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn push(events: &Events, stripe: usize, number: u64, rule: &RuleId, key: NewEventKey<'_>) {
        let at = Time::from_secs(number);
        let id = VerdictId::new(7, number + 1, stripe, number);
        events.push(NewEvent { id, at, allowed: true, reason: Reason::Ok, rule: Some(rule), key });
    }

    fn rule(text: &str) -> RuleId {
        RuleId::new(text).expect("a valid id")
    }

    #[test]
    fn an_event_is_read_as_it_was_written() {
        let events = Events::new(7, KeyText::Stored);
        let longest = "r".repeat(RuleId::MAX_LEN);
        for (number, id) in ["a", "12345678", "123456789", &longest].into_iter().enumerate() {
            push(&events, 3, number as u64 + 1, &rule(id), NewEventKey::Plain("user:ü"));
            let found = events.find(VerdictId::new(7, number as u64 + 2, 3, number as u64 + 1));
            let found = found.expect("it is there");
            assert_eq!(found.rule, Some(rule(id)));
            assert_eq!(found.key, EventKey::Plain("user:ü".into()));
            assert_eq!(found.at, Time::from_secs(number as u64 + 1));
        }
        assert_eq!(events.find(VerdictId::new(7, 1, 3, 1)), None, "of another generation");
        push(&events, 3, 9, &rule("long"), NewEventKey::Plain(&"é".repeat(MAX_KEY_LEN)));
        assert_eq!(events.recent(1)[0].key, EventKey::Plain("é".repeat(MAX_KEY_LEN / 2).into()));
    }

    #[test]
    fn decisions_of_several_threads_are_merged_by_their_time() {
        let events = Events::new(7, KeyText::Never);
        for (stripe, number) in [(0, 1), (1, 2), (0, 3), (5, 4), (1, 5)] {
            push(&events, stripe, number, &rule("r"), NewEventKey::Redacted(Fingerprint(number)));
        }
        let numbers: Vec<_> = events.recent(4).iter().map(|event| event.id.number()).collect();
        assert_eq!(numbers, [5, 4, 3, 2]);
    }

    #[test]
    fn a_late_event_replaces_no_newer_one() {
        let events = Events::new(7, KeyText::Never);
        let newer = 5 + MAX_RECENT as u64;
        push(&events, 0, newer, &rule("newer"), NewEventKey::Unknown);
        push(&events, 0, 5, &rule("late"), NewEventKey::Unknown);
        assert_eq!((events.recent(9).len(), events.dropped()), (1, 1));
        assert_eq!(events.recent(9)[0].rule, Some(rule("newer")));
    }

    #[test]
    fn a_reader_never_sees_parts_of_two_events() {
        const EVENTS: u64 = 60_000;
        let events = Events::new(7, KeyText::Never);
        let rules: Vec<RuleId> = (0..10).map(|n| rule(&format!("{n}").repeat(40))).collect();
        let write = |first: u64| {
            for number in (first..EVENTS).step_by(2) {
                let mark = NewEventKey::Redacted(Fingerprint(number));
                push(&events, 0, number, &rules[(number % 10) as usize], mark);
            }
        };
        thread::scope(|scope| {
            let writers = [1, 2].map(|first| scope.spawn(move || write(first)));
            while writers.iter().any(|writer| !writer.is_finished()) {
                for event in events.recent(100) {
                    let number = event.id.number();
                    assert_eq!(event.id.generation, number + 1);
                    assert_eq!(event.key, EventKey::Redacted(Fingerprint(number)));
                    assert_eq!(event.rule.as_ref(), Some(&rules[(number % 10) as usize]));
                }
            }
        });
    }
}
