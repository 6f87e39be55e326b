//! `/v1/decisions`: the latest decisions. Denials and allowed requests are listed separately, and of one key only a few
//! in each second, so that an attack does not replace the rest.

use hyper::StatusCode;
use serde::{Deserialize, Serialize};

use crate::admin::live::DecisionReport;
use crate::admin::request::{self, AdminRequest};
use crate::admin::scope::{self, Scope};
use crate::connection::FullResponse;
use crate::fleet::{NodeAnswer, NodesAnswered};
use crate::insight::{InsightData, ListedDecision, ListedOutcome};
use crate::response::{self, ProblemDetails};

#[derive(Serialize, Deserialize)]
struct DecisionsResponse {
    decisions: Vec<DecisionReport>,
    nodes: NodesAnswered,
}

impl NodeAnswer for DecisionsResponse {
    fn node(&self) -> Option<&str> {
        self.nodes.answered.first().map(String::as_str)
    }
}

/// `?outcome=denied|allowed&rule=ID&key=KEY&limit=100&scope=node|fleet`
pub async fn list(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [outcome, rule, key, limit, scope] = call.parameters(["outcome", "rule", "key", "limit", "scope"])?;
    let outcomes = [("denied", ListedOutcome::Denied), ("allowed", ListedOutcome::Allowed)];
    let outcome = request::choice("outcome", outcome.as_deref(), outcomes)?;
    let limit = request::limit(limit.as_deref())?;
    let scope = Scope::parse(scope.as_deref())?;
    let is_listed = |decision: &ListedDecision| {
        let has_rule =
            rule.as_deref().is_none_or(|rule| decision.rule.as_ref().is_some_and(|id| id.as_str() == rule));
        has_rule && key.as_deref().is_none_or(|key| decision.key.as_deref() == Some(key))
    };
    let own = |data: &InsightData| -> Vec<DecisionReport> {
        let listed = data.decisions(outcome).into_iter().filter(|one| is_listed(one));
        listed.take(limit).map(DecisionReport::of).collect()
    };
    let mut decisions = own(&call.insight()?.data());
    let mut nodes = NodesAnswered::own(call.gate());
    if scope == Scope::Fleet {
        nodes = scope::ask_others(&call, &[], "", |answer: DecisionsResponse| {
            decisions.extend(answer.decisions);
            // Of each node at most as many are left as the answer has in all.
            decisions.sort_by(|a, b| b.at.total_cmp(&a.at));
            decisions.truncate(limit);
        })
        .await?;
    }
    Ok(response::json(StatusCode::OK, &DecisionsResponse { decisions, nodes }))
}
