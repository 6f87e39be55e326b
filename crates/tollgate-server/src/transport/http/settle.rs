//! `POST /v1/settle`: settles the charges of a receipt.

use std::borrow::Cow;

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::json;

use crate::connection::FullResponse;
use crate::gate::Gate;
use crate::json_body::{self, JsonObject};
use crate::receipt::{ReceiptError, Settlement};
use crate::response::{self, ProblemDetails};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SettleRequest<'a> {
    #[serde(borrow)]
    receipt: Cow<'a, str>,
    cost: Option<u64>,
    status: Option<u16>,
}

/// Settles once; without `cost` and `status` everything is refunded.
pub async fn settle(gate: &Gate, body: &[u8]) -> Result<FullResponse, ProblemDetails> {
    let JsonObject(SettleRequest { receipt, cost, status }) = json_body::parse(body)?;
    if status.is_some_and(|status| !(100..600).contains(&status)) {
        return Err(ProblemDetails::bad_field("status", "'status' is not an HTTP status: use 100 to 599"));
    }
    let cost = if status.is_none() { Some(cost.unwrap_or(0)) } else { cost };
    let charges =
        gate.settle_receipt(&receipt, Settlement { cost, status }).await.map_err(receipt_problem)?;
    Ok(response::json(StatusCode::OK, &json!({ "settled": charges })))
}

fn receipt_problem(error: ReceiptError) -> ProblemDetails {
    let status = match error {
        ReceiptError::Forged => StatusCode::BAD_REQUEST,
        ReceiptError::OtherProcess | ReceiptError::Used => StatusCode::CONFLICT,
        ReceiptError::Expired => StatusCode::GONE,
        ReceiptError::TooMany | ReceiptError::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
    };
    ProblemDetails { field: Some("receipt".to_owned()), ..ProblemDetails::new(status, error.to_string()) }
}
