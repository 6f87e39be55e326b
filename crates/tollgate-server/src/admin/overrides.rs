//! `/v1/overrides`: limits of single keys, which are part of a rule and edited with it.

use std::time::Duration;

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tollgate::internal::identity::Key;
use tollgate::internal::rule::{Rule, RuleInForce};
use tollgate_stores::rules::{DbError, Edit, ItemId, Precondition, RuleText, StoredItem};

use crate::admin::cursor;
use crate::admin::edit::{
    Condition, EditOptions, db_problem, dry_run_response, precondition_failed, with_etag,
};
use crate::admin::keys::{parse_key_candidates, read_key, refuse_encoded_mark};
use crate::admin::request::{self, AdminRequest};
use crate::admin::rules::{refuse_file_rule, reject_unsupported};
use crate::connection::FullResponse;
use crate::json_body::{self, JsonObject};
use crate::response::{self, ProblemDetails};
use crate::rules_follower;

const MAX_BODY_BYTES: usize = 64 << 10;
/// Attempts of an edit in case of concurrent edits of the rule.
const TRIES: usize = 5;
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewOverride {
    rule: String,
    key: String,
    limits: Vec<String>,
}

/// `?rule=ID`: the overrides of one rule; otherwise `?limit=100&after=ID` pages through the rules that have any.
pub async fn list(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [rule, limit, after] = call.parameters(["rule", "limit", "after"])?;
    let limit = request::limit(limit.as_deref())?;
    let policy = call.gate().engine.policy();
    let (rules, next) = match rule {
        Some(id) => {
            let none = || ProblemDetails::new(StatusCode::NOT_FOUND, format!("no rule '{id}'"));
            (vec![policy.rule(&id).ok_or_else(none)?], None)
        }
        None => {
            let after = after.unwrap_or_default();
            let mut having: Vec<_> = policy
                .rules()
                .iter()
                .filter(|rule| !rule.overrides.is_empty() && *rule.id.as_str() > *after)
                .collect();
            having.sort_by_key(|rule| rule.id.as_str());
            having.truncate(limit + 1);
            cursor::split_page(having.into_iter().map(|rule| (rule.id.to_string(), rule)).collect(), limit)
        }
    };
    let overrides: Vec<_> = rules.iter().flat_map(|rule| of_rule(rule)).collect();
    Ok(response::json(StatusCode::OK, &json!({ "overrides": overrides, "next": next })))
}

fn of_rule(rule: &RuleInForce) -> Vec<Value> {
    let source = if rule.is_added() { "database" } else { "file" };
    let shown = rule.overrides.list().iter().map(|each| {
        let key = Key::new(each.values.clone()).map(|key| key.to_string()).unwrap_or_default();
        let limits: Vec<_> = each.limits.iter().map(|limit| limit.limit.to_string()).collect();
        json!({ "rule": rule.id.as_str(), "key": key, "limits": limits, "source": source })
    });
    shown.collect()
}

/// Adds an override, or replaces the key's present one.
pub async fn add(mut call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let terms = EditOptions::of(&call)?;
    call.rules_follower()?;
    let body = call.read_body(MAX_BODY_BYTES).await?;
    let JsonObject(new_override): JsonObject<NewOverride> = json_body::parse(&body)?;
    let key = read_key("key", &new_override.key)?;
    if new_override.limits.is_empty() {
        return Err(ProblemDetails::bad_field("limits", "'limits' is empty"));
    }
    let mut entry: Map<String, Value> =
        key.parts().iter().map(|(name, value)| (name.to_string(), value.as_str().into())).collect();
    entry.insert("limits".to_owned(), new_override.limits.clone().into());
    let put = |list: &mut Vec<Value>| {
        match list.iter_mut().find(|known| key_of(known).as_ref() == Some(&key)) {
            Some(known) => *known = entry.clone().into(),
            None => list.push(entry.clone().into()),
        }
        Ok(entry.clone().into())
    };
    let (answer, version) = match edit(&call, &terms, &new_override.rule, put).await? {
        OverrideEdit::DryRun(answer) => return Ok(answer),
        OverrideEdit::Applied { stored, .. } => {
            let answer = json!({ "rule": new_override.rule, "key": key.to_string(), "limits": new_override.limits, "source": "database", "version": stored.version.to_string() });
            (response::json(StatusCode::CREATED, &answer), stored.version)
        }
    };
    tracing::info!(rule = new_override.rule, caller = call.caller, "override added");
    Ok(with_etag(answer, Some(version)))
}

