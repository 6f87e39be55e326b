//! Imports rules: all of them, or none if a line is invalid.

use std::env::temp_dir;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use serde_json::{Value, json};
use tollgate::internal::document::{self, Problems};
use tollgate::internal::policy::{self, PolicyDraft};
use tollgate_stores::rules::{
    DbError, Edit, EditSummary, ItemChange, ItemKind, PageQuery, Precondition, RuleSpool, RulesDb,
    SpooledRule, Version, for_each_rule,
};

use crate::admin::edit::{db_problem, precondition_failed};
use crate::admin::guarded_work::run_guarded;
use crate::admin::ramp::{self, GuardTerms};
use crate::admin::request::{self, AdminRequest};
use crate::admin::rules::stored_text_json;
use crate::allocator;
use crate::connection::FullResponse;
use crate::gate::Gate;
use crate::ramp::MAX_RAMPED_RULES;
use crate::response::{self, ProblemDetails};
use crate::rules_follower::{self, RulesFollower};

pub(in crate::admin) const MAX_IMPORT_BYTES: usize = 512 << 20;
/// How long the body of an import may take to arrive.
pub(in crate::admin) const IMPORT_BODY_TIMEOUT: Duration = Duration::from_secs(300);
/// Rules that a diff names.
const MAX_DIFF: usize = 1_000;
/// Rules of the database read per batch.
const BATCH_RULES: usize = 10_000;

