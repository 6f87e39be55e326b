//! `/v1/audit`: the log of changes with their authors, and reverting a change or a set of changes.

use hyper::StatusCode;
use serde_json::{Value, json};
use tollgate::internal::identity::Key;
use tollgate::internal::policy::PolicyChange;
use tollgate::internal::rule::RuleId;
use tollgate::internal::time::calendar::rfc3339;
use tollgate_stores::rules::{
    ChangeLogEntry, ChangeSet, DbError, EditSummary, ItemChange, ItemId, ItemKind, Reverted, RulesDb,
    Version, parse_ban,
};

use crate::admin::bans;
use crate::admin::edit::{EditOptions, db_problem, dry_run_response};
use crate::admin::request::{self, AdminRequest};
use crate::admin::rules::{busy, refuse_file_rule, reject_unsupported};
use crate::allocator;
use crate::connection::FullResponse;
use crate::gate::Gate;
use crate::ramp::RampSetting;
use crate::response::{self, ProblemDetails};
use crate::rules_follower;

/// Changes that a call with `what` looks at: its page may be empty, and `next` goes on.
const MAX_SCANNED: usize = 2_000;
/// Changes that an entry of a set names.
const NAMED_CHANGES: usize = 10;
/// Entries of a set that are checked at once before it is reverted.
const CHECK_BATCH: usize = 10_000;

/// `?limit=100&before=0-17`: every change; a set of changes, such as an import, is one entry. `&what=ban`: those of one
/// kind. `&item=rule:ID`: the changes of one item. `?change=0-17&after=0-12`: all changes of the set that has this version.
pub async fn list(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [limit, before, what, item, change, after] =
        call.parameters(["limit", "before", "what", "item", "change", "after"])?;
    let limit = request::limit(limit.as_deref())?;
    let before = before.map(|before| version("before", &before)).transpose()?;
    if let Some(what) = what {
        if item.is_some() || change.is_some() {
            return Err(ProblemDetails::bad_field("what", "give 'what', 'item' or 'change', not several"));
        }
        return list_kind(&call, ChangeKind::parse(&what)?, before, limit).await;
    }
    let after = after.map(|after| version("after", &after)).transpose()?;
    let item = item.map(|item| parse_item(call.gate(), &item)).transpose()?;
    let db = call.rules_follower()?.db().map_err(db_problem)?;
    let lists_sets = item.is_none() && change.is_none();
    // One more than a page, to see whether another page follows.
    let found = match (item, change) {
        (Some(item), None) => db.history(item, before, limit + 1).await,
        (None, None) => db.log_of_sets(before, limit + 1).await,
        (None, Some(change)) => {
            let logged = find(&call, version("change", &change)?).await?;
            match logged.set {
                Some(set) => db.entries_of(set, after, limit + 1).await,
                None => Ok(vec![logged]),
            }
        }
        (Some(_), Some(_)) => {
            return Err(ProblemDetails::bad_field("change", "give 'item' or 'change', not both"));
        }
    };
    let mut found = found.map_err(db_problem)?;
    let more = found.len() > limit;
    found.truncate(limit);
    let mut changes = Vec::with_capacity(found.len());
    let mut next = None;
    for logged in &found {
        next = Some(if lists_sets { logged.set_version() } else { logged.change.version });
        changes.push(match logged.set.filter(|_| lists_sets) {
            Some(set) => set_json(db, logged, set).await.map_err(db_problem)?,
            None => logged_json(logged),
        });
    }
    let next = next.filter(|_| more).map(|next| next.to_string());
    Ok(response::json(StatusCode::OK, &json!({ "changes": changes, "next": next })))
}

/// What changes are of, as a reader distinguishes them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChangeKind {
    Item(ItemKind),
    Enforce,
    /// Steps of a ramp; its begin is a change of rules.
    Ramp,
}

impl ChangeKind {
    fn parse(text: &str) -> Result<ChangeKind, ProblemDetails> {
        Ok(match text {
            "rule" => ChangeKind::Item(ItemKind::Rule),
            "ban" => ChangeKind::Item(ItemKind::Ban),
            "allow" => ChangeKind::Item(ItemKind::Allow),
            "enforce" => ChangeKind::Enforce,
            "ramp" => ChangeKind::Ramp,
            _ => {
                let detail = "'what' must be one of rule, ban, allow, enforce, ramp";
                return Err(ProblemDetails::bad_field("what", detail));
            }
        })
    }

