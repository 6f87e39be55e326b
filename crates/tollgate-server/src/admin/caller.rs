//! `/v1/caller`: the name and the role of the caller, so that a client can show what it may do.

use hyper::StatusCode;
use serde_json::json;

use crate::admin::request::AdminRequest;
use crate::connection::FullResponse;
use crate::response::{self, ProblemDetails};

pub async fn show(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [] = call.parameters([])?;
    let role = call.admin.role(call.headers());
    Ok(response::json(StatusCode::OK, &json!({ "name": call.caller, "role": role.name() })))
}
