//! Limits that are counted in Redis before each answer: envoyproxy/ratelimit and Tollgate, on the same Redis.

use std::fs;
use std::path::Path;
use std::rc::Rc;

use super::{Contestant, Part, RATELIMIT, tollgate_with};
use crate::process::{Server, find, free_port, tempfile};
use crate::request::Request;
use crate::{LOAD_CPU, SERVER_CPU};

/// What the load generator for gRPC sends, too.
const DOMAIN: &str = "shop";
const BODY: &str = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"user-0000000"}]}]}"#;

pub fn contestants(part: Part, redis: &mut Option<Server>) -> Vec<Contestant> {
    let Some(program) = find("redis-server") else { return Vec::new() };
    let port = free_port();
    let port_text = port.to_string();
    let args = ["--port", &port_text, "--bind", "127.0.0.1", "--save", ""];
    *redis = Server::start(LOAD_CPU, &program, &args, &[port]);
    if redis.is_none() {
        return Vec::new();
    }
    let contestant = |name, server: Rc<Server>, [http, grpc]: [u16; 2]| {
        let port = if part == Part::StrictGrpc { grpc } else { http };
        Contestant::new(name, &server, port, Request::post("/json", BODY))
    };
    let mut contestants = Vec::new();
    if let Some((server, ports)) = ratelimit(port) {
        contestants.push(contestant(RATELIMIT, Rc::new(server), ports));
    }
    let settings =
        format!("counters: redis://127.0.0.1:{port}\nstore_deadline: 1s\non_store_error: closed\n");
    if let Some(ours) = tollgate_with(&settings) {
        contestants.push(contestant("Tollgate", ours.server, [ours.http, ours.grpc]));
    }
    contestants
}

/// The service with a limit that is not reached, and its ports for HTTP and gRPC.
fn ratelimit(redis: u16) -> Option<(Server, [u16; 2])> {
    let program = find("ratelimit")?;
    let [http, grpc, debug] = [(); 3].map(|()| free_port());
    let folder = tempfile("ratelimit");
    let files = folder.join("ratelimit/config");
    fs::create_dir_all(&files).expect("a folder for its configuration");
    let config = format!(
        "domain: {DOMAIN}\ndescriptors:\n  - key: user\n    rate_limit: {{ unit: hour, requests_per_unit: 1000000 }}\n"
    );
    fs::write(files.join("bench.yaml"), config).expect("a configuration");
    let variables = [
        format!("RUNTIME_ROOT={}", folder.display()),
        "RUNTIME_SUBDIRECTORY=ratelimit".to_owned(),
        "RUNTIME_WATCH_ROOT=false".to_owned(),
        "USE_STATSD=false".to_owned(),
        "LOG_LEVEL=error".to_owned(),
        "REDIS_SOCKET_TYPE=tcp".to_owned(),
        format!("REDIS_URL=127.0.0.1:{redis}"),
        format!("PORT={http}"),
        format!("GRPC_PORT={grpc}"),
        format!("DEBUG_PORT={debug}"),
        // Requests that arrive together are pipelined, as its documentation recommends for load.
        "REDIS_PIPELINE_WINDOW=150us".to_owned(),
        "REDIS_PIPELINE_LIMIT=8".to_owned(),
    ];
    let program = program.to_str().expect("a path in UTF-8");
    let args: Vec<&str> = variables.iter().map(String::as_str).chain([program]).collect();
    let server = Server::start(SERVER_CPU, Path::new("/usr/bin/env"), &args, &[http, grpc])?;
    Some((server, [http, grpc]))
}
