//! `/v1/audit`: the log of changes with their authors, and reverting one change.

use hyper::StatusCode;
use serde_json::{Value, json};
use tollgate::internal::identity::Key;
use tollgate::internal::time::calendar::rfc3339;
use tollgate_stores::rules::{ChangeLogEntry, ItemChange, ItemId, ItemKind, Version, parse_ban};

use crate::admin::bans;
use crate::admin::edit::{EditOptions, db_problem};
use crate::admin::request::{self, AdminRequest};
use crate::admin::rules::{refuse_file_rule, reject_unsupported};
use crate::connection::FullResponse;
use crate::gate::Gate;
use crate::response::{self, ProblemDetails};
use crate::rules_follower;

/// `?limit=100&before=0-17&item=rule:ID`
pub async fn list(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [limit, before, item] = call.parameters(["limit", "before", "item"])?;
    let limit = request::limit(limit.as_deref())?;
    let before = before.map(|before| version("before", &before)).transpose()?;
    let item = item.map(|item| parse_item(call.gate(), &item)).transpose()?;
    let db = call.rules_follower()?.db().map_err(db_problem)?;
    // One more than a page, to see whether another page follows.
    let found = match item {
        Some(item) => db.history(item, before, limit + 1).await,
        None => db.log(before, limit + 1).await,
    };
    let mut found = found.map_err(db_problem)?;
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|last| last.change.version.to_string());
    let changes: Vec<_> = found.iter().map(logged_json).collect();
    Ok(response::json(StatusCode::OK, &json!({ "changes": changes, "next": next })))
}

/// Reverts one change, as a new change.
pub async fn rollback(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let terms = EditOptions::of(&call)?;
    let version = version("version", &call.path_parameter)?;
    let gate = call.gate();
    let follower = call.rules_follower()?;
    let none =
        || ProblemDetails::new(StatusCode::NOT_FOUND, format!("there is no change {version} in the log"));
    let logged =
        follower.db().map_err(db_problem)?.logged(version).await.map_err(db_problem)?.ok_or_else(none)?;
    let ItemId { kind, name } = &logged.change.item;
    if *kind == ItemKind::Rule {
        refuse_file_rule(gate, name)?;
        if let Some(before) = &logged.before {
            reject_unsupported(&call, &rules_follower::parse_rule(before)?)?;
        }
    }
    if terms.dry_run {
        let planned =
            follower.db().map_err(db_problem)?.preview_rollback(version).await.map_err(db_problem)?;
        let changes: Vec<_> =
            planned.iter().map(|(change, before)| change_json(change, before.as_deref())).collect();
        return Ok(response::json(StatusCode::OK, &json!({ "dry_run": true, "changes": changes })));
    }
    let changes = follower.rollback(&call.caller, version, gate.now()).await.map_err(db_problem)?;
    tracing::info!(%version, caller = call.caller, "change reverted");
    let now = logged.change.text.as_deref();
    let changes = changes.iter().map(|change| {
        let mut answer = change_json(change, now);
        answer["version"] = change.version.to_string().into();
        answer["undoes"] = version.to_string().into();
        answer
    });
    Ok(response::json(StatusCode::OK, &json!({ "changes": changes.collect::<Value>() })))
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
    let mut answer = json!({
        "version": logged.change.version.to_string(),
        "at": rfc3339(logged.at),
        "who": logged.author,
    });
    if let (Value::Object(answer), Value::Object(change)) =
        (&mut answer, change_json(&logged.change, logged.before.as_deref()))
    {
        answer.extend(change);
        answer.insert("undoes".to_owned(), logged.undoes.map(|version| version.to_string()).into());
    }
    answer
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
        ItemKind::Setting => text.into(),
    }
}
