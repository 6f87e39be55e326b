//! The other nodes of a fleet: each announces its admin address in the rules database, and calls those of the others
//! for views of the whole fleet.
//!
//! A call of another node asks for that node's own data only, so calls never cascade, and a node never calls itself.
//! Answers have a deadline and a bound on their bytes; a node that does not answer is named, with the reason. The token
//! is sent over verified TLS or to this machine, and never logged.

use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use hyper::StatusCode;
use rustls::RootCertStore;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tollgate::Time;
use tollgate::internal::lock;
use tollgate::internal::time::format_duration;
use tollgate_stores::rules::AnnouncedNode;

use crate::client;
use crate::config::FleetConfig;
use crate::gate::Gate;
use crate::response::ProblemDetails;

mod announce;
mod call;

pub use announce::announce;
use call::{ByteBudget, NodeCall, NodeClient};

/// How long the other nodes may take to answer.
const DEADLINE: Duration = Duration::from_secs(2);
/// How long the database may take to list the nodes: later, those of the last list are called.
const LIST_TIMEOUT: Duration = Duration::from_secs(1);
/// Views of the whole fleet at the same time.
const MAX_VIEWS: usize = 4;
/// A node that was not seen for longer is not called. It announces itself every 10 s, and clocks may differ by a minute.
const MAX_SILENCE: Duration = Duration::from_secs(120);

pub struct Fleet {
    config: FleetConfig,
    /// The configured authorities.
    roots: Option<RootCertStore>,
    client: OnceLock<NodeClient>,
    /// The nodes as they were read last.
    known: Mutex<KnownNodes>,
    views: Semaphore,
}

#[derive(Clone, Default)]
struct KnownNodes {
    nodes: Vec<AnnouncedNode>,
    read_at: Time,
    /// Why this node is not announced.
    announce_error: Option<String>,
}

/// The nodes in the database, and what is wrong with the list.
pub struct NodeList {
    pub nodes: Vec<AnnouncedNode>,
    pub read_at: Time,
    pub trouble: Option<String>,
}

/// An answer of another node.
pub trait NodeAnswer: DeserializeOwned + Send + 'static {
    /// The id of the node.
    fn node(&self) -> Option<&str>;
}

/// A node whose data is not in an answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MissingNode {
    pub node: String,
    pub address: String,
    pub why: String,
}

/// The nodes whose data is in an answer, and those whose data is missing.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodesAnswered {
    pub answered: Vec<String>,
    pub missing: Vec<MissingNode>,
}

impl NodesAnswered {
    /// Only this node.
    pub fn own(gate: &Gate) -> NodesAnswered {
        NodesAnswered { answered: vec![node_name(gate.engine.node())], missing: Vec::new() }
    }
}

/// The id of a node as it is shown.
pub fn node_name(id: u32) -> String {
    format!("{id:08x}")
}

impl Fleet {
    /// Reads the configured authorities.
    pub fn new(config: FleetConfig) -> anyhow::Result<Fleet> {
        let roots = config.ca_file.as_deref().map(crate::tls::roots).transpose()?;
        Ok(Fleet {
            config,
            roots,
            client: OnceLock::new(),
            known: Mutex::default(),
            views: Semaphore::new(MAX_VIEWS),
        })
    }

    /// The address that this node announces.
    pub fn advertise(&self) -> Option<&str> {
        self.config.advertise.as_deref()
    }

