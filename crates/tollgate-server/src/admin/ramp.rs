//! `/v1/ramp`: the ramp of a guarded apply, and its end by an operator.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};
use tollgate::internal::time::calendar::rfc3339;
use tollgate::internal::time::format_duration;
use tollgate_stores::rules::{
    Author, DbError, Edit, ItemChange, ItemId, Precondition, RampRow, RampWrite, RuleText, RulesDb, Version,
};

use crate::admin::edit::{EditOptions, db_problem};
use crate::admin::request::AdminRequest;
use crate::connection::FullResponse;
use crate::ramp::{self, LEASE, RampGuard, RampPhase, RampProgress, RampSetting, STEPS};
use crate::response::{self, ProblemDetails};

/// An end that another node overtakes is tried again this often.
const END_TRIES: usize = 5;
const END_RETRY_DELAY: Duration = Duration::from_millis(200);
/// How long a response waits until its change is in force on this node.
const APPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// The guard of an apply.
pub struct GuardTerms {
    pub guard: RampGuard,
    pub duration: Duration,
}

impl GuardTerms {
    /// From `?guard=denied<1%&for=10m`.
    pub fn parse(guard: Option<&str>, duration: Option<&str>) -> Result<Option<GuardTerms>, ProblemDetails> {
        let (guard, duration) = match (guard, duration) {
            (None, None) => return Ok(None),
            (Some(guard), Some(duration)) => (guard, duration),
            (Some(_), None) => {
                return Err(ProblemDetails::bad_field("for", "'guard' needs 'for', such as 10m"));
            }
            (None, Some(_)) => {
                return Err(ProblemDetails::bad_field("guard", "'for' needs 'guard', such as denied<1%"));
            }
        };
        let guard = RampGuard::parse(guard).map_err(|why| ProblemDetails::bad_field("guard", why))?;
        let duration =
            tollgate::internal::time::parse_duration(duration).and_then(RampProgress::check_duration);
        let duration = duration.map_err(|why| ProblemDetails::bad_field("for", why))?;
        Ok(Some(GuardTerms { guard, duration }))
    }
}

pub async fn show(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [] = call.parameters([])?;
    let db = call.rules_follower()?.db().map_err(db_problem)?;
    let ramp = current(db).await.map_err(db_problem)?;
    Ok(response::json(StatusCode::OK, &json!({ "ramp": ramp })))
}

/// Reverts the apply.
pub async fn stop(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    end(call, RampPhase::RolledBack, "stopped by").await
}

/// Enforces the rules as written, without waiting for the remaining steps.
pub async fn finish(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    end(call, RampPhase::Finished, "ended early by").await
}

async fn end(call: AdminRequest, phase: RampPhase, how: &str) -> Result<FullResponse, ProblemDetails> {
    let terms = EditOptions::of(&call)?;
    let follower = call.rules_follower()?;
    let db = follower.db().map_err(db_problem)?;
    for _ in 0..END_TRIES {
        let row = db.ramp().await.map_err(db_problem)?;
        let running = row.and_then(|row| Some((RampProgress::parse(&row.state)?, row)));
        let has_setting = db.get(ItemId::ramp()).await.map_err(db_problem)?.is_some();
        let running = running.filter(|(progress, _)| progress.phase == RampPhase::Running && has_setting);
        let Some((progress, row)) = running else {
            return Err(ProblemDetails::new(StatusCode::NOT_FOUND, "no ramp is under way"));
        };
        let why = format!("{how} {}", call.caller);
        let shown = progress_json(db, &row, &progress.ended(phase, why.clone())).await.map_err(db_problem)?;
        if terms.dry_run {
            return Ok(response::json(StatusCode::OK, &json!({ "dry_run": true, "ramp": shown })));
        }
        let author = Author::new(&*call.caller, call.gate().now());
        match ramp::end(db, author, &row, &progress, phase, &why).await {
            Ok(version) => {
                follower.wait_for_version(version.unwrap_or_default(), APPLY_TIMEOUT).await;
                return Ok(response::json(StatusCode::OK, &json!({ "ramp": shown })));
            }
            Err(DbError::RampMoved | DbError::Conflict { .. }) => tokio::time::sleep(END_RETRY_DELAY).await,
            Err(error) => return Err(db_problem(error)),
        }
    }
    Err(db_problem(DbError::RampMoved))
}

