//! Automatic bans that were lifted on another node: the database of this node may still have them.

use tollgate::Time;
use tollgate::internal::ban::BanSource;
use tollgate::internal::identity::Key;
use tollgate_stores::rules::{Author, DbError, Edit, ItemId, ItemKind, Precondition, RulesDb, parse_ban};

use crate::rules_follower::RulesFollower;

/// Bound on lifts that are not yet removed from the database.
const MAX_PENDING: usize = 10_000;

impl RulesFollower {
    /// Queues the removal of an automatic ban that would have ended at `until`.
    pub fn queue_ban_removal(&self, key: Key, until: Time) {
        let lifted = &mut self.state().lifted_bans;
        if lifted.len() < MAX_PENDING {
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
    let is_lifted =
        |ban: tollgate::internal::ban::Ban| ban.source == BanSource::Automatic && ban.until <= until;
    if !parse_ban(&stored.text).is_ok_and(is_lifted) {
        return Ok(());
    }
    let author = Author { name: Author::AUTOMATIC.to_owned(), at: now };
    let removed =
        db.edit(author, vec![Edit::delete(stored.item, Precondition::AtVersion(stored.version))]).await;
    removed.map(|_| ())
}