/// A change, with the text that it would replace.
type PreviewedChange = (ItemChange, Option<String>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum ImportMode {
    /// Rules that are not in the text stay.
    Merge,
    /// Rules that are not in the text are deleted.
    Replace,
}

/// `?mode=merge|replace&dry_run=true&guard=denied<1%&for=10m`
///
/// The text is in memory once, and only until its rules are spooled to disk, sorted by id. From there they are checked
/// on a draft of the policy, which is dropped, and written in one transaction. So memory holds either the text or a
/// draft.
pub async fn import(mut call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [mode, dry_run, guard, duration] = call.parameters(["mode", "dry_run", "guard", "for"])?;
    let ramp_terms = GuardTerms::parse(guard.as_deref(), duration.as_deref())?;
    let mode = request::choice(
        "mode",
        mode.as_deref(),
        [("merge", ImportMode::Merge), ("replace", ImportMode::Replace)],
    )?;
    let dry_run = request::flag("dry_run", dry_run.as_deref())?;
    let follower = Arc::clone(call.rules_follower()?);
    let admin = Arc::clone(&call.admin);
    let guard = Arc::clone(&admin.importing).try_lock_owned().map_err(|_| busy())?;
    let body = call.read_slow_body(MAX_IMPORT_BYTES, IMPORT_BODY_TIMEOUT).await?;
    let checking = (Arc::clone(&admin.gate), Arc::clone(&follower));
    let checked = run_guarded(guard, move || {
        let (gate, follower) = checking;
        let spool = spool_rules(follower.folder(), body)?;
        check(&gate, &follower, &spool, mode)?;
        allocator::trim();
        Ok::<_, ProblemDetails>(spool)
    });
    let failed = |_| ProblemDetails::new(StatusCode::INTERNAL_SERVER_ERROR, "the import has failed");
    let (spool, _guard) = checked.await.map_err(failed)?;
    let spool = spool?;
    let deletions = match mode {
        ImportMode::Merge => Vec::new(),
        ImportMode::Replace => deletions(&follower, &spool).await?,
    };
    let puts = spool.rules().map_err(spool_problem)?.map(|rule| match rule {
        Ok(rule) => Ok(Edit::rule(rule.text, Precondition::Any)),
        Err(error) => Err(DbError::Unwritable { location: "the import".to_owned(), why: error.to_string() }),
    });
    let edits = puts.chain(deletions.into_iter().map(Ok));
    if dry_run {
        return preview(&follower, edits).await;
    }
    if let Some(terms) = ramp_terms {
        return apply_guarded(&call, &terms, edits).await;
    }
    let edited = follower.edit_all(&call.caller, edits, admin.gate.now()).await.map_err(conflict_problem)?;
    tracing::info!(changes = edited.changes(), caller = call.caller, "rules imported");
    let version = match edited.version {
        Some(version) => version,
        None => follower.db().map_err(db_problem)?.version().await.map_err(db_problem)?,
    };
    Ok(response::json(StatusCode::OK, &import_json(&edited, version)))
}

/// Writes the changes that edits make, and starts their ramp. The changes are few; the edits may be many.
async fn apply_guarded(
    call: &AdminRequest,
    terms: &GuardTerms,
    edits: impl Iterator<Item = Result<Edit, DbError>>,
) -> Result<FullResponse, ProblemDetails> {
    let db = call.rules_follower()?.db().map_err(db_problem)?;
    // One more than may be ramped: the setting is then refused.
    let (edited, planned) = preview_all(db, edits, MAX_RAMPED_RULES + 1).await?;
    let ramp = match planned.is_empty() {
        true => Value::Null,
        false => ramp::start(call, terms, &planned).await?,
    };
    tracing::info!(changes = edited.changes(), caller = call.caller, "rules imported with a guard");
    let mut answer = import_json(&edited, db.version().await.map_err(db_problem)?);
    if let Some(version) = ramp["change"].as_str() {
        answer["version"] = version.into();
    }
    answer["ramp"] = ramp;
    Ok(response::json(StatusCode::OK, &answer))
}

async fn preview(
    follower: &RulesFollower,
    edits: impl Iterator<Item = Result<Edit, DbError>>,
) -> Result<FullResponse, ProblemDetails> {
    let db = follower.db().map_err(db_problem)?;
    let (edited, first) = preview_all(db, edits, MAX_DIFF).await?;
    let differences: Vec<Value> = first.iter().map(difference).collect();
    let version = db.version().await.map_err(db_problem)?;
    let mut answer = import_json(&edited, version);
    answer["dry_run"] = true.into();
    answer["diff"] = differences.into();
    Ok(response::json(StatusCode::OK, &answer))
}

/// The summary of the changes that edits would make, and the first ones. Only a batch of the edits is in memory.
async fn preview_all(
    db: &RulesDb,
    mut edits: impl Iterator<Item = Result<Edit, DbError>>,
    max_listed: usize,
) -> Result<(EditSummary, Vec<PreviewedChange>), ProblemDetails> {
    let mut edited = EditSummary::default();
    let mut first = Vec::new();
    loop {
        let batch: Vec<Edit> =
            edits.by_ref().take(BATCH_RULES).collect::<Result<_, _>>().map_err(db_problem)?;
        if batch.is_empty() {
            return Ok((edited, first));
        }
        let count = batch.len();
        let changes = db.preview(batch).await.map_err(conflict_problem)?;
        edited.add(count, changes.iter().map(|(change, _)| change));
        first.extend(changes.into_iter().take(max_listed - first.len()));
    }
}

fn difference((change, before): &PreviewedChange) -> Value {
    let text = |text: Option<&str>| text.map(stored_text_json);
    json!({ "id": change.item.name, "before": text(before.as_deref()), "after": text(change.text.as_deref()) })
}

pub(in crate::admin) fn busy() -> ProblemDetails {
    ProblemDetails::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "another import is in progress: try again when it is done",
    )
}

/// Another edit has deleted a rule that a replacement was to delete.
fn conflict_problem(error: DbError) -> ProblemDetails {
    match error {
        DbError::Missing { item, .. } => {
            precondition_failed(format!("{item} was deleted meanwhile: try again"), None)
        }
        error => db_problem(error),
    }
}

/// Spools the rules of a text to disk; the text is dropped.
fn spool_rules(folder: &Path, body: Bytes) -> Result<RuleSpool, ProblemDetails> {
    let start = || RuleSpool::new(folder).or_else(|_| RuleSpool::new(&temp_dir()));
    let spool = for_each_rule(request::text(&body)?, start, |spool, rule| {
        if let Ok(open) = spool
            && let Err(error) = open.push(rule)
        {
            *spool = Err(error);
        }
    })?;
    spool.and_then(RuleSpool::finish).map_err(spool_problem)
}

