//! What an operator should hear of without asking: bans that were earned, and memory that ran out.
//!
//! A line for each kind and interval at the most: during an attack the log stays readable.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tollgate::rule::Warnings;

use crate::connection::{Shutdown, told_to_stop};
use crate::gate::Gate;

const EVERY: Duration = Duration::from_secs(5);

/// Counts that only grow.
#[derive(Clone, Copy, Default)]
struct Counts {
    banned: u64,
    dropped_bans: u64,
    evicted: u64,
    unstored: u64,
    untracked: u64,
}

impl Counts {
    fn of(gate: &Gate) -> Counts {
        let (policy, usage) = (gate.engine.policy(), gate.engine.store().usage());
        let punishing = policy.rules().iter().filter(|rule| rule.ban.is_some());
        let banned = punishing.map(|rule| rule.tally().banned).sum();
        let dropped_bans = gate.engine.dropped_bans();
        let untracked = gate.engine.outbox().dropped();
        Counts { banned, dropped_bans, evicted: usage.evicted, unstored: usage.unstored, untracked }
    }
}

/// Runs until the shutdown.
pub async fn watch(gate: Arc<Gate>, mut shutdown: Shutdown) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut known = Counts::default();
    loop {
        tokio::select! {
            () = told_to_stop(&mut shutdown) => return,
            _ = ticks.tick() => {
                let counts = Counts::of(&gate);
                say(known, counts);
                known = counts;
            }
        }
    }
}

/// What is valid in rules that come into force but probably not intended.
pub fn warn(warnings: Warnings) {
    for warning in warnings.into_lines() {
        tracing::warn!("{warning}");
    }
}

fn say(before: Counts, after: Counts) {
    let more = |before: u64, after: u64| Some(after.saturating_sub(before)).filter(|more| *more > 0);
    if let Some(bans) = more(before.banned, after.banned) {
        tracing::warn!(bans, "keys were banned after repeated denials");
    }
    if let Some(bans) = more(before.dropped_bans, after.dropped_bans) {
        tracing::error!(bans, "the ban list is full: bans that were earned are not in force");
    }
    if let Some(keys) = more(before.evicted, after.evicted) {
        tracing::warn!(keys, "memory is full: keys that used little made room for others");
    }
    if let Some(charges) = more(before.unstored, after.unstored) {
        tracing::warn!(charges, "memory is full: new keys found no room (see memory_full)");
    }
    if let Some(tries) = more(before.untracked, after.untracked) {
        tracing::warn!(tries, "too many keys wait for the store: tries of tracked keys were not recorded");
    }
}
