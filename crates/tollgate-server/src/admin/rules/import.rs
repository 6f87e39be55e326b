//! Many rules at once: all of them or, if one line is bad, none.

use std::env::temp_dir;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tollgate::document::{self, Problems};
use tollgate::policy::{self, Draft};
use tollgate_stores::rules::{
    Change, DbError, Edit, Edited, Expected, Kind, Page, RuleSpool, Spooled, Version, each_rule,
};

use crate::admin::call::{self, Call};
use crate::admin::edit::{failed, precondition};
use crate::admin::rules::raw;
use crate::allocator;
use crate::answer::{self, Problem};
use crate::connection::Answer;
use crate::gate::Gate;
use crate::rulebook::{self, Rulebook};

pub(in crate::admin) const MAX_IMPORT_BYTES: usize = 512 << 20;
/// How long the body of an import may take to arrive.
pub(in crate::admin) const ARRIVES_WITHIN: Duration = Duration::from_secs(300);
/// Rules that a diff shows.
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
///
/// The text is held once, and only until its rules are on the disk, sorted by id. From there they are tried on a draft
/// of the policy, which is dropped, and written in one transaction. So the server holds the text or a draft at most.
pub async fn import(mut call: Call) -> Result<Answer, Problem> {
    let [mode, dry_run] = call.parameters(["mode", "dry_run"])?;
    let mode = call::choice("mode", mode.as_deref(), [("merge", Mode::Merge), ("replace", Mode::Replace)])?;
    let dry_run = call::flag("dry_run", dry_run.as_deref())?;
    let rulebook = Arc::clone(call.rulebook()?);
    let admin = Arc::clone(&call.admin);
    let _turn = admin.importing.try_lock().map_err(|_| busy())?;
    let body = call.body_within(MAX_IMPORT_BYTES, ARRIVES_WITHIN).await?;
    let checking = (Arc::clone(&admin.gate), Arc::clone(&rulebook));
    let spool = spawn_blocking(move || {
        let (gate, rulebook) = checking;
        let spool = spooled(rulebook.folder(), body)?;
        check(&gate, &rulebook, &spool, mode)?;
        allocator::give_back();
        Ok::<_, Problem>(spool)
    });
    let spool = spool
        .await
        .map_err(|_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the import has failed"))??;
    let deletions = match mode {
        Mode::Merge => Vec::new(),
        Mode::Replace => deletions(&rulebook, &spool).await?,
    };
    let puts = spool.rules().map_err(unspooled)?.map(|rule| match rule {
        Ok(rule) => Ok(Edit::rule(rule.text, Expected::Anything)),
        Err(error) => Err(DbError::Unwritable { place: "the import".to_owned(), why: error.to_string() }),
    });
    let edits = puts.chain(deletions.into_iter().map(Ok));
    if dry_run {
        return preview(&rulebook, edits).await;
    }
    let edited = rulebook.edit_all(&call.who, edits, admin.gate.now()).await.map_err(meanwhile)?;
    tracing::info!(changes = edited.changes(), who = call.who, "rules imported");
    let version = match edited.version {
        Some(version) => version,
        None => rulebook.db().map_err(failed)?.version().await.map_err(failed)?,
    };
    Ok(answer::json(StatusCode::OK, &told(&edited, version)))
}

async fn preview(
    rulebook: &Rulebook,
    mut edits: impl Iterator<Item = Result<Edit, DbError>>,
) -> Result<Answer, Problem> {
    let db = rulebook.db().map_err(failed)?;
    let mut edited = Edited::default();
    let mut differences = Vec::new();
    loop {
        let batch: Vec<Edit> = edits.by_ref().take(STEP).collect::<Result<_, _>>().map_err(failed)?;
        if batch.is_empty() {
            break;
        }
        let count = batch.len();
        let planned = db.preview(batch).await.map_err(meanwhile)?;
        edited.add(count, planned.iter().map(|(change, _)| change));
        differences.extend(planned.iter().take(MAX_DIFF - differences.len()).map(difference));
    }
    let version = db.version().await.map_err(failed)?;
    let mut told = told(&edited, version);
    told["dry_run"] = true.into();
    told["diff"] = differences.into();
    Ok(answer::json(StatusCode::OK, &told))
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

/// The rules of a text, on the disk; the text is dropped.
fn spooled(folder: &Path, body: Bytes) -> Result<RuleSpool, Problem> {
    let start = || RuleSpool::new(folder).or_else(|_| RuleSpool::new(&temp_dir()));
    let spool = each_rule(call::text(&body)?, start, |spool, rule| {
        if let Ok(open) = spool
            && let Err(error) = open.push(rule)
        {
            *spool = Err(error);
        }
    })?;
    spool.and_then(RuleSpool::finish).map_err(unspooled)
}

fn unspooled(error: io::Error) -> Problem {
    let why = format!("the rules cannot be kept on the disk while they are checked: {error}");
    Problem::new(StatusCode::INSUFFICIENT_STORAGE, why)
}

/// Whether every rule could be in force.
fn check(gate: &Gate, rulebook: &Rulebook, spool: &RuleSpool, mode: Mode) -> Result<(), Problem> {
    let (policy, now) = (gate.engine.policy(), gate.now());
    let mut draft = policy.trial();
    if mode == Mode::Replace {
        let mut added: Vec<_> = policy.rules().iter().filter(|rule| rule.is_added()).collect();
        added.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        let gone = missing(added, |rule| rule.id.as_str(), spool).map_err(unspooled)?;
        for rule in gone {
            draft.make(policy::Change::Remove(rule.id.clone()), now).ok(); // to go is always possible
        }
    }
    let mut problems = Problems::new();
    for spooled in spool.rules().map_err(unspooled)? {
        let Spooled { number, place, text } = spooled.map_err(unspooled)?;
        let why = match rulebook::read(text.as_str()) {
            Ok(rule) => rulebook.refusal(draft.policy(), &rule).or_else(|| misfit(&mut draft, rule, now)),
            Err(problems) => Some(problems.to_string()),
        };
        if let Some(why) = why {
            problems.push(document::Problem::new(Some(place), &format!("rules[{number}]"), why));
        }
    }
    Ok(problems.or(())?)
}

/// Those of some things, in the order of their ids, that a spool does not have.
fn missing<T>(things: Vec<T>, id: impl Fn(&T) -> &str, spool: &RuleSpool) -> io::Result<Vec<T>> {
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

fn misfit(draft: &mut Draft, rule: tollgate::rule::Rule, now: tollgate::Time) -> Option<String> {
    draft.make(policy::Change::Put(rule), now).err().map(|error| error.to_string())
}

/// Deletes of the database what a spool does not have.
async fn deletions(rulebook: &Rulebook, spool: &RuleSpool) -> Result<Vec<Edit>, Problem> {
    let (mut items, mut after) = (Vec::new(), String::new());
    loop {
        let page = Page { kind: Kind::Rule, prefix: String::new(), after, limit: STEP };
        let found = rulebook.db().map_err(failed)?.page(page).await.map_err(failed)?;
        let Some(last) = found.last() else { break };
        after = last.item.name.to_string();
        items.extend(found.into_iter().map(|stored| stored.item));
    }
    // PostgreSQL may sort by another collation.
    items.sort_unstable();
    let gone = missing(items, |item| &item.name, spool).map_err(unspooled)?;
    Ok(gone.into_iter().map(|item| Edit::delete(item, Expected::Anything)).collect())
}

/// What has changed, in numbers and by its first names, up to a version.
fn told(edited: &Edited, version: Version) -> Value {
    json!({
        "created": edited.created, "changed": edited.changed, "deleted": edited.deleted,
        "unchanged": edited.unchanged, "version": version.to_string(), "changes": edited.first,
    })
}

/// How many things have come, changed and gone, of so many edits.
pub(in crate::admin) fn counted<'c>(changes: impl Iterator<Item = &'c Change>, edits: usize) -> Value {
    let mut edited = Edited::default();
    edited.add(edits, changes);
    let Edited { created, changed, deleted, unchanged, .. } = edited;
    json!({ "created": created, "changed": changed, "deleted": deleted, "unchanged": unchanged })
}
