//! An axum service behind Tollgate's layer. Its rules are in a file, which may be edited while it runs.
//!
//!     cargo run -p tollgate-tower --example axum -- examples/axum/rules.yaml 127.0.0.1:3000

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Router, http::StatusCode};
use tokio::net::TcpListener;
use tollgate_tower::{Hit, IncomingRequest, Policy, RateLimitLayer, RateLimiter};

/// What authentication attaches to a request.
#[derive(Clone)]
struct User(String);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let rules = arguments.next().unwrap_or("examples/axum/rules.yaml".to_owned());
    let address = arguments.next().unwrap_or("127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(&address).await?;
    eprintln!("listening on http://{address}");
    serve(listener, rules.into()).await
}

pub async fn serve(listener: TcpListener, rules: PathBuf) -> Result<(), Box<dyn Error>> {
    let limit = RateLimitLayer::builder()
        .rules(&std::fs::read_to_string(&rules)?)
        .trusted_proxies(["10.0.0.0/8"]) // the load balancers in front
        .identify(identify)
        .build()?;
    tokio::spawn(reload(Arc::clone(limit.limiter()), rules));
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/login", post(login))
        .route("/reports", get(|| async { "a report\n" }))
        .layer(limit)
        .layer(middleware::from_fn(authenticate)); // outside: it runs first
    // With the address of the client, which rules count by.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// The user that authentication has found.
fn identify<'r>(request: IncomingRequest<'r>, hit: Hit<'r>) -> Hit<'r> {
    match request.extension::<User>() {
        Some(User(name)) => hit.user(name.as_str()),
        None => hit,
    }
}

/// Stands in for real authentication.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let name = request.headers().get("authorization").and_then(|name| name.to_str().ok());
    if let Some(user) = name.map(|name| User(name.to_owned())) {
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}

async fn login(password: String) -> StatusCode {
    if password == "correct horse" { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
}

/// Applies the file whenever it has changed. Rules with a mistake are reported, and those in force stay.
async fn reload(limiter: Arc<RateLimiter>, rules: PathBuf) {
    let mut known = tokio::fs::read_to_string(&rules).await.unwrap_or_default();
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let Ok(text) = tokio::fs::read_to_string(&rules).await else { continue };
        if text == known {
            continue;
        }
        let policy = Policy::from_yaml(&text).map_err(Box::<dyn Error>::from);
        match policy.and_then(|policy| Ok(limiter.apply(policy)?)) {
            Ok(()) => eprintln!("new rules are in force"),
            Err(error) => eprintln!("the rules are not applied: {error}"),
        }
        known = text;
    }
}
