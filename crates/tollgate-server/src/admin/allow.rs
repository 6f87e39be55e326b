//! `/v1/allow`: keys that are never limited; the file's entries are read-only.

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::internal::identity::Key;
use tollgate_stores::rules::{Edit, ItemId, ItemKind, PageQuery, StoredItem, Version};

use crate::admin::cursor::{self, Cursor};
use crate::admin::edit::{EditOptions, EditOutcome, db_problem, with_etag};
use crate::admin::keys::{parse_key_candidates, read_key, refuse_encoded_mark};
use crate::admin::request::{self, AdminRequest};
use crate::connection::FullResponse;
use crate::gate::Gate;
use crate::json_body::{self, JsonObject};
use crate::response::{self, ProblemDetails};

const MAX_BODY_BYTES: usize = 64 << 10;
const MAX_NOTE_BYTES: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewEntry {
    key: String,
    #[serde(default)]
    note: String,
}

/// `?limit=100&after=CURSOR`: the file's entries in their order, then the database's by key.
pub async fn list(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [limit, after] = call.parameters(["limit", "after"])?;
    let limit = request::limit(limit.as_deref())?;
    let cursor = Cursor::parse(after.as_deref(), |name| Key::parse(name).is_ok())?;
    let gate = call.gate();
    let mut found = Vec::with_capacity(limit + 1);
    let live = gate.live.load();
    if cursor.starts_in_file() {
        let listed = cursor.after(live.allow.iter(), ToString::to_string)?.take(limit + 1);
        found.extend(listed.map(|key| {
            let name = key.to_string();
            (Cursor::file(&name), json!({ "key": name, "note": null, "source": "file", "version": null }))
        }));
    }
    if let Some(follower) = gate.rules_follower.get().filter(|_| found.len() <= limit) {
        let after = cursor.database_name();
        let limit = limit + 1 - found.len();
        let page = PageQuery { kind: ItemKind::Allow, prefix: String::new(), after, limit };
        let stored = follower.db().map_err(db_problem)?.page(page).await.map_err(db_problem)?;
        found.extend(stored.iter().map(|stored| (Cursor::database(&stored.item.name), entry_json(stored))));
    }
    let (entries, next) = cursor::split_page(found, limit);
    Ok(response::json(StatusCode::OK, &json!({ "allow": entries, "next": next })))
}

pub async fn add(mut call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let terms = EditOptions::of(&call)?;
    call.rules_follower()?;
    let body = call.read_body(MAX_BODY_BYTES).await?;
    let JsonObject(NewEntry { key, note }): JsonObject<NewEntry> = json_body::parse(&body)?;
    let key = call.gate().lookup_key(read_key("key", &key)?);
    if note.len() > MAX_NOTE_BYTES {
        return Err(ProblemDetails::bad_field(
            "note",
            format!("'note' is longer than {MAX_NOTE_BYTES} bytes"),
        ));
    }
    refuse_file_entry(call.gate(), &key)?;
    let follower = call.rules_follower()?;
    let item = ItemId::new(ItemKind::Allow, key.to_string());
    let expected = terms.expected(follower, &item).await?;
    match call.apply_edits(&terms, vec![Edit::allow(&key, &note, expected)]).await? {
        EditOutcome::DryRun(answer) => return Ok(answer),
        EditOutcome::Applied(_) => tracing::info!(caller = call.caller, "allow entry added"),
    }
    let stored = follower.get(item).await.map_err(db_problem)?;
    let version: Option<Version> = stored.as_ref().map(|stored| stored.version);
    Ok(with_etag(response::json(StatusCode::CREATED, &stored.as_ref().map(entry_json)), version))
}

/// Removes an entry, and returns it.
pub async fn remove(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let terms = EditOptions::of(&call)?;
    let gate = call.gate();
    let follower = call.rules_follower()?;
    let keys: Vec<_> =
        parse_key_candidates(&call.path_parameter)?.into_iter().map(|key| gate.lookup_key(key)).collect();
    let mut found = None;
    for key in &keys {
        refuse_file_entry(gate, key)?;
        let item = ItemId::new(ItemKind::Allow, key.to_string());
        found = follower.get(item).await.map_err(db_problem)?;
        if found.is_some() {
            break;
        }
    }
    let Some(stored) = found else {
        refuse_encoded_mark("key", &call.path_parameter)?;
        let key = keys.first().map_or_else(|| call.path_parameter.clone(), ToString::to_string);
        return Err(ProblemDetails::new(StatusCode::NOT_FOUND, format!("{key} is not on the allow list")));
    };
    let expected = terms.expected(follower, &stored.item).await?;
    match call.apply_edits(&terms, vec![Edit::delete(stored.item.clone(), expected)]).await? {
        EditOutcome::DryRun(answer) => Ok(answer),
        EditOutcome::Applied(_) => {
            tracing::info!(caller = call.caller, "allow entry removed");
            Ok(response::json(StatusCode::OK, &json!({ "removed": entry_json(&stored) })))
        }
    }
}

fn refuse_file_entry(gate: &Gate, key: &Key) -> Result<(), ProblemDetails> {
    if !gate.live.load().allow.iter().any(|listed| gate.lookup_key(listed.clone()) == *key) {
        return Ok(());
    }
    let detail = format!("{key} is allowed by the configuration file: change it there");
    Err(ProblemDetails::new(StatusCode::CONFLICT, detail))
}

fn entry_json(stored: &StoredItem) -> Value {
    json!({
        "key": stored.item.name,
        "note": stored.text,
        "source": "database",
        "version": stored.version.to_string(),
    })
}
