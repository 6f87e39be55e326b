//! The slab beside the table: states that need more than eight bytes.

use crate::algorithm::State;
use crate::time::Time;

pub(super) struct Wide {
    pub(super) state: State,
    pub(super) fresh_at: Time,
}

#[derive(Default)]
pub(super) struct Slab {
    rows: Vec<Option<Wide>>,
    free: Vec<usize>,
    bytes: usize,
}

impl Slab {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn get(&self, index: u64) -> Option<&Wide> {
        self.rows.get(usize::try_from(index).ok()?)?.as_ref()
    }

    /// Adds a row and says where.
    pub(super) fn add(&mut self, wide: Wide) -> u64 {
        self.bytes += bytes(&wide);
        let index = self.free.pop().unwrap_or_else(|| {
            self.rows.push(None);
            self.rows.len() - 1
        });
        self.rows[index] = Some(wide);
        index as u64
    }

    pub(super) fn change<T>(&mut self, index: u64, change: impl FnOnce(&mut Wide) -> T) -> Option<T> {
        let wide = self.rows.get_mut(usize::try_from(index).ok()?)?.as_mut()?;
        let before = bytes(wide);
        let changed = change(wide);
        self.bytes = self.bytes - before + bytes(wide);
        Some(changed)
    }

    pub(super) fn remove(&mut self, index: u64) {
        let Ok(index) = usize::try_from(index) else { return };
        if let Some(wide) = self.rows.get_mut(index).and_then(Option::take) {
            self.bytes -= bytes(&wide);
            self.free.push(index);
        }
    }
}

fn bytes(wide: &Wide) -> usize {
    let heap = match &wide.state {
        State::Steps(steps) => steps.heap_bytes(),
        State::Tiers(tiers) => tiers.heap_bytes(),
        State::Instant(_) | State::Window(_) | State::Counts(_) => 0,
    };
    size_of::<Option<Wide>>() + heap
}
