//! `POST /v1/explain`: why a request is allowed or denied. A request is decided as `/v1/check` would, without charging
//! it; a ticket states why a request was denied in the past.

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use tollgate::Time;

use crate::admin::nodes::{self, TicketKeyHolders};
use crate::admin::request::AdminRequest;
use crate::connection::FullResponse;
use crate::gate::Gate;
use crate::json_body::{self, JsonObject};
use crate::response::{self, ProblemDetails, millis};
use crate::transport::http::{CheckRequest, MAX_CHECK_BYTES};
use tollgate::internal::ticket::{Ticket, TicketError, TicketLimit};

mod rule_source;
mod steps;

use rule_source::RuleSources;

/// Nodes that are named when they did not answer.
const MAX_NAMED: usize = 3;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainRequest<'a> {
    ticket: Option<String>,
    #[serde(borrow)]
    request: Option<JsonObject<CheckRequest<'a>>>,
}

#[derive(Serialize)]
struct Explanation {
    decision: &'static str,
    reason: &'static str,
    rule: Option<String>,
    message: Option<String>,
    retry_after_ms: Option<u64>,
    /// The panic switch.
    enforce: &'static str,
    /// In the order in which a decision takes them.
    steps: Vec<ExplainedStep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ticket: Option<TicketJson>,
}

/// One list, or one limit of one rule.
#[derive(Serialize, Default, Debug)]
struct ExplainedStep {
    step: &'static str,
    rule: Option<String>,
    source: Option<String>,
    matched: bool,
    limit: Option<String>,
    key: Option<String>,
    used: Option<u64>,
    remaining: Option<u64>,
    charged: bool,
    why: String,
    shadow: bool,
}

#[derive(Serialize)]
struct TicketJson {
    node: String,
    id: String,
    /// Unix time in seconds.
    at: f64,
    limit: Option<String>,
    used: Option<u64>,
    cost: Option<u64>,
    key_mark: Option<String>,
}

pub async fn explain(mut call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    call.parameters([])?;
    let body = call.read_body(MAX_CHECK_BYTES).await?;
    let JsonObject(wanted) = json_body::parse::<JsonObject<ExplainRequest<'_>>>(&body)?;
    let gate = call.gate();
    let explanation = match (wanted.ticket, wanted.request) {
        (Some(ticket), None) => {
            let opened = gate.tickets.open(&ticket);
            let ticket = match opened {
                Ok(ticket) => ticket,
                Err(error) => return Err(not_opened(&call, &error).await),
            };
            of_ticket(gate, &ticket)
        }
        (None, Some(JsonObject(request))) => of_request(gate, &request, gate.now()).await?,
        _ => return Err(ProblemDetails::bad_field("body", "expected either 'ticket' or 'request'")),
    };
    Ok(response::json(StatusCode::OK, &explanation))
}

/// Why a ticket cannot be explained here, and which node can.
async fn not_opened(call: &AdminRequest, error: &TicketError) -> ProblemDetails {
    let mut detail = error.to_string();
    if let TicketError::OtherKey { ticket_key, .. } = error
        && let Some(TicketKeyHolders { holders, silent }) = nodes::ticket_key_holders(call, ticket_key).await
    {
        match &holders[..] {
            [(node, address), ..] => {
                detail = format!(
                    "the ticket was sealed with the key {ticket_key} of node {node}: ask that node, with \
                     `tollgate explain TICKET --admin {address}`"
                );
            }
            [] if silent.is_empty() => detail += "; no node of the fleet has that key",
            [] => detail += &format!("; of the fleet, {} did not answer", shortened_list(&silent)),
        }
    }
    ProblemDetails::bad_field("ticket", detail)
}

fn shortened_list(addresses: &[String]) -> String {
    let shown = &addresses[..addresses.len().min(MAX_NAMED)];
    match addresses.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

async fn of_request(
    gate: &Gate,
    request: &CheckRequest<'_>,
    now: Time,
) -> Result<Explanation, ProblemDetails> {
    let snapshot = gate.snapshot();
    let hit = snapshot.identify(request.hit()?, now);
    let lists = gate.engine.list_matches(&snapshot.policy, &hit, now);
    let verdict = gate.peek(&snapshot, &hit, now).await;
    let enforce = gate.engine.enforce();
    let steps = steps::PeekedDecision { gate, snapshot: &snapshot, hit: &hit, verdict: &verdict, enforce };
    Ok(Explanation {
        decision: decision(verdict.allowed),
        reason: verdict.reason.name(),
        rule: verdict.reported().map(|limit| limit.rule.id.to_string()),
        message: verdict.message(),
        retry_after_ms: verdict.retry_after.map(millis),
        enforce: enforce.name(),
        steps: steps.all(&lists),
        ticket: None,
    })
}

fn decision(allowed: bool) -> &'static str {
    if allowed { "allowed" } else { "denied" }
}

fn of_ticket(gate: &Gate, ticket: &Ticket) -> Explanation {
    let limit = ticket.denied_by.as_ref();
    Explanation {
        decision: decision(false),
        reason: ticket.reason.name(),
        rule: limit.map(|limit| limit.rule.to_string()),
        message: None,
        retry_after_ms: limit.and_then(|limit| limit.retry_after_ms),
        enforce: gate.engine.enforce().name(),
        steps: vec![limit.map_or_else(|| step_without_rule(ticket), |limit| ticket_step(gate, limit))],
        ticket: Some(TicketJson {
            node: format!("{:08x}", ticket.id.node),
            id: ticket.id.to_string(),
            at: (ticket.at.nanos() / 1_000_000) as f64 / 1e3,
            limit: limit.map(|limit| limit.limit.clone()),
            used: limit.map(|limit| limit.used),
            cost: limit.map(|limit| limit.cost),
            key_mark: ticket.key_mark.map(|mark| format!("#{:016x}", mark.to_bits())),
        }),
    }
}

/// The limit that denied the request, and what has become of it since.
fn ticket_step(gate: &Gate, limit: &TicketLimit) -> ExplainedStep {
    let policy = gate.engine.policy();
    let live = gate.live.load();
    let configured = || live.envoy.configured_policy()?.rule(limit.rule.as_str());
    let rule = policy.rule(limit.rule.as_str());
    let source = match rule {
        Some(rule) => Some(RuleSources::new(gate).of(rule)),
        None => configured().map(|_| "envoy_config".to_owned()),
    };
    let rule = rule.or_else(configured);
    let TicketLimit { used, cost, .. } = limit;
    let mut why = format!("denied: used {used} under {}, and the request costs {cost}", limit.limit);
    match rule {
        None => why += "; this node has no rule with this id now",
        Some(rule) if rule.all_limits().all(|now| now.limit.to_string() != limit.limit) => {
            let now: Vec<_> = rule.limits.all().map(|now| now.limit.to_string()).collect();
            why += &format!("; the rule has changed since, to {}", now.join(", "));
        }
        Some(_) => {}
    }
    ExplainedStep {
        step: "rule",
        rule: Some(limit.rule.to_string()),
        source,
        matched: true,
        limit: Some(limit.limit.clone()),
        used: Some(*used),
        why,
        ..ExplainedStep::default()
    }
}

fn step_without_rule(ticket: &Ticket) -> ExplainedStep {
    use tollgate::internal::verdict::Reason;
    let (step, why) = match ticket.reason {
        Reason::Ban => ("ban", "denied: the client was banned".to_owned()),
        reason => ("rule", format!("denied: {}", reason.name())),
    };
    ExplainedStep { step, matched: true, why, ..ExplainedStep::default() }
}
