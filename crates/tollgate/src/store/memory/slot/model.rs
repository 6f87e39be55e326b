//! The operations of a slot for the model checker, with a step of it before each.

use shuttle::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

use super::{COUNT, Entry, Seen};
use crate::sync::seeded;

#[derive(Default)]
pub(in super::super) struct Slot {
    seen: Mutex<Seen>,
    step: AtomicBool,
}

impl Seen {
    fn replace_word(&mut self, old: u64, next: u64) -> Result<(), u64> {
        let ignored = if seeded::is(seeded::NOT_COUNTED) { COUNT } else { 0 };
        if self.word & !ignored != old & !ignored {
            return Err(self.word);
        }
        self.word = next & !ignored | self.word & ignored;
        Ok(())
    }
}

impl Slot {
    pub(in super::super) fn tag(&self) -> u64 {
        self.load().tag()
    }

    pub(in super::super) fn whole_tag(&self) -> u64 {
        self.load().tag
    }

    pub(in super::super) fn word_of(&self, whole_tag: u64) -> Option<u64> {
        let Seen { tag, word } = self.glance();
        (tag == whole_tag).then_some(word)
    }

    pub(in super::super) fn set_word(&self, word: u64, next: u64) -> bool {
        self.with(|now| now.replace_word(word, next)).is_ok()
    }

    pub(in super::super) fn glance(&self) -> Seen {
        if seeded::is(seeded::TAG_FIRST) {
            let tag = self.load().tag;
            return Seen { tag, word: self.load().word };
        }
        self.with_tag(self.load().word)
    }

    pub(in super::super) fn load(&self) -> Seen {
        self.with(|seen| *seen)
    }

    pub(in super::super) fn confirm(&self, seen: Seen) -> Result<(), Seen> {
        let word = self.load().word;
        if word == seen.word { Ok(()) } else { Err(self.with_tag(word)) }
    }

    pub(in super::super) fn set(&self, seen: Seen, state: u64) -> Result<(), Seen> {
        let next = seen.with(state);
        if next.tag != seen.tag {
            return self.hand_over(seen, (seen.tag(), state));
        }
        let replaced = self.with(|now| now.replace_word(seen.word, next.word));
        replaced.map_err(|word| self.with_tag(word))
    }

    pub(in super::super) fn hand_over(&self, seen: Seen, entry: Entry) -> Result<(), Seen> {
        self.with(|now| {
            if *now != seen {
                return Err(*now);
            }
            *now = seen.followed_by(entry);
            Ok(())
        })
    }

    pub(in super::super) fn overwrite(&self, entry: Entry) {
        self.with(|now| *now = now.followed_by(entry));
    }

    fn with_tag(&self, word: u64) -> Seen {
        Seen { tag: self.load().tag, word }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Seen) -> T) -> T {
        self.step.load(Ordering::SeqCst);
        act(&mut self.seen.lock().expect("no operation panics"))
    }
}