    fn of(item: &ItemId) -> ChangeKind {
        match item.kind {
            ItemKind::Setting if *item == ItemId::ramp() => ChangeKind::Ramp,
            ItemKind::Setting => ChangeKind::Enforce,
            kind => ChangeKind::Item(kind),
        }
    }
}

/// The latest changes of one kind. A set is of the kind of its first change that is not a ramp.
async fn list_kind(
    call: &AdminRequest,
    wanted: ChangeKind,
    before: Option<Version>,
    limit: usize,
) -> Result<FullResponse, ProblemDetails> {
    let db = call.rules_follower()?.db().map_err(db_problem)?;
    let scanned = db.log_of_sets(before, MAX_SCANNED).await.map_err(db_problem)?;
    let may_have_more = scanned.len() == MAX_SCANNED;
    let mut changes = Vec::new();
    let mut next = None;
    for logged in &scanned {
        if changes.len() == limit {
            return Ok(response::json(StatusCode::OK, &json!({ "changes": changes, "next": next })));
        }
        next = Some(logged.set_version().to_string());
        let (kind, entry) = match logged.set {
            Some(set) => {
                let entry = set_json(db, logged, set).await.map_err(db_problem)?;
                // A set has no setting beside a ramp.
                let kind =
                    entry["what"].as_str().map(|what| ChangeKind::parse(what).unwrap_or(ChangeKind::Ramp));
                (kind, entry)
            }
            None => (Some(ChangeKind::of(&logged.change.item)), Value::Null),
        };
        if kind == Some(wanted) {
            changes.push(if logged.set.is_some() { entry } else { logged_json(logged) });
        }
    }
    let next = next.filter(|_| may_have_more);
    Ok(response::json(StatusCode::OK, &json!({ "changes": changes, "next": next })))
}

async fn find(call: &AdminRequest, version: Version) -> Result<ChangeLogEntry, ProblemDetails> {
    let db = call.rules_follower()?.db().map_err(db_problem)?;
    let none =
        || ProblemDetails::new(StatusCode::NOT_FOUND, format!("there is no change {version} in the log"));
    db.logged(version).await.map_err(db_problem)?.ok_or_else(none)
}

/// Reverts a change, as a new change: the whole set that it belongs to, or with `?only=true` the change alone.
pub async fn rollback(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [dry_run, only] = call.parameters(["dry_run", "only"])?;
    let terms = EditOptions::with(&call, dry_run.as_deref())?;
    let only = request::flag("only", only.as_deref())?;
    let version = version("version", &call.path_parameter)?;
    let logged = find(&call, version).await?;
    if let Some(set) = logged.set.filter(|_| !only) {
        return rollback_set(&call, &terms, set).await;
    }
    let gate = call.gate();
    let follower = call.rules_follower()?;
    let ItemId { kind, name } = &logged.change.item;
    if logged.change.item == ItemId::ramp() {
        let detail = "a step of a ramp cannot be reverted: tollgate rules ramp stop reverts its apply";
        return Err(ProblemDetails::new(StatusCode::CONFLICT, detail));
    }
    if *kind == ItemKind::Rule {
        refuse_file_rule(gate, name)?;
        if let Some(before) = &logged.before {
            reject_unsupported(&call, &rules_follower::parse_rule(before)?)?;
        }
    }
    if terms.dry_run {
        let planned =
            follower.db().map_err(db_problem)?.preview_rollback(version).await.map_err(db_problem)?;
        return Ok(dry_run_response(&planned));
    }
    let changes = follower.rollback(&call.caller, version, gate.now()).await.map_err(db_problem)?;
    tracing::info!(%version, caller = call.caller, "change reverted");
    let now = logged.change.text.as_deref();
    let changes = changes.iter().map(|change| reverting_json(change, now, version));
    Ok(response::json(StatusCode::OK, &json!({ "changes": changes.collect::<Value>() })))
}

