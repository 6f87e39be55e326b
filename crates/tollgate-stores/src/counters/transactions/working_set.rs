//! The values of one transaction: as loaded, and as its jobs have changed them so far.

use tollgate::Time;
use tollgate::internal::Limit;
use tollgate::internal::algorithm::{Algorithm as _, Quota, QuotaState};
use tollgate::internal::limit::Shape;

use super::{CasValue, CasWrite, Work};
use crate::counters::request::{ChargeMode, ChargeResult};
use crate::counters::{decide, state};

pub(super) struct WorkingSet<Token> {
    /// Sorted.
    names: Vec<String>,
    values: Vec<WorkingValue<Token>>,
}

struct WorkingValue<Token> {
    loaded: CasValue<Token>,
    pending: Option<PendingState>,
}

/// The state that a job has computed for a value, the limit it is under, and the time of the change.
struct PendingState {
    limit: Limit,
    state: QuotaState,
    at: Time,
}

impl<Token: Clone> WorkingSet<Token> {
    /// `names` must be sorted.
    pub(super) fn new(names: Vec<String>, loaded: Vec<CasValue<Token>>) -> WorkingSet<Token> {
        let values = loaded.into_iter().map(|loaded| WorkingValue { loaded, pending: None }).collect();
        WorkingSet { names, values }
    }

    /// Runs the work; `None` if a value was not written by tollgate.
    pub(super) fn run(&mut self, work: &Work, now: Time) -> Option<Vec<ChargeResult>> {
        match work {
            Work::Charge { charges, names, mode } => {
                let found = charges
                    .iter()
                    .zip(names)
                    .map(|(charge, name)| self.state_of(name, &charge.counter().limit, now));
                let found: Vec<_> = found.collect::<Option<_>>()?;
                let (mut states, converted): (Vec<_>, Vec<_>) = found.into_iter().unzip();
                let decided = decide::charge_all(charges, *mode, &mut states, now);
                for (n, state) in states.into_iter().enumerate() {
                    // Access under a changed limit converts the state, denied or not (I6).
                    if decided[n].changed || (converted[n] && *mode != ChargeMode::Peek) {
                        let limit = charges[n].counter().limit;
                        self.set_state(&names[n], PendingState { limit, state, at: now });
                    }
                }
                Some(decided.into_iter().map(|decided| decided.result).collect())
            }
            Work::Settle { item, name, real_cost } => {
                let limit = item.counter().limit;
                let (mut state, converted) = self.state_of(name, &limit, now)?;
                let before = state.clone();
                decide::settle(item, *real_cost, &mut state, now);
                if converted || state != before {
                    self.set_state(name, PendingState { limit, state, at: now });
                }
                Some(Vec::new())
            }
        }
    }

    /// The state of a value under `limit`, and whether it had to be converted or clamped.
    fn state_of(&self, name: &String, limit: &Limit, now: Time) -> Option<(QuotaState, bool)> {
        let value = &self.values[self.index_of(name)];
        let (stored_limit, mut state) = match (&value.pending, &value.loaded.bytes) {
            (Some(pending), _) => (pending.limit, pending.state.clone()),
            (None, Some(bytes)) => state::decode(limit, bytes)?,
            (None, None) => return Some((Quota::new(limit).fresh(), false)),
        };
        // A cell may have been charged under any limit: there is no bound to clamp it to.
        let is_cell = matches!(limit.shape(), Shape::Cell { .. });
        let clamped = !is_cell && Quota::new(&stored_limit).clamp(&mut state, now);
        if state::interchangeable(&stored_limit, limit) {
            return Some((state, clamped));
        }
        let adopted = Quota::new(limit).adopt(&Quota::new(&stored_limit), state.clone(), now);
        // If only the burst differs, a rewrite would change nothing else.
        let same = stored_limit.rate() == limit.rate() && adopted == state;
        Some((adopted, clamped || !same))
    }

    fn set_state(&mut self, name: &String, pending: PendingState) {
        let index = self.index_of(name);
        self.values[index].pending = Some(pending);
    }

    fn index_of(&self, name: &String) -> usize {
        self.names.binary_search(name).expect("the names of all work are loaded")
    }

    /// The values that have changed.
    pub(super) fn writes(&self) -> Vec<CasWrite<Token>> {
        let changed = self.names.iter().zip(&self.values).filter_map(|(name, value)| {
            let PendingState { limit, state, at } = value.pending.as_ref()?;
            let bytes = state::encode(limit, state, *at);
            let lifetime = Quota::new(limit).expires_at(state).since(*at);
            Some(CasWrite { name: name.clone(), token: value.loaded.token.clone(), bytes, lifetime })
        });
        changed.collect()
    }
}
