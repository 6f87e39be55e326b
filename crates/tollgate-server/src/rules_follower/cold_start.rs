//! A start while the database cannot be reached: from the local copy, or by the setting `on_rules_error`.

use std::sync::Arc;
use std::time::Duration;

use tollgate_stores::rules::local_copy::CopyError;
use tollgate_stores::rules::{DbError, RulesDb};

use crate::config::OnRulesError;
use crate::gate::Gate;
use crate::rules_follower::local_copy::run_blocking;
use crate::rules_follower::{CopyStatus, RulesFollower, load};

/// How long a start waits for the database if there is a copy to start from.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);

/// Opens the database; a start with a copy waits only [`OPEN_TIMEOUT`].
pub(super) async fn open(follower: &RulesFollower) -> Result<&RulesDb, DbError> {
    let has_copy = follower.copy.as_ref().is_some_and(|copy| copy.path().exists());
    if follower.is_ready() || !has_copy {
        return follower.open().await;
    }
    let timed_out =
        || DbError::Unreadable { location: follower.name.clone(), why: "no answer in time".to_owned() };
    tokio::time::timeout(OPEN_TIMEOUT, follower.open()).await.unwrap_or_else(|_| Err(timed_out()))
}

/// Puts the local copy in force, if there is a complete one; returns how the start continues.
pub(super) async fn without_database(follower: &RulesFollower, gate: &Arc<Gate>) -> String {
    match start_from_copy(follower, gate).await {
        Ok(outcome) => outcome,
        Err(error) => {
            if follower.copy.is_some() {
                follower.record_copy(None, Some(&error));
            }
            let what = match follower.on_error {
                OnRulesError::Closed => {
                    "the listeners stay closed until its rules are there (on_rules_error: closed)"
                }
                OnRulesError::Open => "requests pass without its rules (on_rules_error: open)",
            };
            match follower.copy {
                Some(_) => format!("{error}: {what}"),
                None => what.to_owned(),
            }
        }
    }
}

async fn start_from_copy(follower: &RulesFollower, gate: &Arc<Gate>) -> Result<String, CopyError> {
    let writer = follower.copy.as_ref().ok_or(CopyError::Missing)?;
    let copy = writer.open().await?;
    let verified = run_blocking(move || {
        let copy = copy.verified()?;
        Ok((copy.past()?, copy))
    });
    let (past, verified) = writer.quarantine_if_damaged(verified.await)?;
    let copy = CopyStatus::of(verified.copy());
    let last_change = verified.copy().last_change();
    let read =
        move |each: load::BatchSink| verified.load(each).map_err(|error| DbError::Corrupt(error.to_string()));
    let version = load::load_from(follower, gate, "local copy", past, read).await;
    let version = version.map_err(|error| CopyError::Unusable(error.to_string()))?;
    follower.started_from_copy(version, copy, last_change);
    let age = copy.age(gate.now()).as_secs();
    Ok(format!("started from the local copy, version {version}, which was confirmed {age} s ago"))
}
