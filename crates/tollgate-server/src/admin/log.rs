//! `/v1/log`: the level and the format of this node's log.

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::admin::request::{AdminRequest, choice, flag};
use crate::connection::FullResponse;
use crate::json_body::{self, JsonObject};
use crate::log::{self, FORMATS, LEVELS, LogSettings};
use crate::response::{self, ProblemDetails};

const MAX_BODY_BYTES: usize = 4 << 10;

/// What is left out stays as it is.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewLog {
    level: Option<String>,
    format: Option<String>,
}

pub async fn show(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    call.parameters([])?;
    Ok(response::json(StatusCode::OK, &log_json(log::settings())))
}

/// Changes the log until the next start, or until `log` changes in the file.
pub async fn set(mut call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [dry_run] = call.parameters(["dry_run"])?;
    let dry_run = flag("dry_run", dry_run.as_deref())?;
    let body = call.read_body(MAX_BODY_BYTES).await?;
    let JsonObject(new_log): JsonObject<NewLog> = json_body::parse(&body)?;
    let before = log::settings();
    let mut after = before;
    if new_log.level.is_some() {
        after.level = choice("level", new_log.level.as_deref(), LEVELS)?;
    }
    if new_log.format.is_some() {
        after.format = choice("format", new_log.format.as_deref(), FORMATS)?;
    }
    if dry_run {
        let change =
            json!({ "what": "setting", "name": "log", "before": log_json(before), "after": log_json(after) });
        let changes = if before == after { Vec::new() } else { vec![change] };
        return Ok(response::json(StatusCode::OK, &json!({ "dry_run": true, "changes": changes })));
    }
    if before != after {
        log::set(after);
        // A warning: it is written at every level but `error`.
        tracing::warn!(
            caller = call.caller,
            level = after.level.name(),
            format = after.format.name(),
            "the log was changed"
        );
    }
    Ok(response::json(StatusCode::OK, &log_json(after)))
}

fn log_json(settings: LogSettings) -> Value {
    json!({ "level": settings.level.name(), "format": settings.format.name() })
}
