//! Active health checks: requests a path of each upstream periodically.

use std::sync::Arc;
use std::time::Duration;

use hyper::{Method, Request};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::config::{HealthCheck, HostHeader};
use crate::connection::{Shutdown, shutdown_requested};
use crate::transport::proxy::body::Upload;
use crate::transport::proxy::upstream::connect::{Requires, connect};
use crate::transport::proxy::upstream::forward;
use crate::transport::proxy::upstream::server::{Upstream, UpstreamSender};
use crate::transport::proxy::{Proxy, RouteSnapshot};

/// How often idle connections and the settings are checked where there are no health checks.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Checks upstreams and closes connections that are idle too long, until the shutdown.
pub async fn watch(proxy: Arc<Proxy>, mut shutdown: Shutdown) {
    loop {
        let route = proxy.route.load_full();
        let pause = match &route.config.health {
            Some(check) => {
                check_all(&route, check).await;
                check.every
            }
            None => {
                route.upstreams.iter().for_each(|upstream| upstream.record_check(Ok(())));
                SWEEP_INTERVAL
            }
        };
        for pool in route.upstreams.iter().flat_map(|upstream| upstream.pools()) {
            pool.sweep(route.config.timeouts.keep_alive);
        }
        tokio::select! {
            () = shutdown_requested(&mut shutdown) => return,
            () = sleep(pause) => {}
        }
    }
}

async fn check_all(route: &Arc<RouteSnapshot>, check: &HealthCheck) {
    let mut checks = JoinSet::new();
    for upstream in &route.upstreams {
        let route = Arc::clone(route);
        let upstream = Arc::clone(upstream);
        let check = check.clone();
        checks.spawn(async move {
            let too_late = |_| Err(format!("no response to GET {} within {:?}", check.path, check.every));
            let checked = timeout(check.every, check_once(&route, &upstream, &check)).await;
            upstream.record_check(checked.unwrap_or_else(too_late));
        });
    }
    while checks.join_next().await.is_some() {}
}

/// An upstream passes if it responds with a status below 400.
async fn check_once(route: &RouteSnapshot, upstream: &Upstream, check: &HealthCheck) -> Result<(), String> {
    let connected = connect(upstream, &route.tls.load_full(), Requires::Any, &route.config.timeouts).await;
    let mut sender = connected.map_err(|error| error.to_string())?;
    let request = Request::builder().method(Method::GET).uri(check.path.as_str()).body(());
    let (parts, ()) = request.map_err(|error| error.to_string())?.into_parts();
    let request = forward::build_request(parts, Upload::empty(), &sender, upstream, HostHeader::Upstream);
    let response = match &mut sender {
        UpstreamSender::Http1(sender) => sender.send_request(request).await,
        UpstreamSender::Http2(sender) => sender.send_request(request).await,
    };
    let status = response.map_err(|error| error.to_string())?.status().as_u16();
    if status < 400 { Ok(()) } else { Err(format!("GET {} is answered with {status}", check.path)) }
}
