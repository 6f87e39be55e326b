//! Pending bans: automatic bans of this node that are not yet written to the rules database, from which other nodes
//! read them; and automatic bans that were lifted on another node, which this database may still have.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};
use tollgate::Time;
use tollgate::internal::ban::{Ban, BanSource};
use tollgate::internal::identity::Key;
use tollgate_stores::rules::{Author, DbError, Edit, ItemId, ItemKind, Precondition, RulesDb, parse_ban};

use crate::gate::Gate;
use crate::rules_follower::RulesFollower;

const WRITE_INTERVAL: Duration = Duration::from_millis(100);
/// Bans per write; during an attack there may be many.
const BATCH: usize = 1_000;
/// How long a stop waits for the last ones.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Bans not yet written. While the database is not writable they stay here, and are in force on this node.
#[derive(Default)]
pub(super) struct PendingBans(HashMap<Key, Ban>);

impl PendingBans {
    /// Runs for ever.
    pub(super) async fn run(&mut self, follower: &RulesFollower, gate: &Gate) {
        let mut ticks = interval(WRITE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.write(follower, gate).await;
        }
    }

    pub(super) async fn flush(&mut self, follower: &RulesFollower, gate: &Gate) {
        if timeout(FLUSH_TIMEOUT, self.write(follower, gate)).await.is_err() || !self.0.is_empty() {
            tracing::warn!(bans = self.0.len(), "automatic bans of this node are not in the rules database");
        }
        let edits = follower.pending_edits();
        if edits > 0 {
            tracing::warn!(
                edits,
                "edits that are in force on this node only will be written after its next start"
            );
        }
    }

    async fn write(&mut self, follower: &RulesFollower, gate: &Gate) {
        self.0.extend(gate.engine.take_pending_bans());
        let now = gate.now();
        // Bans that were lifted meanwhile are not written.
        let holds = |key: &Key, ban: &Ban| {
            gate.engine.find_ban(key.clone(), now).is_some_and(|known| known.until >= ban.until)
        };
        self.0.retain(|key, ban| holds(key, ban));
        let Some(db) = follower.db.get() else { return };
        follower.write_pending_edits(db, gate).await;
        self.write_to(db, now).await;
        follower.remove_lifted_bans(db, now).await;
    }

    async fn write_to(&mut self, db: &RulesDb, now: Time) {
        while !self.0.is_empty() {
            let batch: Vec<Key> = self.0.keys().take(BATCH).cloned().collect();
            let edits = batch.iter().map(|key| Edit::ban(key, &self.0[key], Precondition::Any));
            let author = Author::new(Author::AUTOMATIC, now);
            if let Err(error) = db.edit(author, edits.collect()).await {
                tracing::debug!(%error, "bans could not be written: they are retried");
                return;
            }
            batch.iter().for_each(|key| _ = self.0.remove(key));
        }
    }
}

/// Bound on lifts that are not yet removed from the database.
const MAX_LIFTED: usize = 10_000;

impl RulesFollower {
    /// Queues the removal of an automatic ban that would have ended at `until`.
    pub fn queue_ban_removal(&self, key: Key, until: Time) {
        let lifted = &mut self.state().lifted_bans;
        if lifted.len() < MAX_LIFTED {
            lifted.push_back((key, until));
        }
    }

    /// Removes lifted bans; while the database is not writable they stay queued.
    pub(super) async fn remove_lifted_bans(&self, db: &RulesDb, now: Time) {
        loop {
            let next = self.state().lifted_bans.front().cloned();
            let Some((key, until)) = next else { return };
            match remove(db, &key, until, now).await {
                Err(error) if error.is_transient() && until > now => return,
                _ => self.state().lifted_bans.pop_front(),
            };
        }
    }
}

async fn remove(db: &RulesDb, key: &Key, until: Time, now: Time) -> Result<(), DbError> {
    let Some(stored) = db.get(ItemId::new(ItemKind::Ban, key.to_string())).await? else { return Ok(()) };
    let is_lifted = |ban: Ban| ban.source == BanSource::Automatic && ban.until <= until;
    if !parse_ban(&stored.text).is_ok_and(is_lifted) {
        return Ok(());
    }
    let author = Author::new(Author::AUTOMATIC, now);
    let removed =
        db.edit(author, vec![Edit::delete(stored.item, Precondition::AtVersion(stored.version))]).await;
    removed.map(|_| ())
}
