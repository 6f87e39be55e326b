//! `/v1/enforce`: the panic switch, of the whole fleet where there is a database.

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::Enforce;
use tollgate::time::calendar::rfc3339;
use tollgate_stores::rules::{Edit, Item};

use crate::admin::call::Call;
use crate::admin::edit::{Made, Terms, failed, tagged};
use crate::answer::{self, Problem};
use crate::body::{self, Object};
use crate::connection::Answer;
use crate::gate::Gate;

const MAX_BODY_BYTES: usize = 4 << 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Position {
    enforce: String,
}

/// Where the switch of this node stands, and who has turned it last.
pub async fn show(call: Call) -> Result<Answer, Problem> {
    call.parameters([])?;
    shown(call.gate()).await
}

async fn shown(gate: &Gate) -> Result<Answer, Problem> {
    let position = gate.engine.enforce().name();
    let Some(rulebook) = gate.rulebook.get() else {
        return Ok(answer::json(StatusCode::OK, &told(position, "node", None)));
    };
    let history = match rulebook.db() {
        Ok(db) => db.history(Item::enforce(), None, 1).await,
        Err(error) => Err(error),
    };
    let last = match history {
        Ok(mut history) => history.pop(),
        Err(error) if error.is_transient() => None,
        Err(error) => return Err(failed(error)),
    };
    let version = last.as_ref().map(|last| last.change.version);
    let turned = last.map(|last| (last.change.version.to_string(), last.who, rfc3339(last.at)));
    Ok(tagged(answer::json(StatusCode::OK, &told(position, "fleet", turned)), version))
}

pub async fn turn(mut call: Call) -> Result<Answer, Problem> {
    let terms = Terms::of(&call)?;
    let body = call.body(MAX_BODY_BYTES).await?;
    let Object(asked): Object<Position> = body::parse(&body)?;
    let wrong = || Problem::bad_field("enforce", "'enforce' is on, shadow or off");
    let position = Enforce::parse(&asked.enforce).ok_or_else(wrong)?;
    let (gate, now) = (call.gate(), call.gate().now());
    let Some(rulebook) = gate.rulebook.get() else {
        let before = gate.engine.enforce();
        if terms.dry_run {
            let change = json!({ "what": "setting", "name": "enforce", "before": before.name(), "after": position.name() });
            let changes = if before == position { Vec::new() } else { vec![change] };
            return Ok(answer::json(StatusCode::OK, &json!({ "dry_run": true, "changes": changes })));
        }
        gate.engine.set_enforce(position);
        tracing::warn!(who = call.who, "enforce {} → {}", before.name(), position.name());
        return Ok(answer::json(StatusCode::OK, &told(position.name(), "node", None)));
    };
    let expected = terms.expected(rulebook, &Item::enforce()).await?;
    let changes = match call.make(&terms, vec![Edit::enforce(position, expected)]).await? {
        Made::Would(answer) => return Ok(answer),
        Made::Done(changes) => changes,
    };
    let Some(change) = changes.last() else { return shown(gate).await };
    tracing::warn!(who = call.who, "the switch was turned to {}", position.name());
    let turned = Some((change.version.to_string(), call.who.clone(), rfc3339(now)));
    Ok(tagged(answer::json(StatusCode::OK, &told(position.name(), "fleet", turned)), Some(change.version)))
}

/// `turned` is the version, by whom, and when.
fn told(position: &str, scope: &str, turned: Option<(String, String, String)>) -> Value {
    let (version, who, at) = match turned {
        Some((version, who, at)) => (Some(version), Some(who), Some(at)),
        None => (None, None, None),
    };
    json!({ "enforce": position, "scope": scope, "version": version, "who": who, "at": at })
}
