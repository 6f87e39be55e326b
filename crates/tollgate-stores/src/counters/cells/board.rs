//! The values of one transaction: as they were read, and as the work on them leaves them.

use tollgate::algorithm::{Algorithm as _, Quota, State};
use tollgate::{Limit, Time};

use super::{Loaded, Work, Write};
use crate::counters::demand::{self, Intent};
use crate::counters::{demand::Ran, state};

pub(super) struct Board<Seen> {
    /// In order.
    names: Vec<String>,
    cells: Vec<Held<Seen>>,
}

struct Held<Seen> {
    loaded: Loaded<Seen>,
    left: Option<Left>,
}

/// What some work has left in a cell, under which limit, and when.
struct Left {
    limit: Limit,
    state: State,
    at: Time,
}

impl<Seen: Clone> Board<Seen> {
    /// `names` are in order.
    pub(super) fn new(names: Vec<String>, loaded: Vec<Loaded<Seen>>) -> Board<Seen> {
        let cells = loaded.into_iter().map(|loaded| Held { loaded, left: None }).collect();
        Board { names, cells }
    }

    /// Does the work; `None` if it finds a value that is none of ours.
    pub(super) fn run(&mut self, work: &Work, now: Time) -> Option<Vec<Ran>> {
        match work {
            Work::Charge { charges, names, intent } => {
                let found =
                    charges.iter().zip(names).map(|(charge, name)| self.find(name, &charge.limit, now));
                let found: Vec<_> = found.collect::<Option<_>>()?;
                let (mut states, converted): (Vec<_>, Vec<_>) = found.into_iter().unzip();
                let ran = demand::run_all(charges, *intent, &mut states, now);
                for (n, state) in states.into_iter().enumerate() {
                    // A touch under a changed limit converts the state, denied or not (I6).
                    if ran[n].changed || (converted[n] && *intent != Intent::Peek) {
                        self.put(&names[n], Left { limit: charges[n].limit, state, at: now });
                    }
                }
                Some(ran)
            }
            Work::Settle { item, name, real_cost } => {
                let (mut state, converted) = self.find(name, &item.limit, now)?;
                let before = state.clone();
                demand::settle(item, *real_cost, &mut state, now);
                if converted || state != before {
                    self.put(name, Left { limit: item.limit, state, at: now });
                }
                Some(Vec::new())
            }
        }
    }

    /// The state of a cell under `limit`, and whether it had to be converted or clamped.
    fn find(&self, name: &String, limit: &Limit, now: Time) -> Option<(State, bool)> {
        let held = &self.cells[self.place(name)];
        let (under, mut state) = match (&held.left, &held.loaded.bytes) {
            (Some(left), _) => (left.limit, left.state.clone()),
            (None, Some(bytes)) => state::decode(limit, bytes)?,
            (None, None) => return Some((Quota::new(limit).fresh(), false)),
        };
        let clamped = Quota::new(&under).clamp(&mut state, now);
        if state::interchangeable(&under, limit) {
            return Some((state, clamped));
        }
        let adopted = Quota::new(limit).adopt(&Quota::new(&under), state.clone(), now);
        // Only the burst differs: nothing would change but that.
        let same = under.rate() == limit.rate() && adopted == state;
        Some((adopted, clamped || !same))
    }

    fn put(&mut self, name: &String, left: Left) {
        let place = self.place(name);
        self.cells[place].left = Some(left);
    }

    fn place(&self, name: &String) -> usize {
        self.names.binary_search(name).expect("the names of all work are loaded")
    }

    /// What has to be written back.
    pub(super) fn writes(&self) -> Vec<Write<Seen>> {
        let changed = self.names.iter().zip(&self.cells).filter_map(|(name, held)| {
            let Left { limit, state, at } = held.left.as_ref()?;
            let bytes = state::encode(limit, state, *at);
            let lifetime = Quota::new(limit).fresh_at(state).since(*at);
            Some(Write { name: name.clone(), seen: held.loaded.seen.clone(), bytes, lifetime })
        });
        changed.collect()
    }
}