/// `?rule=ID&key=KEY`: removes one, and returns it.
pub async fn remove(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [rule, key, dry_run] = call.raw_parameters(["rule", "key", "dry_run"])?;
    let terms = EditOptions::with(&call, dry_run)?;
    let missing = |name: &str| ProblemDetails::bad_field(name, format!("'{name}' is missing"));
    let rule = rule.ok_or_else(|| missing("rule"))?;
    let key = key.ok_or_else(|| missing("key"))?;
    let keys = parse_key_candidates(key)?;
    let take = |list: &mut Vec<Value>| {
        let at = list.iter().position(|known| key_of(known).is_some_and(|key| keys.contains(&key)));
        let Some(at) = at else {
            refuse_encoded_mark("key", key)?;
            let detail = format!("rule {rule} has no override for that key");
            return Err(ProblemDetails::new(StatusCode::NOT_FOUND, detail));
        };
        Ok(list.remove(at))
    };
    let (removed, version) = match edit(&call, &terms, rule, take).await? {
        OverrideEdit::DryRun(answer) => return Ok(answer),
        OverrideEdit::Applied { entry, stored } => (entry, stored.version),
    };
    tracing::info!(rule, caller = call.caller, "override removed");
    let limits = removed.get("limits").or_else(|| removed.get("limit")).cloned();
    let answer =
        json!({ "rule": rule, "key": key_of(&removed).map(|key| key.to_string()), "limits": limits });
    Ok(with_etag(
        response::json(StatusCode::OK, &json!({ "removed": answer, "version": version.to_string() })),
        Some(version),
    ))
}

enum OverrideEdit {
    /// The entry that was added or removed, and the rule after it.
    Applied {
        entry: Value,
        stored: StoredItem,
    },
    DryRun(FullResponse),
}

/// Edits the overrides of a rule's current version; after a conflict, of the new version.
async fn edit(
    call: &AdminRequest,
    terms: &EditOptions,
    id: &str,
    change: impl Fn(&mut Vec<Value>) -> Result<Value, ProblemDetails>,
) -> Result<OverrideEdit, ProblemDetails> {
    refuse_file_rule(call.gate(), id)?;
    let follower = call.rules_follower()?;
    let item = ItemId::rule(id);
    let none = || ProblemDetails::new(StatusCode::NOT_FOUND, format!("no rule '{id}'"));
    for _ in 0..TRIES {
        let stored = follower.get(item.clone()).await.map_err(db_problem)?.ok_or_else(none)?;
        match terms.condition {
            Condition::AtVersion(expected) if expected != stored.version => {
                return Err(precondition_failed(
                    format!("{item} is at version {}", stored.version),
                    Some(stored.version),
                ));
            }
            Condition::Absent => {
                return Err(precondition_failed(format!("{item} exists already"), Some(stored.version)));
            }
            _ => {}
        }
        let (text, entry) = with_changed_overrides(&stored.text, &change)?;
        let rule: Rule = rules_follower::parse_rule(text.as_str())?;
        reject_unsupported(call, &rule)?;
        let edit = vec![Edit::rule(text, Precondition::AtVersion(stored.version))];
        if terms.dry_run {
            let planned = follower.db().map_err(db_problem)?.preview(edit).await.map_err(db_problem)?;
            return Ok(OverrideEdit::DryRun(dry_run_response(&planned)));
        }
        match follower.edit(&call.caller, edit, call.gate().now()).await {
            Ok(mut changes) => {
                let made = changes.pop().and_then(|change| {
                    Some(StoredItem { item: change.item, version: change.version, text: change.text? })
                });
                return Ok(OverrideEdit::Applied { entry, stored: made.unwrap_or(stored) });
            }
            // The replica that is read may lack the conflicting change.
            Err(DbError::Conflict { found, .. }) => {
                if let Some(found) = found {
                    follower.wait_for_version(found, CATCH_UP_TIMEOUT).await;
                }
            }
            Err(error) => return Err(db_problem(error)),
        }
    }
    Err(precondition_failed(format!("{item} is being edited by others: try again"), None))
}

fn with_changed_overrides(
    text: &str,
    change: impl Fn(&mut Vec<Value>) -> Result<Value, ProblemDetails>,
) -> Result<(RuleText, Value), ProblemDetails> {
    let corrupt =
        || ProblemDetails::new(StatusCode::INTERNAL_SERVER_ERROR, "the rule in the database cannot be read");
    let mut rule: Map<String, Value> = serde_json::from_str(text).map_err(|_| corrupt())?;
    let mut list = match rule.remove("overrides") {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    };
    let entry = change(&mut list)?;
    if !list.is_empty() {
        rule.insert("overrides".to_owned(), list.into());
    }
    let text = Value::Object(rule).to_string();
    let node = tollgate::internal::document::read(&text)?;
    Ok((RuleText::from_node(&node, "")?, entry))
}

/// The key of an override, parsed.
fn key_of(written: &Value) -> Option<Key> {
    let parts = written.as_object()?.iter().filter(|(name, _)| !matches!(name.as_str(), "limit" | "limits"));
    let parts: Option<Vec<_>> = parts
        .map(|(name, value)| {
            let value = value.as_str().map(str::to_owned).unwrap_or_else(|| value.to_string());
            Some(format!("{name}:{}", value.replace('%', "%25").replace('+', "%2B")))
        })
        .collect();
    Key::parse(&parts?.join("+")).ok()
}
