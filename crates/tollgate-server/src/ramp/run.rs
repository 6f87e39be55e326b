//! Runs the ramp of the rules database, on the node that holds its lease.
//!
//! The lease is dated by the clocks of the nodes, so skew delays a takeover or lets two nodes try at once. Every write
//! names the revision that it is based on, so of two that try one fails.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tollgate_stores::rules::{
    Author, ChangeSet, DbError, Edit, ItemId, OnConflict, Precondition, RampRow, RampWrite, RulesDb, Version,
};

use crate::gate::Gate;
use crate::ramp::meter::RampMeter;
use crate::ramp::progress::RampAction;
use crate::ramp::{AUTHOR, RampCounts, RampInForce, RampPhase, RampProgress, RampSetting};
use crate::rules_follower::RulesFollower;

const TICK: Duration = Duration::from_secs(1);
/// How long a ramp waits for a node that does not renew its lease.
pub const LEASE: Duration = Duration::from_secs(5);
/// A lease that lasts longer than this is not renewed yet.
const RENEW_BELOW: Duration = Duration::from_secs(3);

/// A random name for this process.
pub fn node_name() -> String {
    format!("{:016x}", RandomState::new().hash_one(std::process::id()))
}

/// Publishes counts, and advances the ramp while this node holds the lease. Runs for ever.
pub async fn run(follower: &RulesFollower, gate: &Gate) {
    let mut meter = RampMeter::default();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(ramp) = follower.ramp() else { continue };
        match tick(follower, gate, &ramp, &mut meter).await {
            // Another node was faster, or an operator has ended the ramp: the feed will tell.
            Ok(()) | Err(DbError::RampMoved | DbError::Conflict { .. }) => {}
            Err(error) => tracing::warn!("the ramp of the rules waits: {error}"),
        }
    }
}

async fn tick(
    follower: &RulesFollower,
    gate: &Gate,
    ramp: &RampInForce,
    meter: &mut RampMeter,
) -> Result<(), DbError> {
    let db = follower.db()?;
    let counts = serde_json::to_string(&meter.update(gate, ramp)).expect("plain numbers");
    db.put_ramp_counts(ramp.setting.id.clone(), follower.node.clone(), counts).await?;
    let Some(row) = db.ramp().await?.filter(|row| row.id == ramp.setting.id) else { return Ok(()) };
    let Some(progress) = RampProgress::parse(&row.state) else { return Ok(()) };
    let now = gate.now();
    let is_own = row.owner == follower.node;
    if progress.phase != RampPhase::Running || !is_own && row.lease_until > now {
        return Ok(());
    }
    if !is_own {
        tracing::info!(ramp = row.id, "this node takes over the ramp of the rules");
    }
    let lease = RampRow { owner: follower.node.clone(), lease_until: now + LEASE, ..row.clone() };
    let totals = totals(db, &row.id).await?;
    let author = Author::new(AUTHOR, now);
    if ramp.rules().next().is_none() {
        let why = "all its rules were edited";
        return end(db, author, &row, &progress, RampPhase::Finished, why).await.map(drop);
    }
    match progress.next_action(now, &totals) {
        RampAction::Wait => {
            if !is_own || row.lease_until.since(now) < RENEW_BELOW {
                db.edit_ramp(author, Vec::new(), RampWrite::Update(lease)).await?;
            }
            Ok(())
        }
        RampAction::Advance(next) => {
            let measured = progress.in_step(&totals);
            let note = format!("{} % after {} %: {measured}", next.percent(), progress.percent());
            tracing::info!(ramp = row.id, "ramp: {note}");
            let edits = advance(db, ramp, next.percent()).await?;
            let row = RampRow { state: next.to_text(), ..lease };
            db.edit_ramp(author.with_note(note), edits, RampWrite::Update(row)).await.map(drop)
        }
        RampAction::Finish => {
            let guard = &ramp.setting.guard;
            let why = match (totals.decided, progress.in_step(&totals)) {
                (0, nothing) => format!("{nothing}, so the guard {guard} has shown nothing"),
                (_, measured) => format!("the guard {guard} held, in the last step {measured}"),
            };
            end(db, author, &row, &progress, RampPhase::Finished, &why).await.map(drop)
        }
        RampAction::RollBack(why) => {
            end(db, author, &row, &progress, RampPhase::RolledBack, &why).await.map(drop)
        }
    }
}

/// The counts of all nodes since the ramp began.
pub async fn totals(db: &RulesDb, ramp: &str) -> Result<RampCounts, DbError> {
    let mut totals = RampCounts::default();
    for counts in db.ramp_counts(ramp.to_owned()).await? {
        totals.add(&serde_json::from_str(&counts).unwrap_or_default());
    }
    Ok(totals)
}

/// The edit of the setting for a new percentage, without the rules that were edited since.
async fn advance(db: &RulesDb, ramp: &RampInForce, percent: u8) -> Result<Vec<Edit>, DbError> {
    let stored = db.get(ItemId::ramp()).await?.ok_or(DbError::RampMoved)?;
    if RampSetting::parse(&stored.text).is_ok_and(|setting| setting.id != ramp.setting.id) {
        return Err(DbError::RampMoved);
    }
    let mut setting = ramp.setting.at_percent(percent);
    setting.rules = ramp.rules().cloned().collect();
    Ok(vec![Edit::ramp(setting.to_text(), Precondition::AtVersion(stored.version))])
}

/// Ends a ramp: the rules are enforced as written, or the whole apply is reverted, in one change. Returns its version.
pub async fn end(
    db: &RulesDb,
    author: Author,
    row: &RampRow,
    progress: &RampProgress,
    phase: RampPhase,
    why: &str,
) -> Result<Option<Version>, DbError> {
    let ended = progress.ended(phase, why.to_owned());
    let write = RampWrite::Update(RampRow { state: ended.to_text(), ..row.clone() });
    if phase == RampPhase::RolledBack {
        let set = set_of(db, row).await?;
        let author = author.with_note(format!("ramp rolled back: {why}"));
        tracing::warn!(ramp = row.id, change = %row.change, "ramp rolled back: {why}");
        let reverted = db.rollback_set(author, set, OnConflict::Skip, Some(write)).await?;
        return Ok(reverted.summary.version);
    }
    let stored = db.get(ItemId::ramp()).await?.ok_or(DbError::RampMoved)?;
    let edits = vec![Edit::delete(stored.item, Precondition::AtVersion(stored.version))];
    tracing::info!(ramp = row.id, change = %row.change, "ramp finished: {why}");
    let changes = db.edit_ramp(author.with_note(format!("ramp finished: {why}")), edits, write).await?;
    Ok(changes.last().map(|change| change.version))
}

/// The apply that the ramp belongs to.
async fn set_of(db: &RulesDb, row: &RampRow) -> Result<ChangeSet, DbError> {
    let logged = db.logged(row.change).await?.ok_or(DbError::UnknownVersion(row.change))?;
    logged.set.ok_or(DbError::UnknownVersion(row.change))
}