    fn known(&self) -> std::sync::MutexGuard<'_, KnownNodes> {
        lock(&self.known)
    }

    /// All nodes in the database; those that were known last if it does not answer.
    pub async fn nodes(&self, gate: &Gate) -> NodeList {
        let Some(follower) = gate.rules_follower.get() else {
            return NodeList { nodes: Vec::new(), read_at: gate.now(), trouble: None };
        };
        let read = async { follower.db()?.nodes().await };
        let error = match timeout(LIST_TIMEOUT, read).await {
            Ok(Ok(nodes)) => {
                let mut known = self.known();
                known.nodes = nodes;
                known.read_at = gate.now();
                let KnownNodes { nodes, read_at, announce_error } = known.clone();
                return NodeList { nodes, read_at, trouble: announce_error };
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("{} does not answer", follower.name),
        };
        let KnownNodes { nodes, read_at, .. } = self.known().clone();
        let age = format_duration(Duration::from_secs(gate.now().since(read_at).as_secs()));
        let trouble = match nodes.is_empty() {
            true => format!("the nodes are not known: {error}"),
            false => format!("the nodes are as of {age} ago: {error}"),
        };
        NodeList { nodes, read_at, trouble: Some(trouble) }
    }

    /// Asks all other nodes for a path of the admin API, in parallel. Answers are passed to `each` as they arrive.
    pub async fn ask<T: NodeAnswer>(
        &self,
        gate: &Gate,
        list: &NodeList,
        path: &str,
        mut each: impl FnMut(&AnnouncedNode, T),
    ) -> Result<NodesAnswered, ProblemDetails> {
        let busy = || {
            let detail = format!("{MAX_VIEWS} views of the whole fleet are being made already: try again");
            ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        };
        let deadline = Instant::now() + DEADLINE;
        let _view_permit = timeout_at(deadline, self.views.acquire()).await.map_err(|_| busy())?;
        let own = gate.engine.node();
        let is_other =
            |node: &&AnnouncedNode| node.id != own && Some(node.address.as_str()) != self.advertise();
        let mut answered = BTreeSet::from([node_name(own)]);
        let mut missing = Vec::new();
        let mut calls = JoinSet::new();
        let budget = ByteBudget::default();
        let token = self.token().await;
        for node in list.nodes.iter().filter(is_other) {
            let silence = list.read_at.since(node.seen);
            let client = if silence > MAX_SILENCE {
                let silence = format_duration(Duration::from_secs(silence.as_secs()));
                Err(format!("it was last seen {silence} ago"))
            } else {
                token.clone().and_then(|token| Ok((self.client(&node.address)?, token)))
            };
            match client {
                Ok((client, token)) => {
                    let call = NodeCall {
                        client,
                        address: node.address.clone(),
                        path: path.to_owned(),
                        token,
                        budget: budget.clone(),
                    };
                    let node = node.clone();
                    calls.spawn(async move { (node, call.run::<T>(deadline, DEADLINE).await) });
                }
                Err(why) => missing.push(missing_node(node, why)),
            }
        }
        while let Some(done) = calls.join_next().await {
            // A call that panicked has no node to name; the panic is logged.
            let Ok((node, answer)) = done else { continue };
            match answer {
                Ok(answer) => {
                    let name = answer.value.node().unwrap_or_default().to_owned();
                    if answered.insert(name.clone()) {
                        each(&node, answer.value);
                    } else {
                        let why = format!(
                            "node {name} answers there, which is counted already: advertise is the node's own address"
                        );
                        missing.push(missing_node(&node, why));
                    }
                }
                Err(why) => missing.push(missing_node(&node, why)),
            }
        }
        missing.sort_by(|a, b| a.address.cmp(&b.address));
        Ok(NodesAnswered { answered: answered.into_iter().collect(), missing })
    }

    /// The client for an address; system roots are read when they are needed first.
    fn client(&self, address: &str) -> Result<NodeClient, String> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let is_https = address.starts_with("https:");
        let roots = match &self.roots {
            Some(roots) => roots.clone(),
            None if is_https => client::system_roots().map_err(|error| error.to_string())?,
            None => return Ok(call::new_client(RootCertStore::empty(), DEADLINE)),
        };
        Ok(self.client.get_or_init(|| call::new_client(roots, DEADLINE)).clone())
    }

    /// The token of the file, which may have changed; `None` if there is no file.
    async fn token(&self) -> Result<Option<hyper::header::HeaderValue>, String> {
        let Some(file) = self.config.token_file.clone() else { return Ok(None) };
        let read = move || client::file_authorization("fleet.token_file", &file);
        let read = tokio::task::spawn_blocking(read).await.map_err(|error| error.to_string())?;
        read.map(Some).map_err(|error| error.to_string())
    }
}

fn missing_node(node: &AnnouncedNode, why: String) -> MissingNode {
    MissingNode { node: node_name(node.id), address: node.address.clone(), why }
}
