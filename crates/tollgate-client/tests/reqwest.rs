//! Retries through the middleware: each is charged, and none waits twice. A real client and a real connection; the clock is
//! paused and runs only while nothing is on the way.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use reqwest_retry::RetryTransientMiddleware;
use reqwest_retry::policies::ExponentialBackoff;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tollgate_client::{Throttle, ThrottleMiddleware};

const REFUSED: &str = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 30\r\n";
const FAILED: &str = "HTTP/1.1 500 Internal Server Error\r\n";
const SERVED: &str = "HTTP/1.1 200 OK\r\n";

/// An API that answers with one head after the other, the last one again and again.
struct Api {
    url: String,
    /// When its calls arrived.
    arrivals: Arc<Mutex<Vec<Instant>>>,
}

impl Api {
    async fn start(heads: &'static [&'static str]) -> Api {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let arrivals = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&arrivals);
        tokio::spawn(async move {
            for call in 0.. {
                let (stream, _) = listener.accept().await.expect("a connection");
                seen.lock().expect("no panic").push(Instant::now());
                let mut stream = BufReader::new(stream);
                let mut line = String::new();
                while line != "\r\n" {
                    line.clear();
                    stream.read_line(&mut line).await.expect("a request");
                }
                let head = heads[call.min(heads.len() - 1)];
                let answer = format!("{head}content-length: 0\r\nconnection: close\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.expect("the client reads");
            }
        });
        Api { url, arrivals }
    }

    /// The seconds at which calls arrived, after the first one.
    fn arrived_after(&self) -> Vec<f64> {
        let arrivals = self.arrivals.lock().expect("no panic");
        arrivals.iter().map(|at| (*at - arrivals[0]).as_secs_f64()).collect()
    }

    async fn call(&self, client: &ClientWithMiddleware) -> u16 {
        client.get(&self.url).send().await.expect("a response").status().as_u16()
    }
}

/// A client that sends calls again by reqwest-retry, which sees every response and passes each retry to the throttle.
fn retrying(throttle: Throttle, backoff: Duration) -> ClientWithMiddleware {
    let policy = ExponentialBackoff::builder()
        .retry_bounds(backoff, backoff)
        .jitter(reqwest_retry::Jitter::None)
        .build_with_max_retries(3);
    ClientBuilder::new(reqwest::Client::new())
        .with(RetryTransientMiddleware::new_with_policy(policy))
        .with(ThrottleMiddleware::new(throttle))
        .build()
}

/// Checks that calls arrived after these seconds, with the jitter that a wait may have.
#[track_caller]
fn check(api: &Api, expected: &[f64]) {
    let arrived = api.arrived_after();
    let is_near = |(at, due): (&f64, &f64)| (*due..=*due * 1.03 + 0.01).contains(at);
    assert!(
        arrived.len() == expected.len() && arrived.iter().zip(expected).all(is_near),
        "{arrived:?}, not {expected:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_retry_of_the_middleware_waits_for_the_server_once() {
    let api = Api::start(&[REFUSED, REFUSED, SERVED]).await;
    let throttle = ThrottleMiddleware::new(Throttle::learning()).retries(2);
    let client = ClientBuilder::new(reqwest::Client::new()).with(throttle).build();
    assert_eq!(api.call(&client).await, 200);
    check(&api, &[0.0, 30.0, 60.0]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_of_the_middleware_is_charged() {
    let api = Api::start(&[REFUSED, SERVED]).await;
    let throttle = Throttle::builder().limit("2/m").ignore_server().build().expect("a valid limit");
    let throttle = ThrottleMiddleware::new(throttle).retries(2);
    let client = ClientBuilder::new(reqwest::Client::new()).with(throttle).build();
    assert_eq!([api.call(&client).await, api.call(&client).await, api.call(&client).await], [429, 200, 200]);
    check(&api, &[0.0, 0.0, 60.0]);
    let api = Api::start(&[REFUSED, SERVED]).await;
    let throttle = Throttle::builder().limit("2/m").build().expect("a valid limit");
    let throttle = ThrottleMiddleware::new(throttle).retries(2);
    let client = ClientBuilder::new(reqwest::Client::new()).with(throttle).build();
    assert_eq!([api.call(&client).await, api.call(&client).await], [200, 200]);
    check(&api, &[0.0, 30.0, 60.0]);
}

#[tokio::test(start_paused = true)]
async fn the_waits_of_reqwest_retry_and_of_the_server_overlap() {
    for (backoff, expected) in [(1, 30.0), (40, 40.0)] {
        let api = Api::start(&[REFUSED, SERVED]).await;
        let client = retrying(Throttle::learning(), Duration::from_secs(backoff));
        assert_eq!(api.call(&client).await, 200);
        check(&api, &[0.0, expected]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_of_reqwest_retry_is_charged_and_waits_for_the_budget_once() {
    let api = Api::start(&[FAILED, FAILED, FAILED, SERVED]).await;
    let throttle = Throttle::new("2/m").expect("a valid limit");
    let client = retrying(throttle, Duration::from_secs(5));
    assert_eq!(api.call(&client).await, 200);
    check(&api, &[0.0, 5.0, 60.0, 65.0]);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_connection_is_not_counted() {
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", closed.local_addr().expect("an address"));
    drop(closed);
    let throttle = Throttle::builder().limit("1/h").max_wait(Duration::ZERO).build().expect("a valid limit");
    let client = ClientBuilder::new(reqwest::Client::new()).with(ThrottleMiddleware::new(throttle)).build();
    for _ in 0..3 {
        match client.get(&url).send().await {
            Err(reqwest_middleware::Error::Reqwest(error)) => assert!(error.is_connect(), "{error}"),
            other => panic!("{other:?}"),
        }
    }
}
