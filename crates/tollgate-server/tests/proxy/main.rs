//! The proxy in front of an API, end to end.

#[path = "../harness/mod.rs"]
mod harness;

mod api;
mod bodies;
mod command;
mod hold;
mod identity;
mod messages;
mod protocols;
mod settlement;
mod smuggling;
mod upstreams;
mod verdicts;

use api::Api;
use harness::{Answer, Client, Server};

/// A proxy in front of `api`; `rest` says the rest of the configuration.
fn in_front_of(api: &Api, rest: &str) -> Server {
    Server::start(&format!("upstreams: ['{}']\n{rest}", api.url()))
}

/// Asks the proxy on a connection of its own.
fn get(server: &Server, path: &str, headers: &[(&str, &str)]) -> Answer {
    Client::to(server.proxy).ask("GET", path, headers, b"")
}
