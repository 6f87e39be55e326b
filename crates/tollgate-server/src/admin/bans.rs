//! `/v1/bans`: list, add, lift.

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::Time;
use tollgate::internal::ban::{Ban, BanSource};
use tollgate::internal::identity::Key;
use tollgate::internal::time::{calendar, parse_duration};
use tollgate_stores::rules::{CurrentItems, Edit, ItemId, ItemKind, Precondition, Version};

use crate::admin::cursor;
use crate::admin::edit::{EditOptions, EditOutcome, UrgentEdit, db_problem, pending_text, with_etag};
use crate::admin::keys::{parse_key_candidates, read_key, refuse_encoded_mark};
use crate::admin::request::{self, AdminRequest};
use crate::connection::FullResponse;
use crate::gate::Gate;
use crate::json_body::{self, JsonObject};
use crate::response::{self, ProblemDetails};
use crate::rules_follower::DeferredEdit;

mod import;

pub use import::import;
#[cfg(feature = "testing")]
pub use import::parse_bans;

const MAX_BODY_BYTES: usize = 64 << 10;
const MAX_REASON_BYTES: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewBan {
    key: String,
    #[serde(default)]
    r#for: Option<String>,
    #[serde(default)]
    until: Option<String>,
    #[serde(default)]
    reason: String,
}

/// `?limit=100&after=KEY`: ordered by key.
pub async fn list(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [limit, after] = call.parameters(["limit", "after"])?;
    let limit = request::limit(limit.as_deref())?;
    let read = |after: String| {
        Key::parse(&after).map_err(|error| ProblemDetails::bad_field("after", error.to_string()))
    };
    let after = after.map(read).transpose()?;
    let gate = call.gate();
    let now = call.gate().now();
    // One more than a page, to see whether another page follows.
    let found = gate.engine.bans_page(after.as_ref(), limit + 1, now);
    let (page, next) = cursor::split_page(
        found.into_iter().map(|(key, ban)| (key.to_string(), (key, ban))).collect(),
        limit,
    );
    let stored = stored(gate, &page).await;
    let shown = page.iter().map(|(key, ban)| {
        let name = key.to_string();
        let version = stored.get(&item(&name)).map(|stored| stored.version);
        versioned(ban_json(&name, ban), version)
    });
    let total = gate.engine.ban_count(now);
    Ok(response::json(
        StatusCode::OK,
        &json!({ "bans": shown.collect::<Value>(), "next": next, "total": total }),
    ))
}

/// The stored versions of some bans; empty while the database cannot be read.
async fn stored(gate: &Gate, bans: &[(Key, Ban)]) -> CurrentItems {
    let Some(follower) = gate.rules_follower.get() else { return CurrentItems::new() };
    let items = bans.iter().map(|(key, _)| item(&key.to_string())).collect();
    match follower.db() {
        Ok(db) => db.find(items).await.unwrap_or_default(),
        Err(_) => CurrentItems::new(),
    }
}

pub async fn add(mut call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let terms = EditOptions::of(&call)?;
    let body = call.read_body(MAX_BODY_BYTES).await?;
    let JsonObject(new_ban): JsonObject<NewBan> = json_body::parse(&body)?;
    let gate = call.gate();
    let now = call.gate().now();
    let (key, ban) = new_ban.read(gate, now)?;
    refuse_file_ban(gate, &key, now)?;
    let name = key.to_string();
    let until = ban.until;
    let shown = ban_json(&name, &ban);
    let version = match gate.rules_follower.get() {
        Some(follower) => {
            let item = item(&name);
            let expected = terms.expected(follower, &item).await?;
            match call.apply_urgent_edit(&terms, Edit::ban(&key, &ban, expected)).await? {
                UrgentEdit::Done(EditOutcome::DryRun(answer)) => return Ok(answer),
                UrgentEdit::Done(EditOutcome::Applied(changes)) => match changes.last() {
                    Some(change) => Some(change.version),
                    None => follower.get(item).await.map_err(db_problem)?.map(|stored| stored.version),
                },
                UrgentEdit::Pending(deferred) => {
                    gate.ban(key, ban);
                    tracing::info!(until = %shown_until(until), caller = call.caller, "ban added by hand on this node");
                    return Ok(pending(versioned(shown, None), deferred));
                }
            }
        }
        None => {
            let before = gate.engine.find_ban(key.clone(), now);
            if terms.dry_run {
                return Ok(dry_run_response(&name, before.as_ref(), Some(&ban)));
            }
            gate.ban(key, ban);
            None
        }
    };
    tracing::info!(until = %shown_until(until), caller = call.caller, "ban added by hand");
    Ok(with_etag(response::json(StatusCode::CREATED, &versioned(shown, version)), version))
}

