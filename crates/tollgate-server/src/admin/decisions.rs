//! `/v1/decisions`: the latest decisions. Denials and allowed requests are listed separately, and of one key only a few
//! in each second, so that an attack does not replace the rest.

use std::collections::HashMap;
use std::sync::Arc;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use tollgate::internal::PolicySnapshot;
use tollgate::internal::engine::LogKeys;
use tollgate::internal::fingerprint::Secret;
use tollgate::internal::identity::Key;
use tollgate::internal::rule::RuleId;

use crate::admin::keys::parse_key_candidates;
use crate::admin::live::DecisionReport;
use crate::admin::request::{self, AdminRequest};
use crate::admin::scope::{self, Scope};
use crate::connection::FullResponse;
use crate::fleet::{NodeAnswer, NodesAnswered};
use crate::insight::{InsightData, ListedDecision, ListedOutcome, key_text};
use crate::response::{self, ProblemDetails};

const PARAMETERS: [&str; 5] = ["outcome", "rule", "key", "limit", "scope"];

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
    let [outcome, rule, key, limit, scope] = call.parameters(PARAMETERS)?;
    let outcomes = [("denied", ListedOutcome::Denied), ("allowed", ListedOutcome::Allowed)];
    let outcome = request::choice("outcome", outcome.as_deref(), outcomes)?;
    let limit = request::limit(limit.as_deref())?;
    let scope = Scope::parse(scope.as_deref())?;
    let insight = call.insight()?;
    let mut wanted = key.map(|shown| WantedKey::new(&call, shown, insight.log_keys())).transpose()?;
    let mut is_listed = |decision: &ListedDecision| {
        let has_rule =
            rule.as_deref().is_none_or(|rule| decision.rule.as_ref().is_some_and(|id| id.as_str() == rule));
        has_rule && wanted.as_mut().is_none_or(|wanted| wanted.is_of(decision))
    };
    let mut own = |data: &InsightData| -> Vec<DecisionReport> {
        let listed = data.decisions(outcome).into_iter().filter(|one| is_listed(one));
        listed.take(limit).map(DecisionReport::of).collect()
    };
    let mut decisions = own(&insight.data());
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

/// A key whose decisions are wanted: as it is shown, or in plain text. A masked key has another mark under each rule.
struct WantedKey {
    shown: String,
    /// What the plain text may mean.
    keys: Vec<Key>,
    policy: Arc<PolicySnapshot>,
    secret: Secret,
    log_keys: LogKeys,
    /// How each rule shows it.
    texts: HashMap<RuleId, Vec<Arc<str>>>,
}

impl WantedKey {
    fn new(call: &AdminRequest, shown: String, log_keys: LogKeys) -> Result<WantedKey, ProblemDetails> {
        let [_, _, raw, _, _] = call.raw_parameters(PARAMETERS)?;
        let engine = &call.gate().engine;
        Ok(WantedKey {
            shown,
            // A mark of a key without a text is not a key.
            keys: raw.map(parse_key_candidates).and_then(Result::ok).unwrap_or_default(),
            policy: engine.policy(),
            secret: engine.secret().clone(),
            log_keys,
            texts: HashMap::new(),
        })
    }

    fn is_of(&mut self, decision: &ListedDecision) -> bool {
        let Some(text) = &decision.key else { return false };
        if **text == *self.shown {
            return true;
        }
        // The mark of a banned key does not depend on a rule, and cannot be computed here.
        let Some(rule) = &decision.rule else { return false };
        if !self.texts.contains_key(rule) {
            let counted = self.keys.iter().filter_map(|key| {
                let (key, mark) = self.policy.counted_key(rule.as_str(), key, &self.secret)?;
                Some(key_text(&key, mark.to_bits(), self.log_keys))
            });
            self.texts.insert(rule.clone(), counted.collect());
        }
        self.texts[rule].contains(text)
    }
}
