//! An axum server on a port of its own, which stops when it is dropped.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use tokio::runtime::Runtime;
use tollgate::Time;
use tollgate_testkit::{Answer, Client};
use tollgate_tower::{Clock, RateLimitBuilder, RateLimitLayer, RateLimiter};
use tonic::transport::{Channel, Endpoint};

pub const NOW: Time = Time::from_secs(1_800_000_000);

pub struct App {
    pub address: SocketAddr,
    pub limiter: Arc<RateLimiter>,
    _runtime: Runtime,
}

/// A layer with these rules and a clock that stands still.
pub fn rules(text: &str) -> RateLimitLayer {
    still(RateLimitLayer::builder().rules(text)).build().expect("the rules are valid")
}

pub fn still(builder: RateLimitBuilder) -> RateLimitBuilder {
    builder.clock(Clock::manual(NOW))
}

impl App {
    /// Serves `GET` and `POST` of a few paths behind a layer.
    pub fn new(layer: RateLimitLayer) -> App {
        let hello = get(|| async { "hello" }).post(|| async { "hello" });
        let app = Router::new().route("/", hello.clone()).route("/login", hello);
        App::serving(app, layer)
    }

    pub fn serving(app: Router, layer: RateLimitLayer) -> App {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let limiter = Arc::clone(layer.limiter());
        let app = app.layer(layer).into_make_service_with_connect_info::<SocketAddr>();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("it is bound");
        runtime.spawn(async move { axum::serve(listener, app).await });
        App { address, limiter, _runtime: runtime }
    }

    pub fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        Client::to(self.address).request("GET", path, headers, b"")
    }

    pub fn get_from(&self, source: &str, path: &str) -> Answer {
        let source: IpAddr = source.parse().expect("an address");
        Client::connect_from(source, self.address).request("GET", path, &[], b"")
    }

    /// The statuses of the same request, several times.
    pub fn statuses(&self, count: usize, path: &str, headers: &[(&str, &str)]) -> Vec<u16> {
        (0..count).map(|_| self.get(path, headers).status).collect()
    }
}

/// A connection to a gRPC server.
pub async fn connect(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a URL");
    endpoint.connect().await.expect("it accepts")
}
