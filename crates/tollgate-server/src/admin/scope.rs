//! `scope`: whether an answer is of this node, or of all nodes of the fleet.

use hyper::StatusCode;

use crate::admin::request::{self, AdminRequest};
use crate::fleet::{Fleet, NodeAnswer, NodesAnswered};
use crate::response::ProblemDetails;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    Node,
    Fleet,
}

impl Scope {
    /// This node by default.
    pub fn parse(value: Option<&str>) -> Result<Scope, ProblemDetails> {
        request::choice("scope", value, [("node", Scope::Node), ("fleet", Scope::Fleet)])
    }
}

/// The configured fleet.
pub fn fleet(call: &AdminRequest) -> Result<&Fleet, ProblemDetails> {
    let starting = || ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, "the node is starting");
    call.gate().fleet.get().ok_or_else(starting)
}

/// Asks the other nodes for the same path with the same query, without `left_out` and with `added` parameters.
pub async fn ask_others<T: NodeAnswer>(
    call: &AdminRequest,
    left_out: &[&str],
    added: &str,
    mut each: impl FnMut(T),
) -> Result<NodesAnswered, ProblemDetails> {
    if call.gate().rules_follower.get().is_none() {
        let detail = "nodes find each other in the rules database: set rules_db and, on each node, advertise";
        return Err(ProblemDetails::new(StatusCode::CONFLICT, detail));
    }
    let fleet = fleet(call)?;
    let kept = call.query().split('&').filter(|pair| {
        let name = pair.split('=').next().unwrap_or_default();
        !name.is_empty() && name != "scope" && !left_out.contains(&name)
    });
    let query: Vec<&str> = kept.chain(Some(added).filter(|added| !added.is_empty())).collect();
    let path = format!("{}?{}", call.path(), query.join("&"));
    let list = fleet.nodes(call.gate()).await;
    fleet.ask(call.gate(), &list, &path, |_, answer| each(answer)).await
}
