//! The proxy in front of an API, end to end.

pub mod api;
mod attacks;
mod bodies;
mod command;
mod egress;
mod hold;
mod http2;
mod identity;
mod idle_clients;
mod limit_req;
mod messages;
mod plain_requests;
pub mod protocols;
mod queue;
mod settlement;
mod shared_queue;
mod smuggling;
mod soak;
mod spellings;
mod upstreams;
mod verdicts;

use api::Api;
use tollgate_testkit::{Answer, Client, Server};

/// A proxy in front of `api`; `rest` says the rest of the configuration.
pub fn in_front_of(api: &Api, rest: &str) -> Server {
    Server::start(&format!("upstreams: ['{}']\n{rest}", api.url()))
}

/// Sends a request to the proxy on a connection of its own.
pub fn get(server: &Server, path: &str, headers: &[(&str, &str)]) -> Answer {
    Client::to(server.proxy).request("GET", path, headers, b"")
}

/// What the ticket of a denial tells.
pub fn explained(server: &Server, denied: &Answer) -> serde_json::Value {
    let instance =
        denied.json()["instance"].as_str().unwrap_or_else(|| panic!("no ticket: {denied}")).to_owned();
    let answer = server.admin("POST", "/v1/explain", serde_json::json!({ "ticket": instance }).to_string());
    assert_eq!(answer.status, 200, "{answer}");
    answer.json()
}

/// The memory that a process has taken.
fn resident_kib(process: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("the process runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory is known");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}
