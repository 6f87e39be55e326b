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
                route.upstreams.iter().for_each(|upstream| upstream.record_check(true));
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
            let passes = timeout(check.every, passes_check(&route, &upstream, &check)).await.unwrap_or(false);
            upstream.record_check(passes);
        });
    }
    while checks.join_next().await.is_some() {}
}

/// Whether an upstream responds with a status below 400.
async fn passes_check(route: &RouteSnapshot, upstream: &Upstream, check: &HealthCheck) -> bool {
    let Ok(mut sender) =
        connect(upstream, &route.tls.load_full(), Requires::Any, &route.config.timeouts).await
    else {
        return false;
    };
    let Ok(request) = Request::builder().method(Method::GET).uri(check.path.as_str()).body(()) else {
        return false;
    };
    let (parts, ()) = request.into_parts();
    let request = forward::build_request(parts, Upload::empty(), &sender, upstream, HostHeader::Upstream);
    let response = match &mut sender {
        UpstreamSender::Http1(sender) => sender.send_request(request).await,
        UpstreamSender::Http2(sender) => sender.send_request(request).await,
    };
    response.is_ok_and(|response| response.status().as_u16() < 400)
}