/// Lifts a ban, and returns it.
pub async fn remove(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let terms = EditOptions::of(&call)?;
    let gate = call.gate();
    let now = call.gate().now();
    let keys = parse_key_candidates(&call.path_parameter)?;
    let found = keys.iter().find_map(|key| Some((key, gate.engine.find_ban(key.clone(), now)?)));
    let Some((key, ban)) = found else {
        refuse_encoded_mark("key", &call.path_parameter)?;
        let key = keys.first().map_or_else(|| call.path_parameter.clone(), ToString::to_string);
        return Err(ProblemDetails::new(StatusCode::NOT_FOUND, format!("{key} is not banned")));
    };
    refuse_file_ban(gate, key, now)?;
    let name = gate.ban_key(key.clone()).to_string();
    let stored = match gate.rules_follower.get() {
        Some(follower) => follower.get(item(&name)).await,
        None => Ok(None),
    };
    let mut pending_in = None;
    let mut version = None;
    match stored {
        // Whether the database has it is unknown.
        Err(error) if error.is_transient() && terms.is_unconditional() => {
            let edit = Edit::delete(item(&name), Precondition::Any);
            pending_in = Some(call.defer_edit(edit).await?);
        }
        Err(error) => return Err(db_problem(error)),
        Ok(Some(stored)) => {
            version = Some(stored.version);
            let expected = terms.expected(call.rules_follower()?, &stored.item).await?;
            match call.apply_urgent_edit(&terms, Edit::delete(stored.item, expected)).await? {
                UrgentEdit::Done(EditOutcome::DryRun(answer)) => return Ok(answer),
                UrgentEdit::Done(EditOutcome::Applied(_)) => {}
                UrgentEdit::Pending(deferred) => pending_in = Some(deferred),
            }
        }
        // An automatic ban may exist on this node only.
        Ok(None) if terms.dry_run => return Ok(dry_run_response(&name, Some(&ban), None)),
        Ok(None) => _ = gate.engine.unban(key.clone(), now),
    }
    if pending_in.is_some() {
        gate.engine.unban(key.clone(), now);
    }
    if let Some(central) = gate.central.get() {
        central.bans.lift(&gate.ban_key(key.clone()), &ban, now).await;
    }
    tracing::info!(caller = call.caller, "ban lifted by hand");
    let removed = json!({ "removed": versioned(ban_json(&name, &ban), version) });
    Ok(match pending_in {
        Some(deferred) => pending(removed, deferred),
        None => response::json(StatusCode::OK, &removed),
    })
}

/// The response to an edit that is in force on this node only.
fn pending(mut body: Value, deferred: DeferredEdit) -> FullResponse {
    body["pending"] = pending_text(deferred).into();
    response::json(StatusCode::ACCEPTED, &body)
}

/// What an edit would change on a node without a database.
fn dry_run_response(name: &str, before: Option<&Ban>, after: Option<&Ban>) -> FullResponse {
    let shown = |ban: Option<&Ban>| ban.map(|ban| ban_json(name, ban));
    let change = json!({ "what": "ban", "name": name, "before": shown(before), "after": shown(after) });
    response::json(StatusCode::OK, &json!({ "dry_run": true, "changes": [change] }))
}

fn item(name: &str) -> ItemId {
    ItemId::new(ItemKind::Ban, name)
}

impl NewBan {
    fn read(self, gate: &Gate, now: Time) -> Result<(Key, Ban), ProblemDetails> {
        let key = gate.ban_key(read_key("key", &self.key)?);
        if self.reason.len() > MAX_REASON_BYTES {
            let detail = format!("'reason' is longer than {MAX_REASON_BYTES} bytes");
            return Err(ProblemDetails::bad_field("reason", detail));
        }
        let until = until(self.r#for.as_deref(), self.until.as_deref(), now)
            .map_err(|(field, why)| ProblemDetails::bad_field(field, why))?;
        let how_long = "the duration is missing: write 'for' such as 1h, or 'until'";
        let until = until.ok_or_else(|| ProblemDetails::bad_field("for", how_long))?;
        Ok((key, Ban { until, reason: self.reason, source: BanSource::Manual, strikes: 0 }))
    }
}

/// A ban of the file can be neither lifted nor replaced through the API.
fn refuse_file_ban(gate: &Gate, key: &Key, now: Time) -> Result<(), ProblemDetails> {
    match gate.engine.find_ban(key.clone(), now) {
        Some(ban) if ban.source == BanSource::File => {
            let detail = format!("{key} is banned by the configuration file: change it there");
            Err(ProblemDetails::new(StatusCode::CONFLICT, detail))
        }
        _ => Ok(()),
    }
}

/// When a ban is to end, if stated; an error names its field.
fn until(
    duration: Option<&str>,
    timestamp: Option<&str>,
    now: Time,
) -> Result<Option<Time>, (&'static str, String)> {
    match (duration, timestamp) {
        (Some(_), Some(_)) => Err(("until", "give 'for' or 'until', not both".to_owned())),
        (None, None) => Ok(None),
        (Some(duration), None) => match parse_duration(duration) {
            Ok(duration) if duration.is_zero() => {
                Err(("for", "'for' is zero: write a duration such as 1h".to_owned()))
            }
            Ok(duration) => Ok(Some(now + duration)),
            Err(why) => Err(("for", why)),
        },
        (None, Some(text)) => match calendar::parse_rfc3339(text) {
            None => Err(("until", "expected a timestamp such as 2027-01-01T00:00:00Z".to_owned())),
            Some(until) if until <= now => Err(("until", "'until' is in the past".to_owned())),
            Some(until) => Ok(Some(until)),
        },
    }
}

pub fn ban_json(key: &str, ban: &Ban) -> Value {
    json!({
        "key": key,
        "until": (ban.until != Time::MAX).then(|| calendar::rfc3339(ban.until)),
        "reason": ban.reason,
        "source": ban.source.name(),
        "strikes": ban.strikes,
    })
}

fn versioned(mut ban: Value, version: Option<Version>) -> Value {
    ban["version"] = version.map(|version| version.to_string()).into();
    ban
}

fn shown_until(until: Time) -> String {
    if until == Time::MAX { "further notice".to_owned() } else { calendar::rfc3339(until) }
}