async fn rollback_set(
    call: &AdminRequest,
    terms: &EditOptions,
    set: ChangeSet,
) -> Result<FullResponse, ProblemDetails> {
    let follower = call.rules_follower()?;
    // The draft of a large set uses as much memory as an import.
    let _import_permit = call.admin.importing.try_lock().map_err(|_| busy())?;
    check_rollback(call, set).await?;
    allocator::trim();
    if terms.dry_run {
        let planned = follower.db().map_err(db_problem)?.preview_rollback_set(set).await;
        let planned = planned.map_err(db_problem)?;
        let changes = planned.changes.iter().map(|(change, before)| change_json(change, before.as_deref()));
        let mut answer = json!({ "dry_run": true, "changes": changes.collect::<Value>() });
        add_counts(&mut answer, &planned);
        return Ok(response::json(StatusCode::OK, &answer));
    }
    let reverted = follower.rollback_set(&call.caller, set, call.gate().now()).await.map_err(db_problem)?;
    tracing::info!(version = %set.last, changes = reverted.summary.changes(), caller = call.caller, "changes reverted");
    let listed = reverted.changes.iter();
    let changes = listed.map(|(change, before)| reverting_json(change, before.as_deref(), set.last));
    let mut answer = json!({ "changes": changes.collect::<Value>(), "undoes": set.last.to_string() });
    answer["version"] = reverted.summary.version.map(|version| version.to_string()).into();
    add_counts(&mut answer, &reverted);
    Ok(response::json(StatusCode::OK, &answer))
}

fn add_counts(answer: &mut Value, reverted: &Reverted) {
    let EditSummary { created, changed, deleted, .. } = reverted.summary;
    let counts = [created, changed, deleted].map(|count| count as u64);
    put_counts(answer, counts, reverted.changes.iter().map(|(change, _)| change));
}

/// Whether the rules that a rollback restores can be in force. They are put into a draft of the policy batch by batch.
/// A rollback that only deletes needs no draft, which would take as much memory as the deleted rules.
async fn check_rollback(call: &AdminRequest, set: ChangeSet) -> Result<(), ProblemDetails> {
    if set.changed + set.deleted == 0 {
        return Ok(());
    }
    let follower = call.rules_follower()?;
    let db = follower.db().map_err(db_problem)?;
    let now = call.gate().now();
    let mut draft = call.gate().engine.policy().trial();
    for restores in [false, true] {
        let mut after = None;
        loop {
            let entries = db.entries_of(set, after, CHECK_BATCH).await.map_err(db_problem)?;
            let Some(last) = entries.last() else { break };
            after = Some(last.change.version);
            let rules = entries.iter().filter(|entry| entry.change.item.kind == ItemKind::Rule);
            for entry in rules.filter(|entry| entry.before.is_some() == restores) {
                let name = &*entry.change.item.name;
                refuse_file_rule(call.gate(), name)?;
                let Some(before) = &entry.before else {
                    let removal = RuleId::new(name).map(PolicyChange::Remove);
                    removal.map(|removal| draft.apply(removal, now)); // a removal always succeeds
                    continue;
                };
                let rule = rules_follower::parse_rule(before)?;
                let why = follower.unsupported_reason(draft.policy(), &rule).or_else(|| {
                    draft.apply(PolicyChange::Put(rule), now).err().map(|error| error.to_string())
                });
                if let Some(why) = why {
                    return Err(ProblemDetails::bad_field("rule", format!("rule {name}: {why}")));
                }
            }
        }
    }
    Ok(())
}

/// A change of a rollback.
fn reverting_json(change: &ItemChange, before: Option<&str>, undoes: Version) -> Value {
    let mut answer = change_json(change, before);
    answer["version"] = change.version.to_string().into();
    answer["undoes"] = undoes.to_string().into();
    answer
}

fn version(field: &str, text: &str) -> Result<Version, ProblemDetails> {
    text.parse().map_err(|why: String| ProblemDetails::bad_field(field, why))
}

