//! How much of a limit the client side uses, and how many calls are refused: against a real Tollgate and a real nginx.
//!
//! How much is used depends on how busy the machine is, so the tests only print it; `scripts/egress-rates` sets
//! `TOLLGATE_STRICT_RATES`, and then 95 % must be used, and 1 % may be refused.
//!
//! A refusal stops the calls for the second of nginx's `Retry-After`: 12 % of eight seconds. It takes a request that is held up
//! on its way for longer than the rest of nginx's burst lasts, so strict runs are long enough for one.
//!
//! The figures come from the server: nginx logs when it admitted a call. A limit with a burst of B and a rate of R admits
//! B + R × t calls in t seconds, one by windows at most B in each of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::Empty;
use hyper::Request;
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::rt::TokioExecutor;
use tokio::task::JoinSet;
use tollgate_client::{Throttle, ThrottleLayer, ThrottleMiddleware};
use tollgate_testkit::servers::nginx::Nginx;
use tollgate_testkit::{Folder, Server, free_port};
use tower_layer::Layer;
use tower_service::Service;

use super::egress;

const RATE: f64 = 50.0;
const CALLS: usize = 400;
const STRICT_CALLS: usize = 2_000;
const CALLERS: usize = 16;

/// What the caller uses.
#[derive(Clone, Copy, Debug)]
enum Via {
    Tower,
    Reqwest,
    Gateway,
}

/// What a limit of 50 a second admits.
#[derive(Clone, Copy)]
enum Counting {
    Bucket { burst: f64 },
    Window,
}

const FULL_BURST: Counting = Counting::Bucket { burst: RATE };

/// An API with a limit of 50 a second.
struct LimitedApi {
    url: String,
    counting: Counting,
    folder: Arc<Folder>,
    _nginx: Nginx,
    _tollgate: Option<Server>,
}

impl LimitedApi {
    /// An API behind Tollgate; `options` of its rule.
    fn behind_tollgate(options: &str, counting: Counting) -> Option<LimitedApi> {
        let folder = Folder::new();
        let port = free_port();
        let log = folder.path("calls").display().to_string();
        let http = format!(
            "log_format calls '$msec $status'; server {{ listen 127.0.0.1:{port}; access_log {log} calls; \
             location / {{ empty_gif; }} }}"
        );
        let nginx = Nginx::start("rates of the client side", &folder, &http, &[port])?;
        let rules = format!("rules: [{{ id: api, limit: 50/s{options} }}]");
        let tollgate = Server::start(&format!("upstreams: ['http://127.0.0.1:{port}']\n{rules}"));
        let url = format!("http://{}", tollgate.proxy);
        Some(LimitedApi { url, counting, folder, _nginx: nginx, _tollgate: Some(tollgate) })
    }

    /// An API with nginx's own limit, which states nothing but `Retry-After`.
    fn behind_nginx() -> Option<LimitedApi> {
        let folder = Folder::new();
        let port = free_port();
        let log = folder.path("calls").display().to_string();
        let http = format!(
            "log_format calls '$msec $status'; limit_req_zone $server_port zone=api:1m rate=50r/s; \
             map $status $retry_after {{ default ''; 429 1; }} \
             server {{ listen 127.0.0.1:{port}; access_log {log} calls; limit_req zone=api burst=20 nodelay; \
             limit_req_status 429; add_header Retry-After $retry_after always; location / {{ empty_gif; }} }}"
        );
        let nginx = Nginx::start("rates of the client side", &folder, &http, &[port])?;
        let url = format!("http://127.0.0.1:{port}");
        let counting = Counting::Bucket { burst: 21.0 };
        Some(LimitedApi { url, counting, folder, _nginx: nginx, _tollgate: None })
    }

    /// The share of the limit that admitted calls have used.
    fn used(&self) -> f64 {
        let log = std::fs::read_to_string(self.folder.path("calls")).expect("nginx has logged");
        let admitted = log.lines().filter_map(|line| line.strip_suffix(" 200")?.parse::<f64>().ok());
        let mut times: Vec<f64> = admitted.collect();
        times.sort_by(f64::total_cmp);
        let seconds = times.last().unwrap_or(&0.0) - times.first().unwrap_or(&0.0);
        let allowed = match self.counting {
            Counting::Bucket { burst } => burst + RATE * seconds,
            Counting::Window => RATE * (seconds.floor() + 1.0),
        };
        times.len() as f64 / allowed
    }
}

/// The limit that the caller is given; `None` if it has to learn it.
struct Given {
    limit: Option<&'static str>,
    burst: Option<u64>,
}

const LEARNED: Given = Given { limit: None, burst: None };
const LIMIT_OF_TOLLGATE: Given = Given { limit: Some("50/s"), burst: Some(50) };
/// Below nginx's burst of 21: it states nothing before it refuses, so delays on the way need room, here for 220 ms.
const LIMIT_OF_NGINX: Given = Given { limit: Some("50/s"), burst: Some(10) };

