//! A layer in a program and a server with the same store count together.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::{Request, Response};
use serde_json::json;
use tokio::runtime::Runtime;
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::{Folder, Server};
use tollgate_tower::{KeyVisibility, RateLimitBuilder, RateLimitLayer};
use tower_layer::Layer;
use tower_service::Service;

const RULES: &str = "identity: {email: 'header:x-mail'}
deny_cache: false
rules: [{ id: mails, key: [email, 'header:x-tenant'], limit: 4/d }]
";
const SECRET: &str = "a secret of thirty-two bytes, or more";

/// The service behind the layer.
#[derive(Clone)]
struct Hello;

impl Service<Request<()>> for Hello {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new("hello".to_owned())))
    }
}

/// A layer, and the runtime of its store.
struct Program {
    layer: RateLimitLayer,
    runtime: Runtime,
}

impl Program {
    fn new(builder: RateLimitBuilder) -> Program {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        // A busy machine is slow; this is not about the deadline.
        let builder = builder.store_deadline(Duration::from_secs(20));
        let layer = runtime.block_on(async { builder.build() }).expect("valid rules");
        Program { layer, runtime }
    }

    fn status(&self) -> u16 {
        let request = Request::builder().header("x-mail", "ann@example.com").header("x-tenant", "acme");
        let mut service = self.layer.layer(Hello);
        let answer = self.runtime.block_on(service.call(request.body(()).expect("a request")));
        answer.unwrap_or_else(|never| match never {}).status().as_u16()
    }
}

fn ask(server: &Server) -> u16 {
    let headers = json!({ "x-mail": "ann@example.com", "x-tenant": "acme" });
    server.check(&json!({ "headers": headers })).status
}

fn server(redis: &Redis, store_keys: &str) -> Server {
    let folder = Folder::new();
    folder.write("secret", SECRET);
    let config = format!(
        "rules_db: none\ncounters: {}\nstore_deadline: 20s\nstore_keys: {store_keys}\nstore_secret_file: secret\n{RULES}",
        redis.url()
    );
    folder.configure(&config);
    Server::start_in(&folder)
}

/// What the server and the layer have in common: four requests, whichever of them decides.
fn check_shared(redis: &Redis, server: &Server, program: &Program, name: &str) {
    redis.command(&["FLUSHALL"]);
    let statuses =
        [ask(server), program.status(), ask(server), program.status(), program.status(), ask(server)];
    assert_eq!(statuses, [200, 200, 200, 200, 429, 429], "{name}");
}

#[test]
fn a_layer_and_a_server_on_one_redis_share_counters_whatever_store_keys_is() {
    let Some(redis) = Redis::start(Make::Redis, "a layer and a server that share a Redis") else { return };
    let layer = || RateLimitLayer::builder().store(&redis.url()).store_secret(SECRET);
    for (name, visibility) in
        [("plain", KeyVisibility::All), ("sensitive", KeyVisibility::Public), ("hashed", KeyVisibility::None)]
    {
        let server = server(&redis, name);
        let set = Program::new(layer().rules(RULES).store_keys(visibility));
        check_shared(&redis, &server, &set, name);
        let read = Program::new(layer().rules(&format!("store_keys: {name}\n{RULES}")));
        check_shared(&redis, &server, &read, name);
        let secret = server.folder.path("secret");
        let from_file = RateLimitLayer::builder().store(&redis.url()).store_secret_file(secret);
        check_shared(&redis, &server, &Program::new(from_file.store_keys(visibility).rules(RULES)), name);
    }
}

/// What the documentation warns of.
#[test]
fn other_store_keys_are_other_counters() {
    let Some(redis) = Redis::start(Make::Redis, "a layer with other store_keys than the server") else {
        return;
    };
    let server = server(&redis, "hashed");
    let layer = RateLimitLayer::builder().store(&redis.url()).store_secret(SECRET).rules(RULES);
    let program = Program::new(layer);
    assert_eq!([(); 5].map(|()| ask(&server)), [200, 200, 200, 200, 429]);
    assert_eq!(program.status(), 200);
}