fn spool_problem(error: io::Error) -> ProblemDetails {
    let why = format!("the rules cannot be written to a temporary file: {error}");
    ProblemDetails::new(StatusCode::INSUFFICIENT_STORAGE, why)
}

/// Whether every rule could be in force.
fn check(
    gate: &Gate,
    follower: &RulesFollower,
    spool: &RuleSpool,
    mode: ImportMode,
) -> Result<(), ProblemDetails> {
    let policy = gate.engine.policy();
    let now = gate.now();
    let mut draft = policy.trial();
    if mode == ImportMode::Replace {
        let mut added: Vec<_> = policy.rules().iter().filter(|rule| rule.is_added()).collect();
        added.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        let removed = not_in_spool(added, |rule| rule.id.as_str(), spool).map_err(spool_problem)?;
        for rule in removed {
            draft.apply(policy::PolicyChange::Remove(rule.id.clone()), now).ok(); // a removal always succeeds
        }
    }
    let mut problems = Problems::new();
    for spooled in spool.rules().map_err(spool_problem)? {
        let SpooledRule { number, position, text } = spooled.map_err(spool_problem)?;
        let why = match rules_follower::parse_rule(text.as_str()) {
            Ok(rule) => follower
                .unsupported_reason(draft.policy(), &rule)
                .or_else(|| draft_error(&mut draft, rule, now)),
            Err(problems) => Some(problems.to_string()),
        };
        if let Some(why) = why {
            problems.push(document::Problem::new(Some(position), &format!("rules[{number}]"), why));
        }
    }
    Ok(problems.or(())?)
}

/// The items, ordered by id, that are not in a spool.
fn not_in_spool<T>(things: Vec<T>, id: impl Fn(&T) -> &str, spool: &RuleSpool) -> io::Result<Vec<T>> {
    let mut spooled = spool.rules()?;
    let mut next = spooled.next().transpose()?;
    let mut missing = Vec::new();
    for thing in things {
        while next.as_ref().is_some_and(|rule| rule.text.id() < id(&thing)) {
            next = spooled.next().transpose()?;
        }
        if next.as_ref().is_none_or(|rule| rule.text.id() != id(&thing)) {
            missing.push(thing);
        }
    }
    Ok(missing)
}

fn draft_error(
    draft: &mut PolicyDraft,
    rule: tollgate::internal::rule::Rule,
    now: tollgate::Time,
) -> Option<String> {
    draft.apply(policy::PolicyChange::Put(rule), now).err().map(|error| error.to_string())
}

/// Edits that delete the database's rules that are not in a spool.
async fn deletions(follower: &RulesFollower, spool: &RuleSpool) -> Result<Vec<Edit>, ProblemDetails> {
    let mut items = Vec::new();
    let mut after = String::new();
    loop {
        let page = PageQuery { kind: ItemKind::Rule, prefix: String::new(), after, limit: BATCH_RULES };
        let found = follower.db().map_err(db_problem)?.page(page).await.map_err(db_problem)?;
        let Some(last) = found.last() else { break };
        after = last.item.name.to_string();
        items.extend(found.into_iter().map(|stored| stored.item));
    }
    // PostgreSQL may sort by another collation.
    items.sort_unstable();
    let removed = not_in_spool(items, |item| &item.name, spool).map_err(spool_problem)?;
    Ok(removed.into_iter().map(|item| Edit::delete(item, Precondition::Any)).collect())
}

/// The changes: their counts and the first names, up to a version.
fn import_json(edited: &EditSummary, version: Version) -> Value {
    json!({
        "created": edited.created, "changed": edited.changed, "deleted": edited.deleted,
        "unchanged": edited.unchanged, "version": version.to_string(), "changes": edited.first_names,
    })
}

/// The numbers of created, changed and deleted items of so many edits.
pub(in crate::admin) fn counted<'c>(changes: impl Iterator<Item = &'c ItemChange>, edits: usize) -> Value {
    let mut edited = EditSummary::default();
    edited.add(edits, changes);
    let EditSummary { created, changed, deleted, unchanged, .. } = edited;
    json!({ "created": created, "changed": changed, "deleted": deleted, "unchanged": unchanged })
}
