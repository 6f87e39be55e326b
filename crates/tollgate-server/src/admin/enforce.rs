//! `/v1/enforce`: the panic switch; of the whole fleet if there is a database.

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::internal::Enforce;
use tollgate::internal::time::calendar::rfc3339;
use tollgate_stores::rules::{Edit, ItemId};

use crate::admin::edit::{EditOptions, EditOutcome, UrgentEdit, db_problem, pending_text, with_etag};
use crate::admin::request::AdminRequest;
use crate::connection::FullResponse;
use crate::gate::Gate;
use crate::json_body::{self, JsonObject};
use crate::response::{self, ProblemDetails};

const MAX_BODY_BYTES: usize = 4 << 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewEnforce {
    enforce: String,
}

/// The position of this node's switch, and its last change.
pub async fn show(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    call.parameters([])?;
    current_response(call.gate()).await
}

async fn current_response(gate: &Gate) -> Result<FullResponse, ProblemDetails> {
    let position = gate.engine.enforce().name();
    let Some(follower) = gate.rules_follower.get() else {
        return Ok(response::json(StatusCode::OK, &enforce_json(position, "node", None)));
    };
    let history = match follower.db() {
        Ok(db) => db.history(ItemId::enforce(), None, 1).await,
        Err(error) => Err(error),
    };
    let last = match history {
        Ok(mut history) => history.pop(),
        Err(error) if error.is_transient() => None,
        Err(error) => return Err(db_problem(error)),
    };
    let version = last.as_ref().map(|last| last.change.version);
    let last_change = last.map(|last| (last.change.version.to_string(), last.author, rfc3339(last.at)));
    Ok(with_etag(response::json(StatusCode::OK, &enforce_json(position, "fleet", last_change)), version))
}

pub async fn set(mut call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let terms = EditOptions::of(&call)?;
    let body = call.read_body(MAX_BODY_BYTES).await?;
    let JsonObject(new_enforce): JsonObject<NewEnforce> = json_body::parse(&body)?;
    let wrong = || ProblemDetails::bad_field("enforce", "'enforce' must be on, shadow or off");
    let position = Enforce::parse(&new_enforce.enforce).ok_or_else(wrong)?;
    let gate = call.gate();
    let Some(follower) = gate.rules_follower.get() else {
        let before = gate.engine.enforce();
        if terms.dry_run {
            let change = json!({ "what": "setting", "name": "enforce", "before": before.name(), "after": position.name() });
            let changes = if before == position { Vec::new() } else { vec![change] };
            return Ok(response::json(StatusCode::OK, &json!({ "dry_run": true, "changes": changes })));
        }
        gate.engine.set_enforce(position);
        tracing::warn!(caller = call.caller, "enforce {} → {}", before.name(), position.name());
        return Ok(response::json(StatusCode::OK, &enforce_json(position.name(), "node", None)));
    };
    let expected = terms.expected(follower, &ItemId::enforce()).await?;
    let changes = match call.apply_urgent_edit(&terms, Edit::enforce(position, expected)).await? {
        UrgentEdit::Done(EditOutcome::DryRun(answer)) => return Ok(answer),
        UrgentEdit::Done(EditOutcome::Applied(changes)) => changes,
        UrgentEdit::Pending(deferred) => {
            gate.engine.set_enforce(position);
            tracing::warn!(
                caller = call.caller,
                "the panic switch of this node was set to {}",
                position.name()
            );
            let mut answer = enforce_json(position.name(), "node", None);
            answer["pending"] = pending_text(deferred).into();
            return Ok(response::json(StatusCode::ACCEPTED, &answer));
        }
    };
    let Some(change) = changes.last() else { return current_response(gate).await };
    tracing::warn!(caller = call.caller, "the panic switch was set to {}", position.name());
    let last_change = Some((change.version.to_string(), call.caller.clone(), rfc3339(terms.at)));
    Ok(with_etag(
        response::json(StatusCode::OK, &enforce_json(position.name(), "fleet", last_change)),
        Some(change.version),
    ))
}

/// `last_change` is the version, the author and the time of the last change.
fn enforce_json(position: &str, scope: &str, last_change: Option<(String, String, String)>) -> Value {
    let (version, author, at) = match last_change {
        Some((version, author, at)) => (Some(version), Some(author), Some(at)),
        None => (None, None, None),
    };
    json!({ "enforce": position, "scope": scope, "version": version, "who": author, "at": at })
}