/// Writes the planned changes of an apply, and starts their ramp, in one transaction.
pub async fn start(
    call: &AdminRequest,
    terms: &GuardTerms,
    planned: &[(ItemChange, Option<String>)],
) -> Result<Value, ProblemDetails> {
    let follower = call.rules_follower()?;
    let db = follower.db().map_err(db_problem)?;
    let now = call.gate().now();
    let id = format!("{:x}", now.nanos());
    let guard = terms.guard.to_string();
    let setting = RampSetting::new(id.clone(), STEPS[0], guard, planned)
        .map_err(|why| ProblemDetails::bad_field("guard", why))?;
    let policy = call.gate().engine.policy();
    let kept = setting.rules.iter().filter(|rule| rule.keeps_before());
    if let Some(taken) = kept.map(|rule| rule.candidate_id()).find(|id| policy.rule(id).is_some()) {
        let detail = format!("the ramp would need the id {taken}, which a rule has: rename that rule");
        return Err(ProblemDetails::new(StatusCode::CONFLICT, detail));
    }
    let mut edits = vec![Edit::ramp(setting.to_text(), Precondition::Absent)];
    for (change, _) in planned {
        let expected = change.previous.map_or(Precondition::Absent, Precondition::AtVersion);
        edits.push(match &change.text {
            Some(text) => Edit::rule(RuleText::parse(text)?, expected),
            None => Edit::delete(change.item.clone(), expected),
        });
    }
    let rules = setting.rules.iter().map(|rule| rule.id.clone()).collect();
    let progress = RampProgress::start(&terms.guard, terms.duration, &call.caller, rules, now);
    let row = RampRow {
        id,
        revision: 0,
        change: Version::ZERO,
        owner: follower.node.clone(),
        lease_until: now + LEASE,
        state: progress.to_text(),
    };
    let steps = STEPS.map(|percent| percent.to_string()).join(", ");
    let duration = format_duration(terms.duration);
    let note = format!("guarded by {}, ramped over {duration}: {steps} %", terms.guard);
    let author = Author::new(&*call.caller, now).with_note(note);
    let changes = db.edit_ramp(author, edits, RampWrite::Start(row.clone())).await.map_err(start_problem)?;
    let change = changes.last().map(|change| change.version).unwrap_or_default();
    follower.wait_for_version(change, APPLY_TIMEOUT).await;
    progress_json(db, &RampRow { change, ..row }, &progress).await.map_err(db_problem)
}

fn start_problem(error: DbError) -> ProblemDetails {
    match error {
        DbError::Exists { item, .. } if item == ItemId::ramp() => {
            let detail = "another ramp is under way: wait for its end, or stop it (tollgate rules ramp stop)";
            ProblemDetails::new(StatusCode::CONFLICT, detail)
        }
        error => db_problem(error),
    }
}

/// The last ramp, as JSON; null if there was none.
async fn current(db: &RulesDb) -> Result<Value, DbError> {
    let Some(row) = db.ramp().await? else { return Ok(Value::Null) };
    let Some(progress) = RampProgress::parse(&row.state) else { return Ok(Value::Null) };
    // An operator may have reverted the apply as any other change, which removes the setting only.
    let is_reverted = progress.phase == RampPhase::Running && db.get(ItemId::ramp()).await?.is_none();
    let progress = match is_reverted {
        true => progress.ended(RampPhase::RolledBack, "its apply was reverted".to_owned()),
        false => progress,
    };
    progress_json(db, &row, &progress).await
}

async fn progress_json(db: &RulesDb, row: &RampRow, progress: &RampProgress) -> Result<Value, DbError> {
    let counts = progress.in_step(&ramp::totals(db, &row.id).await?);
    let is_running = progress.phase == RampPhase::Running;
    Ok(json!({
        "change": row.change.to_string(),
        "state": progress.phase.name(),
        "reason": progress.reason,
        "who": progress.who,
        "guard": progress.guard().map(|guard| guard.to_string()).ok(),
        "for": format_duration(progress.duration()),
        "percent": progress.percent(),
        "steps": STEPS,
        "started": rfc3339(progress.started_at()),
        "next_step": is_running.then(|| rfc3339(progress.step_ends_at())),
        "decided": counts.decided,
        "denied": counts.denied,
        "denied_percent": (counts.denied_percent() * 100.0).round() / 100.0,
        "clients": counts.clients,
        "rules": progress.rules,
    }))
}