fn check(via: Via, given: &Given, api: Option<LimitedApi>, what: &str) {
    let Some(api) = api else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let is_strict = std::env::var_os("TOLLGATE_STRICT_RATES").is_some();
    let calls = if is_strict { STRICT_CALLS } else { CALLS };
    let statuses = runtime.block_on(call_many(via, given, &api.url, calls));
    let refused = statuses.get(&429).copied().unwrap_or_default();
    let used = api.used() * 100.0;
    eprintln!("{via:?}, {what}: {used:.1} % of the limit used, {refused} of {calls} calls refused");
    assert_eq!(statuses.values().sum::<usize>(), calls);
    assert_eq!(statuses.get(&200).copied().unwrap_or_default() + refused, calls, "{statuses:?}");
    assert!(used >= 95.0 || !is_strict, "{via:?}, {what}: {used:.1} %");
    let max_refused = if is_strict { calls / 100 } else { calls / 20 };
    assert!(refused < max_refused, "{via:?}, {what}: {refused} refused");
}

/// Calls as fast as the client side allows; returns the number of responses by status.
async fn call_many(via: Via, given: &Given, url: &str, calls: usize) -> HashMap<u16, usize> {
    match via {
        Via::Tower => {
            let client = HyperClient::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
            let service = ThrottleLayer::new(throttle(given)).layer(client);
            let url = url.to_owned();
            repeat(calls, move || {
                let mut service = service.clone();
                let request = Request::get(&url).body(Empty::new()).expect("a request");
                async move { service.call(request).await.expect("a response").status().as_u16() }
            })
            .await
        }
        Via::Reqwest => {
            let throttle = ThrottleMiddleware::new(throttle(given));
            let client =
                reqwest_middleware::ClientBuilder::new(reqwest::Client::new()).with(throttle).build();
            let url = url.to_owned();
            repeat(calls, move || {
                let call = client.get(&url).send();
                async move { call.await.expect("a response").status().as_u16() }
            })
            .await
        }
        Via::Gateway => {
            let burst = given.burst.map(|burst| burst.to_string());
            let mut args = vec!["--max-wait", "5m"];
            args.extend(given.limit.iter().flat_map(|limit| ["--limit", limit]));
            args.extend(burst.iter().flat_map(|burst| ["--burst", burst]));
            let gateway = egress(url, &args);
            let url = format!("http://{}/", gateway.proxy);
            let client = reqwest::Client::new();
            repeat(calls, move || {
                let call = client.get(&url).send();
                async move { call.await.expect("a response").status().as_u16() }
            })
            .await
        }
    }
}

fn throttle(given: &Given) -> Throttle {
    let mut builder = Throttle::builder();
    if let Some(limit) = given.limit {
        builder = builder.limit(limit);
    }
    if let Some(burst) = given.burst {
        builder = builder.burst(burst);
    }
    builder.build().expect("a valid limit")
}

async fn repeat<F>(calls: usize, call: impl Fn() -> F + Send + Sync + 'static) -> HashMap<u16, usize>
where
    F: Future<Output = u16> + Send,
{
    let call = Arc::new(call);
    let started = Arc::new(AtomicUsize::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let call = Arc::clone(&call);
        let started = Arc::clone(&started);
        callers.spawn(async move {
            let mut statuses = Vec::new();
            while started.fetch_add(1, Ordering::Relaxed) < calls {
                statuses.push(call().await);
            }
            statuses
        });
    }
    let mut counts = HashMap::new();
    while let Some(statuses) = callers.join_next().await {
        for status in statuses.expect("no caller panics") {
            *counts.entry(status).or_default() += 1;
        }
    }
    counts
}

#[test]
fn a_given_budget_is_used_up_against_tollgate() {
    for via in [Via::Tower, Via::Reqwest, Via::Gateway] {
        check(via, &LIMIT_OF_TOLLGATE, LimitedApi::behind_tollgate("", FULL_BURST), "budget given, Tollgate");
    }
}

#[test]
fn a_given_budget_is_used_up_against_nginx() {
    for via in [Via::Tower, Via::Reqwest, Via::Gateway] {
        check(via, &LIMIT_OF_NGINX, LimitedApi::behind_nginx(), "budget given, nginx");
    }
}

#[test]
fn a_learned_limit_is_used_up_against_tollgate() {
    for via in [Via::Tower, Via::Reqwest, Via::Gateway] {
        check(via, &LEARNED, LimitedApi::behind_tollgate("", FULL_BURST), "learned, Tollgate");
    }
}

#[test]
fn a_learned_limit_of_any_algorithm_is_used_up() {
    for (options, counting) in [
        (", burst: 10", Counting::Bucket { burst: 10.0 }),
        (", algorithm: token-bucket, burst: 20", Counting::Bucket { burst: 20.0 }),
        (", algorithm: fixed-window", Counting::Window),
        (", algorithm: sliding-log", Counting::Window),
    ] {
        let api = LimitedApi::behind_tollgate(options, counting);
        check(Via::Tower, &LEARNED, api, &format!("learned, Tollgate{options}"));
    }
}
