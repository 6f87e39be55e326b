//! `/v1/nodes`: the nodes that have announced themselves in the rules database, and what each says about itself.

use std::collections::HashMap;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tollgate::Time;
use tollgate_stores::rules::AnnouncedNode;

use crate::admin::health::{self, Detail};
use crate::admin::request::{self, AdminRequest};
use crate::admin::scope::{self, Scope};
use crate::connection::FullResponse;
use crate::fleet::{NodeAnswer, NodeList, NodesAnswered, node_name};
use crate::response::{self, ProblemDetails};

#[derive(Serialize, Deserialize)]
struct NodesResponse {
    nodes: Vec<NodeReport>,
    /// Why the list may be incomplete.
    #[serde(default)]
    trouble: Option<String>,
}

#[derive(Clone, Serialize, Deserialize)]
struct NodeReport {
    node: String,
    address: Option<String>,
    /// Of the program.
    version: String,
    generation: u64,
    rules_version: Option<String>,
    /// Seconds since 1970.
    last_seen: Option<f64>,
    is_self: bool,
    answered: bool,
    why: Option<String>,
    /// As in `/healthz`.
    health: Value,
}

impl NodeAnswer for NodesResponse {
    fn node(&self) -> Option<&str> {
        self.nodes.first().map(|report| report.node.as_str())
    }
}

/// `?scope=fleet|node`
pub async fn list(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [scope] = call.parameters(["scope"])?;
    let scopes = [("fleet", Scope::Fleet), ("node", Scope::Node)];
    let scope = request::choice("scope", scope.as_deref(), scopes)?;
    let own = own_report(&call)?;
    if scope == Scope::Node {
        return Ok(response::json(StatusCode::OK, &NodesResponse { nodes: vec![own], trouble: None }));
    }
    let fleet = scope::fleet(&call)?;
    let list = fleet.nodes(call.gate()).await;
    let mut reports: HashMap<String, NodeReport> = HashMap::new();
    let collect = |node: &AnnouncedNode, answer: NodesResponse| {
        if let Some(report) = answer.nodes.into_iter().next() {
            reports.insert(node.address.clone(), report);
        }
    };
    let answers = fleet.ask(call.gate(), &list, "/v1/nodes?scope=node", collect).await?;
    let nodes = all_nodes(own, &list, reports, &answers);
    Ok(response::json(StatusCode::OK, &NodesResponse { nodes, trouble: list.trouble }))
}

/// The nodes that have the key of a ticket.
pub struct TicketKeyHolders {
    /// Their ids and addresses.
    pub holders: Vec<(String, String)>,
    /// The addresses of nodes that did not tell their key.
    pub silent: Vec<String>,
}

/// Asks the other nodes for their ticket keys; `None` if none is known.
pub async fn ticket_key_holders(call: &AdminRequest, key_id: &str) -> Option<TicketKeyHolders> {
    call.gate().rules_follower.get()?;
    let fleet = scope::fleet(call).ok()?;
    let list = fleet.nodes(call.gate()).await;
    let mut holders = Vec::new();
    let collect = |node: &AnnouncedNode, answer: NodesResponse| {
        let report = answer.nodes.into_iter().next();
        if let Some(report) = report.filter(|report| report.health["ticket_key"]["id"] == key_id) {
            holders.push((report.node, node.address.clone()));
        }
    };
    let answers = fleet.ask(call.gate(), &list, "/v1/nodes?scope=node", collect).await.ok()?;
    let silent: Vec<_> = answers.missing.into_iter().map(|missing| missing.address).collect();
    holders.sort();
    (answers.answered.len() > 1 || !silent.is_empty()).then_some(TicketKeyHolders { holders, silent })
}

fn own_report(call: &AdminRequest) -> Result<NodeReport, ProblemDetails> {
    let gate = call.gate();
    let rules_version = gate.rules_follower.get().and_then(|follower| follower.status().version);
    Ok(NodeReport {
        node: node_name(gate.engine.node()),
        address: scope::fleet(call)?.advertise().map(str::to_owned),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        generation: gate.engine.policy().generation(),
        rules_version: rules_version.map(|version| version.to_string()),
        last_seen: Some(seconds(gate.now())),
        is_self: true,
        answered: true,
        why: None,
        health: health::health_json(gate, call.admin.proxy.as_deref(), Detail::Servers),
    })
}

/// This node, then the others by address: with their answers, or as they announced themselves last.
fn all_nodes(
    own: NodeReport,
    list: &NodeList,
    mut reports: HashMap<String, NodeReport>,
    answers: &NodesAnswered,
) -> Vec<NodeReport> {
    let mut nodes = vec![own];
    for node in &list.nodes {
        let announced = NodeReport {
            node: node_name(node.id),
            address: Some(node.address.clone()),
            version: node.version.clone(),
            generation: node.generation,
            rules_version: node.rules_version.clone(),
            last_seen: Some(seconds(node.seen)),
            is_self: false,
            answered: false,
            why: None,
            health: Value::Null,
        };
        if let Some(report) = reports.remove(&node.address) {
            let NodeReport { address, last_seen, .. } = announced;
            nodes.push(NodeReport { address, last_seen, is_self: false, ..report });
        } else if let Some(missing) = answers.missing.iter().find(|missing| missing.address == node.address) {
            nodes.push(NodeReport { why: Some(missing.why.clone()), ..announced });
        }
    }
    nodes
}

fn seconds(at: Time) -> f64 {
    (at.nanos() / 1_000_000) as f64 / 1_000.0
}