/// `rule:login`, `ban:ip:203.0.113.9`, `setting:enforce`
fn parse_item(gate: &Gate, text: &str) -> Result<ItemId, ProblemDetails> {
    let kinds = [ItemKind::Rule, ItemKind::Ban, ItemKind::Allow, ItemKind::Setting];
    let parts = text.split_once(':').filter(|(_, name)| !name.is_empty());
    let found = parts.and_then(|(what, name)| {
        let kind = kinds.into_iter().find(|kind| kind.name() == what)?;
        let name = match kind {
            ItemKind::Ban => gate.ban_key(Key::parse(name).ok()?).to_string(),
            ItemKind::Allow => gate.lookup_key(Key::parse(name).ok()?).to_string(),
            ItemKind::Rule | ItemKind::Setting => name.to_owned(),
        };
        Some(ItemId::new(kind, name))
    });
    let wrong = "'item' must be rule:ID, ban:KEY, allow:KEY or setting:enforce";
    found.ok_or_else(|| ProblemDetails::bad_field("item", wrong))
}

fn logged_json(logged: &ChangeLogEntry) -> Value {
    let mut answer = stamp_json(logged, logged.change.version);
    if let (Value::Object(answer), Value::Object(change)) =
        (&mut answer, change_json(&logged.change, logged.before.as_deref()))
    {
        answer.extend(change);
    }
    answer["set"] = logged.set.map(|set| set.last.to_string()).into();
    answer
}

fn stamp_json(logged: &ChangeLogEntry, version: Version) -> Value {
    json!({
        "version": version.to_string(),
        "at": rfc3339(logged.at),
        "who": logged.author,
        "note": logged.note,
        "undoes": logged.undoes.map(|version| version.to_string()),
    })
}

/// A set as one change: its counts, and the first of its changes.
async fn set_json(db: &RulesDb, logged: &ChangeLogEntry, set: ChangeSet) -> Result<Value, DbError> {
    let first = db.entries_of(set, None, NAMED_CHANGES).await?;
    let kind =
        first.iter().find(|entry| entry.change.item != ItemId::ramp()).unwrap_or(logged).change.item.kind;
    let mut answer = stamp_json(logged, set.last);
    answer["what"] = kind.name().into();
    for name in ["name", "before", "after"] {
        answer[name] = Value::Null;
    }
    let shown = || first.iter().filter(|entry| entry.change.item != ItemId::ramp());
    let counts = [set.created, set.changed, set.deleted];
    put_counts(&mut answer, counts, first.iter().map(|entry| &entry.change));
    answer["changes"] = shown().map(logged_json).collect();
    Ok(answer)
}

/// The numbers of created, changed and deleted items, without the setting of a ramp: it is the first of the changes.
fn put_counts<'c>(answer: &mut Value, mut counts: [u64; 3], changes: impl Iterator<Item = &'c ItemChange>) {
    for change in changes.filter(|change| change.item == ItemId::ramp()) {
        let kind = match (&change.text, change.previous) {
            (None, _) => 2,
            (Some(_), None) => 0,
            (Some(_), Some(_)) => 1,
        };
        counts[kind] = u64::saturating_sub(counts[kind], 1);
    }
    for (name, count) in ["created", "changed", "deleted"].into_iter().zip(counts) {
        answer[name] = count.into();
    }
}

/// The item of a change, before and after it.
pub fn change_json(change: &ItemChange, before: Option<&str>) -> Value {
    let thing = |text: Option<&str>| text.map(|text| thing(&change.item, text));
    json!({
        "what": change.item.kind.name(),
        "name": change.item.name,
        "before": thing(before),
        "after": thing(change.text.as_deref()),
    })
}

/// An item of the database in the format of its own endpoint.
fn thing(ItemId { kind, name }: &ItemId, text: &str) -> Value {
    match kind {
        ItemKind::Rule => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
        ItemKind::Ban => parse_ban(text).map_or_else(|_| text.into(), |ban| bans::ban_json(name, &ban)),
        ItemKind::Allow => json!({ "key": name, "note": text }),
        ItemKind::Setting if &**name == "ramp" => ramp_json(text),
        ItemKind::Setting => text.into(),
    }
}

/// A ramp with the ids of its rules; their texts are changes of their own.
fn ramp_json(text: &str) -> Value {
    RampSetting::parse(text).map_or_else(
        |_| text.into(),
        |RampSetting { percent, guard, rules, .. }| {
            let ids: Value = rules.iter().map(|rule| rule.id.as_str()).collect();
            json!({ "percent": percent, "guard": guard, "rules": ids })
        },
    )
}
