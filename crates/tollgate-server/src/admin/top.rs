//! `/v1/top`: the keys with the most decisions, each with the bounds of its count.

use hyper::StatusCode;
use serde::{Deserialize, Serialize};

use crate::admin::request::{self, AdminRequest, MAX_LIMIT};
use crate::admin::scope::{self, Scope};
use crate::connection::FullResponse;
use crate::fleet::{NodeAnswer, NodesAnswered};
use crate::insight::{TopList, TopOutcome, TopWindow, merge_tops};
use crate::response::{self, ProblemDetails};

#[derive(Serialize, Deserialize)]
struct TopResponse {
    outcome: String,
    window: String,
    #[serde(flatten)]
    list: TopList,
    nodes: NodesAnswered,
}

impl NodeAnswer for TopResponse {
    fn node(&self) -> Option<&str> {
        self.nodes.answered.first().map(String::as_str)
    }
}

/// `?outcome=denied|allowed|near&window=1m|5m|1h&rule=ID&limit=100&scope=node|fleet`
pub async fn list(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let names = ["outcome", "window", "rule", "limit", "scope"];
    let [outcome, window, rule, limit, scope] = call.parameters(names)?;
    let outcomes =
        [("denied", TopOutcome::Denied), ("allowed", TopOutcome::Allowed), ("near", TopOutcome::Near)];
    let windows = [("1m", TopWindow::Minute), ("5m", TopWindow::FiveMinutes), ("1h", TopWindow::Hour)];
    let top_outcome = request::choice("outcome", outcome.as_deref(), outcomes)?;
    let top_window = request::choice("window", window.as_deref(), windows)?;
    let limit = request::limit(limit.as_deref())?;
    let scope = Scope::parse(scope.as_deref())?;
    let own_limit = if scope == Scope::Fleet { MAX_LIMIT } else { limit };
    let mut list = call.insight()?.data().top.top(top_outcome, top_window, rule.as_deref(), own_limit);
    let mut nodes = NodesAnswered::own(call.gate());
    if scope == Scope::Fleet {
        let mut lists = vec![(nodes.answered[0].clone(), list)];
        let longest = format!("limit={MAX_LIMIT}");
        nodes = scope::ask_others(&call, &["limit"], &longest, |answer: TopResponse| {
            let node = answer.node().unwrap_or_default().to_owned();
            lists.push((node, answer.list));
        })
        .await?;
        list = merge_tops(lists);
        list.truncate(limit);
    }
    let body = TopResponse {
        outcome: outcome.unwrap_or_else(|| "denied".to_owned()),
        window: window.unwrap_or_else(|| "1m".to_owned()),
        list,
        nodes,
    };
    Ok(response::json(StatusCode::OK, &body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_can_be_read_by_another_node() {
        let body = r#"{"outcome":"denied","window":"1m","from":60,"keys":[
            {"rule":null,"key":"ip:192.0.2.1","count":5,"error":1}],"unlisted":3,
            "nodes":{"answered":["0000000a"],"missing":[]},"later":true}"#;
        let answer: TopResponse = serde_json::from_str(body).expect("an answer");
        assert_eq!((answer.node(), answer.list.from, answer.list.unlisted), (Some("0000000a"), 60, 3));
        let key = &answer.list.keys[0];
        assert_eq!((&*key.key, key.count, key.error, &key.node), ("ip:192.0.2.1", 5, 1, &None));
    }
}
