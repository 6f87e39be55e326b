//! Follows the database: a full load, then each change.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};
use tollgate_stores::rules::{ChangeFeed, DbError, ItemChange, RulesDb, Version};

use crate::allocator;
use crate::config::AuditConfig;
use crate::connection::{Shutdown, shutdown_requested};
use crate::gate::Gate;
use crate::ramp;
use crate::rules_follower::pending_bans::PendingBans;
use crate::rules_follower::{RulesFollower, RulesSource, apply, cold_start, load, local_copy};

/// Changes read and applied at once: each page copies the parts of the policy that it touches.
pub(super) const CHANGES_PAGE: usize = 20_000;
/// Delay before a retry after an error of the database.
const RETRY_DELAY: Duration = Duration::from_millis(300);
/// How often expired bans are searched, and how many are removed at once.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(30);
const CLEANUP_BATCH: usize = 500;
/// Automatic bans that so many changes follow leave the log early: clients cause them, as fast as they are denied.
const MAX_CHANGES_AFTER_BAN: usize = 100_000;
/// After this many changes free memory is returned to the system.
const TRIM_AFTER_CHANGES: u64 = 10_000;
pub(super) const MAX_CLOCK_SKEW: Duration = Duration::from_secs(60);
/// How often it is checked whether the database is writable.
const ACCESS_EVERY: Duration = Duration::from_secs(5);

/// Runs until the shutdown.
pub async fn follow(follower: Arc<RulesFollower>, gate: Arc<Gate>, mut shutdown: Shutdown) {
    let mut pending_bans = PendingBans::default();
    tokio::select! {
        () = shutdown_requested(&mut shutdown) => {}
        () = follow_loop(&follower, &gate) => {}
        () = pending_bans.run(&follower, &gate) => {}
        () = cleanup_loop(&follower, &gate) => {}
        () = watch_access(&follower) => {}
        () = local_copy::run(&follower, &gate) => {}
        () = ramp::run(&follower, &gate) => {}
    }
    pending_bans.flush(&follower, &gate).await;
}

async fn follow_loop(follower: &RulesFollower, gate: &Arc<Gate>) {
    loop {
        let Err(error) = try_follow(follower, gate).await;
        let outcome = match follower.source() {
            RulesSource::None => Some(cold_start::without_database(follower, gate).await),
            RulesSource::Copy | RulesSource::Database => None,
        };
        follower.record_read_error(error.to_string(), outcome);
        sleep(RETRY_DELAY).await;
    }
}

/// Follows until an error.
async fn try_follow(follower: &RulesFollower, gate: &Arc<Gate>) -> Result<std::convert::Infallible, DbError> {
    let db = cold_start::open(follower).await?;
    let in_force = *follower.in_force.borrow();
    let mut applied = match (in_force, follower.source()) {
        (None, _) => load::load(follower, gate, db).await?,
        (Some(applied), RulesSource::Copy) => resume_from_copy(follower, gate, db, applied).await?,
        (Some(applied), _) => db.version().await.map(|_| applied)?,
    };
    loop {
        follower.record_version(applied);
        tokio::select! {
            changed = db.changed_since(applied) => {
                changed?;
                applied = catch_up(follower, gate, db, applied).await?;
            }
            () = follower.reload_requested.notified() => applied = load::load(follower, gate, db).await?,
        }
    }
}

/// Continues from the local copy: by the changes since its version, if that version is in the database's history.
async fn resume_from_copy(
    follower: &RulesFollower,
    gate: &Arc<Gate>,
    db: &RulesDb,
    applied: Version,
) -> Result<Version, DbError> {
    let last = follower.state().copy_position;
    if local_copy::is_in_history(db, applied, last).await? {
        return catch_up(follower, gate, db, applied).await;
    }
    tracing::warn!(
        "the history of the rules database differs from that of the local copy: reading everything"
    );
    load::load(follower, gate, db).await
}

