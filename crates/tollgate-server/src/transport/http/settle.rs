//! `POST /v1/settle`: what a caller had asked for has come to an end.

use std::borrow::Cow;

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::json;

use crate::answer::{self, Problem};
use crate::body::{self, Object};
use crate::connection::Answer;
use crate::gate::Gate;
use crate::receipt::{ReceiptError, Settlement};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settled<'a> {
    #[serde(borrow)]
    receipt: Cow<'a, str>,
    cost: Option<u64>,
    status: Option<u16>,
}

/// Settles once; without `cost` and `status`, everything is given back.
pub async fn settle(gate: &Gate, body: &[u8]) -> Result<Answer, Problem> {
    let Object(Settled { receipt, cost, status }) = body::parse(body)?;
    if status.is_some_and(|status| !(100..600).contains(&status)) {
        return Err(Problem::bad_field("status", "'status' is no status of HTTP: 100 to 599"));
    }
    let cost = if status.is_none() { Some(cost.unwrap_or(0)) } else { cost };
    let charges = gate.settle_receipt(&receipt, Settlement { cost, status }).await.map_err(refused)?;
    Ok(answer::json(StatusCode::OK, &json!({ "settled": charges })))
}

fn refused(error: ReceiptError) -> Problem {
    let status = match error {
        ReceiptError::Forged => StatusCode::BAD_REQUEST,
        ReceiptError::Elsewhere | ReceiptError::Used => StatusCode::CONFLICT,
        ReceiptError::TooOld => StatusCode::GONE,
        ReceiptError::TooMany | ReceiptError::Unknown => StatusCode::SERVICE_UNAVAILABLE,
    };
    Problem { field: Some("receipt".to_owned()), ..Problem::new(status, error.to_string()) }
}
