//! `/v1/allow`: who is never limited; the file's entries are only shown.

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::identity::Key;
use tollgate_stores::rules::{Edit, Item, Kind, Page, Stored, Version};

use crate::admin::call::{self, Call};
use crate::admin::cursor::{self, Cursor};
use crate::admin::edit::{Made, Terms, failed, tagged};
use crate::admin::keys::candidates;
use crate::answer::{self, Problem};
use crate::body::{self, Object};
use crate::connection::Answer;
use crate::gate::Gate;

const MAX_BODY_BYTES: usize = 64 << 10;
const MAX_NOTE_BYTES: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewEntry {
    key: String,
    #[serde(default)]
    note: String,
}

/// `?limit=100&after=CURSOR`: the file's in their order, then the database's by key.
pub async fn list(call: Call) -> Result<Answer, Problem> {
    let [limit, after] = call.parameters(["limit", "after"])?;
    let limit = call::limit(limit.as_deref())?;
    let cursor = Cursor::parse(after.as_deref(), |name| Key::parse(name).is_ok())?;
    let (gate, mut found) = (call.gate(), Vec::with_capacity(limit + 1));
    let live = gate.live.load();
    if cursor.is_in_file() {
        let listed = cursor.behind(live.allow.iter(), ToString::to_string)?.take(limit + 1);
        found.extend(listed.map(|key| {
            let name = key.to_string();
            (Cursor::file(&name), json!({ "key": name, "note": null, "source": "file", "version": null }))
        }));
    }
    if let Some(rulebook) = gate.rulebook.get().filter(|_| found.len() <= limit) {
        let (after, limit) = (cursor.into_database(), limit + 1 - found.len());
        let page = Page { kind: Kind::Allow, prefix: String::new(), after, limit };
        let stored = rulebook.db().map_err(failed)?.page(page).await.map_err(failed)?;
        found.extend(stored.iter().map(|stored| (Cursor::database(&stored.item.name), shown(stored))));
    }
    let (entries, next) = cursor::page(found, limit);
    Ok(answer::json(StatusCode::OK, &json!({ "allow": entries, "next": next })))
}

pub async fn add(mut call: Call) -> Result<Answer, Problem> {
    let terms = Terms::of(&call)?;
    call.rulebook()?;
    let body = call.body(MAX_BODY_BYTES).await?;
    let Object(NewEntry { key, note }): Object<NewEntry> = body::parse(&body)?;
    let key = Key::parse(&key).map_err(|error| Problem::bad_field("key", error.to_string()))?;
    let key = call.gate().looked_up(key);
    if note.len() > MAX_NOTE_BYTES {
        return Err(Problem::bad_field("note", format!("'note' is longer than {MAX_NOTE_BYTES} bytes")));
    }
    refuse_file_entry(call.gate(), &key)?;
    let (rulebook, item) = (call.rulebook()?, Item::new(Kind::Allow, key.to_string()));
    let expected = terms.expected(rulebook, &item).await?;
    match call.make(&terms, vec![Edit::allow(&key, &note, expected)]).await? {
        Made::Would(answer) => return Ok(answer),
        Made::Done(_) => tracing::info!(who = call.who, "allow entry added"),
    }
    let stored = rulebook.get(item).await.map_err(failed)?;
    let version: Option<Version> = stored.as_ref().map(|stored| stored.version);
    Ok(tagged(answer::json(StatusCode::CREATED, &stored.as_ref().map(shown)), version))
}

/// Takes an entry out, and says what it was.
pub async fn remove(call: Call) -> Result<Answer, Problem> {
    let terms = Terms::of(&call)?;
    let (gate, rulebook) = (call.gate(), call.rulebook()?);
    let keys: Vec<_> = candidates(&call.name)?.into_iter().map(|key| gate.looked_up(key)).collect();
    let mut found = None;
    for key in &keys {
        refuse_file_entry(gate, key)?;
        let item = Item::new(Kind::Allow, key.to_string());
        found = rulebook.get(item).await.map_err(failed)?;
        if found.is_some() {
            break;
        }
    }
    let not_there = || {
        let key = keys.first().map_or_else(|| call.name.clone(), ToString::to_string);
        Problem::new(StatusCode::NOT_FOUND, format!("{key} is not on the allow list"))
    };
    let stored = found.ok_or_else(not_there)?;
    let expected = terms.expected(rulebook, &stored.item).await?;
    match call.make(&terms, vec![Edit::delete(stored.item.clone(), expected)]).await? {
        Made::Would(answer) => Ok(answer),
        Made::Done(_) => {
            tracing::info!(who = call.who, "allow entry removed");
            Ok(answer::json(StatusCode::OK, &json!({ "removed": shown(&stored) })))
        }
    }
}

fn refuse_file_entry(gate: &Gate, key: &Key) -> Result<(), Problem> {
    if !gate.live.load().allow.iter().any(|listed| gate.looked_up(listed.clone()) == *key) {
        return Ok(());
    }
    let detail = format!("{key} is allowed by the configuration file: change it there");
    Err(Problem::new(StatusCode::CONFLICT, detail))
}

fn shown(stored: &Stored) -> Value {
    json!({
        "key": stored.item.name,
        "note": stored.text,
        "source": "database",
        "version": stored.version.to_string(),
    })
}
