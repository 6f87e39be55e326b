//! `/v1/audit`: who has changed what, and taking one change back.

use hyper::StatusCode;
use serde_json::{Value, json};
use tollgate::identity::Key;
use tollgate::time::calendar::rfc3339;
use tollgate_stores::rules::{Change, Item, Kind, Logged, Version, ban_of};

use crate::admin::bans;
use crate::admin::call::{self, Call};
use crate::admin::edit::{Terms, failed};
use crate::admin::rules::{refuse_file_rule, refuse_misfit};
use crate::answer::{self, Problem};
use crate::connection::Answer;
use crate::gate::Gate;
use crate::rulebook;

/// `?limit=100&before=0-17&item=rule:ID`
pub async fn list(call: Call) -> Result<Answer, Problem> {
    let [limit, before, item] = call.parameters(["limit", "before", "item"])?;
    let limit = call::limit(limit.as_deref())?;
    let before = before.map(|before| version("before", &before)).transpose()?;
    let item = item.map(|item| named(call.gate(), &item)).transpose()?;
    let db = call.rulebook()?.db().map_err(failed)?;
    // One more than a page tells whether there is another.
    let found = match item {
        Some(item) => db.history(item, before, limit + 1).await,
        None => db.log(before, limit + 1).await,
    };
    let mut found = found.map_err(failed)?;
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|last| last.change.version.to_string());
    let changes: Vec<_> = found.iter().map(shown).collect();
    Ok(answer::json(StatusCode::OK, &json!({ "changes": changes, "next": next })))
}

/// Takes one change back, as a new change.
pub async fn rollback(call: Call) -> Result<Answer, Problem> {
    let terms = Terms::of(&call)?;
    let version = version("version", &call.name)?;
    let (gate, rulebook) = (call.gate(), call.rulebook()?);
    let none = || Problem::new(StatusCode::NOT_FOUND, format!("there is no change {version} in the log"));
    let logged = rulebook.db().map_err(failed)?.logged(version).await.map_err(failed)?.ok_or_else(none)?;
    let Item { kind, name } = &logged.change.item;
    if *kind == Kind::Rule {
        refuse_file_rule(gate, name)?;
        if let Some(before) = &logged.before {
            refuse_misfit(&call, &rulebook::read(before)?)?;
        }
    }
    if terms.dry_run {
        let planned = rulebook.db().map_err(failed)?.preview_rollback(version).await.map_err(failed)?;
        let changes: Vec<_> =
            planned.iter().map(|(change, before)| outline(change, before.as_deref())).collect();
        return Ok(answer::json(StatusCode::OK, &json!({ "dry_run": true, "changes": changes })));
    }
    let changes = rulebook.rollback(&call.who, version, gate.now()).await.map_err(failed)?;
    tracing::info!(%version, who = call.who, "change taken back");
    let now = logged.change.text.as_deref();
    let changes = changes.iter().map(|change| {
        let mut told = outline(change, now);
        told["version"] = change.version.to_string().into();
        told["undoes"] = version.to_string().into();
        told
    });
    Ok(answer::json(StatusCode::OK, &json!({ "changes": changes.collect::<Value>() })))
}

fn version(field: &str, text: &str) -> Result<Version, Problem> {
    text.parse().map_err(|why: String| Problem::bad_field(field, why))
}

/// `rule:login`, `ban:ip:203.0.113.9`, `setting:enforce`
fn named(gate: &Gate, text: &str) -> Result<Item, Problem> {
    let kinds = [Kind::Rule, Kind::Ban, Kind::Allow, Kind::Setting];
    let parts = text.split_once(':').filter(|(_, name)| !name.is_empty());
    let found = parts.and_then(|(what, name)| {
        let kind = kinds.into_iter().find(|kind| kind.name() == what)?;
        let name = match kind {
            Kind::Ban => gate.banned_as(Key::parse(name).ok()?).to_string(),
            Kind::Allow => gate.looked_up(Key::parse(name).ok()?).to_string(),
            Kind::Rule | Kind::Setting => name.to_owned(),
        };
        Some(Item::new(kind, name))
    });
    let wrong = "'item' is such as rule:ID, ban:KEY, allow:KEY or setting:enforce";
    found.ok_or_else(|| Problem::bad_field("item", wrong))
}

fn shown(logged: &Logged) -> Value {
    let mut told = json!({
        "version": logged.change.version.to_string(),
        "at": rfc3339(logged.at),
        "who": logged.who,
    });
    if let (Value::Object(told), Value::Object(outline)) =
        (&mut told, outline(&logged.change, logged.before.as_deref()))
    {
        told.extend(outline);
        told.insert("undoes".to_owned(), logged.undoes.map(|version| version.to_string()).into());
    }
    told
}

/// What a change is about, before and after it.
pub fn outline(change: &Change, before: Option<&str>) -> Value {
    let thing = |text: Option<&str>| text.map(|text| thing(&change.item, text));
    json!({
        "what": change.item.kind.name(),
        "name": change.item.name,
        "before": thing(before),
        "after": thing(change.text.as_deref()),
    })
}

/// A thing of the database as its own calls show it.
fn thing(Item { kind, name }: &Item, text: &str) -> Value {
    match kind {
        Kind::Rule => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
        Kind::Ban => ban_of(text).map_or_else(|_| text.into(), |ban| bans::written(name, &ban)),
        Kind::Allow => json!({ "key": name, "note": text }),
        Kind::Setting => text.into(),
    }
}