/// Applies the changes since a version.
async fn catch_up(
    follower: &RulesFollower,
    gate: &Arc<Gate>,
    db: &RulesDb,
    mut applied: Version,
) -> Result<Version, DbError> {
    loop {
        match db.changes_since(applied, CHANGES_PAGE).await? {
            ChangeFeed::Diverged => {
                tracing::warn!(
                    "the history of the rules database differs from what this node has applied: reading everything"
                );
                return load::load(follower, gate, db).await;
            }
            ChangeFeed::Changes(changes) if changes.is_empty() => return Ok(applied),
            ChangeFeed::Changes(changes) => {
                let next = contiguous_changes(applied, changes);
                let Some(last) = next.last().map(|change| change.version) else { return Ok(applied) };
                follower.changes_since_trim.fetch_add(next.len() as u64, Ordering::Relaxed);
                if let Some(copy) = &follower.copy {
                    copy.push_changes(applied, &next);
                }
                apply::apply_changes(follower, gate, next);
                applied = last;
                follower.record_version(applied);
            }
        }
    }
}

/// The changes that directly follow a version, without gaps. Changes that were applied already are skipped; those
/// behind a gap are left for the next read.
pub(super) fn contiguous_changes(applied: Version, mut changes: Vec<ItemChange>) -> Vec<ItemChange> {
    changes.sort_by_key(|change| change.version);
    let mut last = applied;
    changes.retain(|change| {
        let follows = change.version > last && change.version.number() == last.number() + 1;
        if follows {
            last = change.version;
        }
        follows
    });
    changes
}

/// Removes expired bans and old entries of the log, a few at a time.
async fn cleanup_loop(follower: &RulesFollower, gate: &Gate) {
    follower.first_version().await;
    let mut ticks = interval(CLEANUP_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        // A bulk import is likely to be over by now.
        if follower.changes_since_trim.swap(0, Ordering::Relaxed) >= TRIM_AFTER_CHANGES {
            let compact_memory = || {
                allocator::trim();
                allocator::use_huge_pages();
            };
            tokio::task::spawn_blocking(compact_memory).await.ok();
        }
        let Some(db) = follower.db.get() else { continue };
        // By then they have expired on every node's clock: a ban that is removed earlier would count as lifted.
        let expired_before = || gate.now() - MAX_CLOCK_SKEW;
        while db
            .remove_expired(expired_before(), CLEANUP_BATCH)
            .await
            .is_ok_and(|removed| removed == CLEANUP_BATCH)
        {}
        let AuditConfig { keep, automatic_bans } = follower.audit;
        let keep_after = || gate.now() - keep;
        while db.prune_log(keep_after(), CLEANUP_BATCH).await.is_ok_and(|removed| removed == CLEANUP_BATCH) {}
        let keep_after = || gate.now() - automatic_bans;
        while db
            .prune_automatic_bans(keep_after(), MAX_CHANGES_AFTER_BAN, CLEANUP_BATCH)
            .await
            .is_ok_and(|removed| removed == CLEANUP_BATCH)
        {}
    }
}

/// Checks whether the database is writable, and how far the replica that is read lags behind.
async fn watch_access(follower: &RulesFollower) {
    loop {
        let Some(db) = follower.db.get() else {
            sleep(RETRY_DELAY).await;
            continue;
        };
        follower.record_access(db.access().await);
        sleep(ACCESS_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_stores::rules::ItemId;

    fn change(timeline: u32, number: u64) -> ItemChange {
        let version = Version::new(timeline, number);
        ItemChange { item: ItemId::rule("a"), version, previous: None, text: None }
    }

    #[test]
    fn only_contiguous_changes_are_applied() {
        let applied = Version::new(1, 5);
        let numbers = |changes: Vec<ItemChange>| -> Vec<_> {
            contiguous_changes(applied, changes).iter().map(|change| change.version.number()).collect()
        };
        assert_eq!(numbers(vec![change(1, 7), change(1, 6), change(1, 6), change(1, 4)]), [6, 7]);
        assert_eq!(numbers(vec![change(1, 7), change(1, 8)]), [0; 0], "the one between is missing");
        assert_eq!(numbers(vec![change(2, 6), change(2, 7)]), [6, 7], "after a promotion");
    }
}
