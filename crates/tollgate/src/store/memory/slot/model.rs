//! The operations of a slot for the model checker, with a scheduling point before each.

use shuttle::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

use super::{GENERATION_MASK, SlotEntry, SlotValue};
use crate::sync::seeded;

#[derive(Default)]
pub(in super::super) struct Slot {
    value: Mutex<SlotValue>,
    step: AtomicBool,
}

impl SlotValue {
    fn replace_word(&mut self, old: u64, next: u64) -> Result<(), u64> {
        let ignored = if seeded::is(seeded::NO_GENERATION) { GENERATION_MASK } else { 0 };
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

    pub(in super::super) fn raw_tag(&self) -> u64 {
        self.load().tag
    }

    pub(in super::super) fn word_if_tag(&self, raw_tag: u64) -> Option<u64> {
        let SlotValue { tag, word } = self.load_unconfirmed();
        (tag == raw_tag).then_some(word)
    }

    pub(in super::super) fn cas_word(&self, word: u64, next: u64) -> bool {
        self.with(|now| now.replace_word(word, next)).is_ok()
    }

    pub(in super::super) fn load_unconfirmed(&self) -> SlotValue {
        if seeded::is(seeded::TAG_FIRST) {
            let tag = self.load().tag;
            return SlotValue { tag, word: self.load().word };
        }
        self.with_tag(self.load().word)
    }

    pub(in super::super) fn load(&self) -> SlotValue {
        self.with(|value| *value)
    }

    pub(in super::super) fn confirm(&self, value: SlotValue) -> Result<(), SlotValue> {
        let word = self.load().word;
        if word == value.word { Ok(()) } else { Err(self.with_tag(word)) }
    }

    pub(in super::super) fn cas_state(&self, value: SlotValue, state: u64) -> Result<(), SlotValue> {
        let next = value.with_state(state);
        if next.tag != value.tag {
            return self.cas_entry(value, (value.tag(), state));
        }
        let replaced = self.with(|now| now.replace_word(value.word, next.word));
        replaced.map_err(|word| self.with_tag(word))
    }

    pub(in super::super) fn cas_entry(&self, value: SlotValue, entry: SlotEntry) -> Result<(), SlotValue> {
        self.with(|now| {
            if *now != value {
                return Err(*now);
            }
            *now = value.next_generation(entry);
            Ok(())
        })
    }

    pub(in super::super) fn overwrite(&self, entry: SlotEntry) {
        self.with(|now| *now = now.next_generation(entry));
    }

    fn with_tag(&self, word: u64) -> SlotValue {
        SlotValue { tag: self.load().tag, word }
    }

    fn with<T>(&self, act: impl FnOnce(&mut SlotValue) -> T) -> T {
        self.step.load(Ordering::SeqCst);
        act(&mut self.value.lock().expect("no operation panics"))
    }
}
