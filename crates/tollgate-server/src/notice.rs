//! Log messages about events that operators should notice: automatic bans, and full memory.
//!
//! At most one line per kind and interval, so that the log stays readable during an attack.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tollgate::internal::rule::Warnings;

use crate::connection::{Shutdown, shutdown_requested};
use crate::gate::Gate;

const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Monotonic counters.
#[derive(Clone, Copy, Default)]
struct NoticeCounts {
    banned: u64,
    dropped_bans: u64,
    evicted: u64,
    unstored: u64,
    untracked: u64,
}

impl NoticeCounts {
    fn of(gate: &Gate) -> NoticeCounts {
        let policy = gate.engine.policy();
        let usage = gate.engine.store().usage();
        let punishing = policy.rules().iter().filter(|rule| rule.ban.is_some());
        let banned = punishing.map(|rule| rule.counts().banned).sum();
        let dropped_bans = gate.engine.dropped_bans();
        let untracked = gate.engine.outbox().dropped();
        NoticeCounts { banned, dropped_bans, evicted: usage.evicted, unstored: usage.unstored, untracked }
    }
}

/// Runs until the shutdown.
pub async fn watch(gate: Arc<Gate>, mut shutdown: Shutdown) {
    let mut ticks = interval(LOG_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut known = NoticeCounts::default();
    loop {
        tokio::select! {
            () = shutdown_requested(&mut shutdown) => return,
            _ = ticks.tick() => {
                let counts = NoticeCounts::of(&gate);
                log_increases(known, counts);
                known = counts;
            }
        }
    }
}

/// Logs settings of new rules that are valid but probably not intended.
pub fn log_warnings(warnings: Warnings) {
    for warning in warnings.into_lines() {
        tracing::warn!("{warning}");
    }
}

fn log_increases(before: NoticeCounts, after: NoticeCounts) {
    let more = |before: u64, after: u64| Some(after.saturating_sub(before)).filter(|more| *more > 0);
    if let Some(bans) = more(before.banned, after.banned) {
        tracing::warn!(bans, "keys were banned after repeated denials");
    }
    if let Some(bans) = more(before.dropped_bans, after.dropped_bans) {
        tracing::error!(bans, "the ban list is full: automatic bans are not in force");
    }
    if let Some(keys) = more(before.evicted, after.evicted) {
        tracing::warn!(keys, "memory is full: keys with little usage were evicted");
    }
    if let Some(charges) = more(before.unstored, after.unstored) {
        tracing::warn!(charges, "memory is full: there was no room for new keys (see memory_full)");
    }
    if let Some(tries) = more(before.untracked, after.untracked) {
        tracing::warn!(tries, "too many keys wait for the store: tries of tracked keys were not recorded");
    }
}
