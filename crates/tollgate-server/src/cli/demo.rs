//! `tollgate demo`: a small API with limits, requests against it, and what to try next.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, ensure};
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate::Hit;
use tollgate::internal::identity::FieldSource;

use crate::admin::Admin;
use crate::assemble;
use crate::cli::serve::{StopSignals, serve_admin, serve_http};
use crate::cli::{Exit, out};
use crate::client::{ClientRequest, ClientResponse, call};
use crate::config::Config;
use crate::connection::{self, AddressLimiter, FullResponse};
use crate::error_response::{self, ErrorFormat};
use crate::gate::Gate;
use crate::{log, response};

const RULES: &str = include_str!("demo/rules.yaml");
/// Reservations that the demo requests, and how many of them pass.
const TRIES: usize = 7;
const PASS: usize = 5;

pub fn run(once: bool) -> Exit {
    log::install();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let shown = runtime.context("no runtime").and_then(|runtime| runtime.block_on(demo(once)));
    match shown {
        Ok(()) => Exit::Success,
        Err(error) => {
            out::message(format!("error: {error:#}"));
            Exit::Failure
        }
    }
}

async fn demo(once: bool) -> anyhow::Result<()> {
    let mut config = Config::parse(RULES, ".".as_ref()).context("the demo's own rules")?;
    let gate = assemble::gate(&mut config, RULES.to_owned(), None).context("the demo's own rules")?;
    let gate = Arc::new(gate);
    let mut signals = StopSignals::listen()?;
    let (stop, shutdown) = watch::channel(false);
    let api = listen("the API", 8000).await?;
    let http = listen("the decision API", 8080).await?;
    let admin = listen("the admin API", 7070).await?;
    let at = Addresses { api: api.local_addr()?, http: http.local_addr()?, admin: admin.local_addr()? };

    let mut servers = JoinSet::new();
    let api_gate = Arc::clone(&gate);
    let handler = move |request, peer| api_answer(Arc::clone(&api_gate), request, peer);
    servers.spawn(connection::serve(
        api.into(),
        AddressLimiter::unbounded("api"),
        shutdown.clone(),
        Arc::new(handler),
    ));
    servers.spawn(serve_http(
        http.into(),
        AddressLimiter::unbounded("http"),
        shutdown.clone(),
        Arc::clone(&gate),
        Arc::default(),
    ));
    gate.is_accepting.store(true, Ordering::Release);
    let state = Arc::new(Admin::new(gate, None, None, shutdown.clone()));
    servers.spawn(serve_admin(admin.into(), AddressLimiter::unbounded("admin"), shutdown, state));

    show_limits(&at).await?;
    out::line("");
    out::line(format!("The API           http://{}", at.api));
    out::line(format!("The decision API  http://{}", at.http));
    out::line(format!("The admin API     http://{}", at.admin));
    if !once {
        show_next(&at);
        signals.received().await;
    }
    stop.send_replace(true);
    while servers.join_next().await.is_some() {}
    Ok(())
}

struct Addresses {
    api: SocketAddr,
    http: SocketAddr,
    admin: SocketAddr,
}

/// The usual port, or a free one if that is in use.
async fn listen(what: &str, port: u16) -> anyhow::Result<TcpListener> {
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match TcpListener::bind(at(port)).await {
        Ok(listener) => Ok(listener),
        Err(_) => {
            let listener =
                TcpListener::bind(at(0)).await.with_context(|| format!("no free port for {what}"))?;
            out::message(format!("port {port} is busy: {what} is on {}", listener.local_addr()?));
            Ok(listener)
        }
    }
}

/// The demo API: checks each request with the engine in process, and responds.
async fn api_answer(gate: Arc<Gate>, request: Request<Incoming>, peer: SocketAddr) -> FullResponse {
    let header =
        |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let method = request.method().as_str();
    let path = request.uri().path();
    let now = gate.now();
    let hit = Hit::on(method, header("host"), path).ip(peer.ip()).user(header("x-user")).field(
        FieldSource::Header,
        "authorization",
        header("authorization"),
    );
    let snapshot = gate.snapshot();
    let verdict = gate.check(&snapshot, &snapshot.identify(hit, now), now).await;
    let mut answer = match verdict.allowed {
        true => served(method, path),
        false => {
            let ticket = gate.ticket(&verdict, now);
            error_response::denied(&verdict, ticket.as_deref(), ErrorFormat::Json)
        }
    };
    response::write_headers(&mut answer, &verdict, snapshot.live.headers);
    answer
}

fn served(method: &str, path: &str) -> FullResponse {
    let name = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    match (method, name) {
        ("POST", "reservation") => {
            response::json(StatusCode::CREATED, &json!({ "reservation": "table for two" }))
        }
        ("POST", "cab-booking") => response::json(StatusCode::CREATED, &json!({ "cab": "on its way" })),
        ("GET", "userprofile") => response::json(StatusCode::OK, &json!({ "userprofile": path })),
        _ => response::ProblemDetails::not_found(path).into(),
    }
}

/// Requests more reservations than the rule allows, and prints the responses.
async fn show_limits(at: &Addresses) -> anyhow::Result<()> {
    out::line("The rule `reservation` allows 5 a minute for each user and address. Ann requests 7:");
    out::line("");
    let base = format!("http://{}", at.api);
    let mut passed = 0;
    for n in 1..=TRIES {
        let answered = call(&base, reservation("ann")).await?;
        out::line(format!("  {n}  POST /reservation  {}", described(&answered)));
        let allowed = answered.status == StatusCode::CREATED.as_u16();
        passed += usize::from(allowed);
        ensure!(allowed == (n <= PASS), "request {n} was answered with {}", answered.status);
        let waits = answered.headers.contains_key("retry-after");
        ensure!(waits != allowed, "request {n}: every denial, and nothing else, has Retry-After");
    }
    let other = call(&base, reservation("bob")).await?;
    out::line(format!("     and Bob requests one:  {}", described(&other)));
    ensure!(passed == PASS && other.status == StatusCode::CREATED.as_u16(), "{passed} of {TRIES} passed");
    Ok(())
}

fn reservation(user: &str) -> ClientRequest<'_> {
    ClientRequest::new(Method::POST, "/reservation").header("x-user", user)
}

fn described(answered: &ClientResponse) -> String {
    let header = |name: &str| {
        let value = answered.headers.get(name).and_then(|value| value.to_str().ok());
        value.map_or_else(String::new, |value| format!("  {name}: {value}"))
    };
    let status = StatusCode::from_u16(answered.status).ok();
    let reason = status.and_then(|status| status.canonical_reason()).unwrap_or_default();
    format!("{} {reason:<17}{}{}", answered.status, header("ratelimit"), header("retry-after"))
}

fn show_next(at: &Addresses) {
    out::line("");
    out::line("Three things to try next, in another terminal:");
    out::line("");
    out::line("  1. Book cabs until you are denied:");
    out::line(format!("     curl -i -X POST -H 'x-user: you' http://{}/cab-booking", at.api));
    out::line("  2. Check whether a request may pass, without sending it:");
    let question = r#"'{"method":"POST","path":"/reservation","user":"ann","ip":"127.0.0.1","peek":true}'"#;
    out::line(format!("     curl -d {question} http://{}/v1/check", at.http));
    out::line("  3. Ban an address for a minute, then book a cab again:");
    let ban = r#"'{"key":"ip:127.0.0.1","for":"1m","reason":"just trying"}'"#;
    out::line(format!("     curl -d {ban} http://{}/v1/bans", at.admin));
    out::line("");
    out::line("Ctrl-C ends it.");
}
