//! Many rules at once: all of them or, if one line is bad, none.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tollgate::document::{self, Problems};
use tollgate::policy::{self, Draft};
use tollgate_stores::rules::{
    Change, DbError, Edit, Expected, Item, Kind, Page, ReadRule, Version, rules_of,
};

use crate::admin::call::{self, Call};
use crate::admin::edit::{failed, precondition};
use crate::admin::rules::raw;
use crate::answer::{self, Problem};
use crate::connection::Answer;
use crate::gate::Gate;
use crate::rulebook::Rulebook;

pub(in crate::admin) const MAX_IMPORT_BYTES: usize = 512 << 20;
/// How long the body of an import may take to arrive.
pub(in crate::admin) const ARRIVES_WITHIN: Duration = Duration::from_secs(300);
/// Ids that an answer names, and rules that a diff shows.
const MAX_NAMED: usize = 100;
const MAX_DIFF: usize = 1_000;
/// Rules of the database looked at in one go.
const STEP: usize = 10_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// What is not in the text stays.
    Merge,
    /// What is not in the text goes.
    Replace,
}

/// `?mode=merge|replace&dry_run=true`
pub async fn import(mut call: Call) -> Result<Answer, Problem> {
    let [mode, dry_run] = call.parameters(["mode", "dry_run"])?;
    let mode = call::choice("mode", mode.as_deref(), [("merge", Mode::Merge), ("replace", Mode::Replace)])?;
    let dry_run = call::flag("dry_run", dry_run.as_deref())?;
    let rulebook = Arc::clone(call.rulebook()?);
    let admin = Arc::clone(&call.admin);
    let _turn = admin.importing.try_lock().map_err(|_| busy())?;
    let body = call.body_within(MAX_IMPORT_BYTES, ARRIVES_WITHIN).await?;
    let checking = (Arc::clone(&admin.gate), Arc::clone(&rulebook));
    let edits = spawn_blocking(move || checked(&checking.0, &checking.1, &body, mode)).await;
    let mut edits =
        edits.map_err(|_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the import has failed"))??;
    if mode == Mode::Replace {
        edits.extend(deletions(&rulebook, &edits).await?);
    }
    let total = edits.len();
    let db = rulebook.db().map_err(failed)?;
    if dry_run {
        let planned = db.preview(edits).await.map_err(meanwhile)?;
        let version = db.version().await.map_err(failed)?;
        let mut told = told(planned.iter().map(|(change, _)| change), total, version);
        told["dry_run"] = true.into();
        told["diff"] = planned.iter().take(MAX_DIFF).map(difference).collect();
        return Ok(answer::json(StatusCode::OK, &told));
    }
    let changes = rulebook.edit(&call.who, edits, admin.gate.now()).await.map_err(meanwhile)?;
    tracing::info!(changes = changes.len(), who = call.who, "rules imported");
    let version = match changes.last() {
        Some(last) => last.version,
        None => db.version().await.map_err(failed)?,
    };
    Ok(answer::json(StatusCode::OK, &told(changes.iter(), total, version)))
}

fn difference((change, before): &(Change, Option<String>)) -> Value {
    let text = |text: Option<&str>| text.map(raw);
    json!({ "id": change.item.name, "before": text(before.as_deref()), "after": text(change.text.as_deref()) })
}

pub(in crate::admin) fn busy() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "another import is under way: try again when it is done")
}

/// Somebody else has deleted what a replacement was to delete.
fn meanwhile(error: DbError) -> Problem {
    match error {
        DbError::Missing { item, .. } => {
            precondition(format!("{item} was deleted meanwhile: try again"), None)
        }
        error => failed(error),
    }
}

/// The edits that a text asks for, if every rule of it is valid and could be in force.
fn checked(gate: &Gate, rulebook: &Rulebook, body: &Bytes, mode: Mode) -> Result<Vec<Edit>, Problem> {
    let rules = rules_of(call::text(body)?)?;
    let (policy, now) = (gate.engine.policy(), gate.now());
    let mut draft = policy.draft();
    if mode == Mode::Replace {
        let kept: HashSet<&str> = rules.iter().map(|read| read.text.id()).collect();
        let added = policy.rules().iter().filter(|rule| rule.is_added());
        for rule in added.filter(|rule| !kept.contains(rule.id.as_str())) {
            draft.make(policy::Change::Remove(rule.id.clone()), now).ok(); // to go is always possible
        }
    }
    let (mut problems, mut edits) = (Problems::new(), Vec::with_capacity(rules.len()));
    for (n, ReadRule { place, rule, text }) in rules.into_iter().enumerate() {
        let misfit = rulebook.refusal(draft.policy(), &rule).or_else(|| misfit(&mut draft, rule, now));
        if let Some(why) = misfit {
            problems.push(document::Problem::new(Some(place), &format!("rules[{n}]"), why));
        }
        edits.push(Edit::rule(text, Expected::Anything));
    }
    Ok(problems.or(edits)?)
}

fn misfit(draft: &mut Draft, rule: tollgate::rule::Rule, now: tollgate::Time) -> Option<String> {
    draft.make(policy::Change::Put(rule), now).err().map(|error| error.to_string())
}

/// Deletes of the database what some edits do not mention.
async fn deletions(rulebook: &Rulebook, edits: &[Edit]) -> Result<Vec<Edit>, Problem> {
    let kept: HashSet<&Item> = edits.iter().map(Edit::item).collect();
    let (mut deletions, mut after) = (Vec::new(), String::new());
    loop {
        let page = Page { kind: Kind::Rule, prefix: String::new(), after, limit: STEP };
        let found = rulebook.db().map_err(failed)?.page(page).await.map_err(failed)?;
        let Some(last) = found.last() else { return Ok(deletions) };
        after = last.item.name.to_string();
        let gone = found.into_iter().map(|stored| stored.item).filter(|item| !kept.contains(item));
        deletions.extend(gone.map(|item| Edit::delete(item, Expected::Anything)));
    }
}

/// What has changed, in numbers and by its first names, up to a version.
fn told<'c>(changes: impl Iterator<Item = &'c Change> + Clone, edits: usize, version: Version) -> Value {
    let mut told = counted(changes.clone(), edits);
    told["version"] = version.to_string().into();
    told["changes"] = changes.take(MAX_NAMED).map(|change| &*change.item.name).collect();
    told
}

/// How many things have come, changed and gone, of so many edits.
pub(in crate::admin) fn counted<'c>(changes: impl Iterator<Item = &'c Change>, edits: usize) -> Value {
    let (mut created, mut changed, mut deleted) = (0, 0, 0);
    for change in changes {
        match (&change.text, change.previous) {
            (None, _) => deleted += 1,
            (Some(_), None) => created += 1,
            (Some(_), Some(_)) => changed += 1,
        }
    }
    let unchanged = edits - created - changed - deleted;
    json!({ "created": created, "changed": changed, "deleted": deleted, "unchanged": unchanged })
}
