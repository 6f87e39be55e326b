//! Waiting for a turn, by a paused clock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate_client::{BuildError, Throttle, ThrottleError};

const KEY: &str = "api.example.com";

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    let line = |(name, value): &(&'static str, &str)| {
        (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a header value"))
    };
    lines.iter().map(line).collect()
}

async fn call(throttle: &Throttle, status: u16, lines: &[(&'static str, &str)]) {
    let permit = throttle.acquire(KEY).await.expect("a call without a deadline is sent");
    permit.observe(StatusCode::from_u16(status).expect("a status"), &headers(lines));
}

#[tokio::test(start_paused = true)]
async fn no_window_has_more_calls_than_the_limit() {
    let throttle = Throttle::new("10/s").unwrap();
    let start = Instant::now();
    let mut sent = Vec::new();
    for _ in 0..60 {
        call(&throttle, 200, &[]).await;
        sent.push(start.elapsed());
    }
    for (first, last) in sent.iter().zip(&sent[10..]) {
        assert!(*last - *first >= Duration::from_secs(1), "{first:?} {last:?}");
    }
    assert!(start.elapsed() < Duration::from_millis(5_250), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_burst_is_followed_by_evenly_spaced_calls() {
    let throttle = Throttle::builder().limit("10/s").burst(3).build().unwrap();
    let start = Instant::now();
    let mut sent = Vec::new();
    for _ in 0..6 {
        call(&throttle, 200, &[]).await;
        sent.push(start.elapsed().as_millis());
    }
    assert_eq!(sent[..3], [0, 0, 0]);
    assert!(sent[3..].windows(2).all(|pair| (100..=105).contains(&(pair[1] - pair[0]))), "{sent:?}");
}

/// A regression: above ten thousand, nearly twice the limit passed in the first window.
#[tokio::test(start_paused = true)]
async fn no_window_has_more_calls_than_a_large_limit() {
    for (limit, number, window) in
        [("20_000/h", 20_000, 3600), ("15000/m", 15_000, 60), ("20000 requests per 2s", 20_000, 2)]
    {
        let throttle = Throttle::new(limit).unwrap();
        let start = Instant::now();
        let mut sent = Vec::new();
        for n in 0..=number * 3 {
            if n < number && n % (number / 10) == 0 {
                tokio::time::advance(Duration::from_millis(window * 71)).await;
            }
            call(&throttle, 200, &[]).await;
            sent.push(start.elapsed());
        }
        let window = Duration::from_secs(window);
        for (first, last) in sent.iter().zip(&sent[number..]) {
            assert!(*last - *first >= window, "{limit}: {first:?} {last:?}");
        }
        let windows = (sent[number * 3] - sent[number]).as_secs_f64() / window.as_secs_f64();
        assert!(windows <= 2.0 / 0.95, "{limit}: {windows}");
    }
}

#[tokio::test(start_paused = true)]
async fn large_limits_and_small_ones_apply_together() {
    let throttle = Throttle::builder().limit("20/s").limit("20_000/h").build().unwrap();
    let start = Instant::now();
    for _ in 0..40 {
        call(&throttle, 200, &[]).await;
    }
    assert!((1.0..1.1).contains(&start.elapsed().as_secs_f64()), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn all_of_several_limits_apply() {
    let throttle = Throttle::builder().limit("5/s").limit("8/m").build().unwrap();
    let start = Instant::now();
    for _ in 0..8 {
        call(&throttle, 200, &[]).await;
    }
    assert!((1..3).contains(&start.elapsed().as_secs()));
    call(&throttle, 200, &[]).await;
    assert!((60..63).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_waiting_calls_are_served_in_order_at_the_rate() {
    const CALLS: usize = 10_000;
    let throttle = Throttle::builder().limit("100/s").burst(2).build().unwrap();
    let served = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for n in 0..CALLS {
        let throttle = throttle.clone();
        let served = Arc::clone(&served);
        calls.spawn(async move {
            let permit = throttle.acquire(KEY).await.unwrap();
            assert_eq!(served.fetch_add(1, Ordering::Relaxed), n);
            permit.observe(StatusCode::OK, &HeaderMap::new());
        });
    }
    while let Some(done) = calls.join_next().await {
        done.unwrap();
    }
    let took = start.elapsed().as_secs_f64();
    assert!((101.0..=103.0).contains(&took), "{took}: the rate is 2 % below the limit");
    assert_eq!(throttle.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn keys_do_not_wait_for_each_other() {
    let throttle = Throttle::new("1/h").unwrap();
    for key in ["a", "b", "c"] {
        throttle
            .acquire_within(key, Duration::ZERO)
            .await
            .unwrap()
            .observe(StatusCode::OK, &HeaderMap::new());
    }
    assert!(throttle.acquire_within("a", Duration::ZERO).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_cannot_be_met_fails_at_once() {
    let throttle = Throttle::builder().limit("1/m").max_wait(Duration::from_secs(10)).build().unwrap();
    call(&throttle, 200, &[]).await;
    let start = Instant::now();
    let Err(ThrottleError::TooLate { retry_after }) = throttle.acquire(KEY).await else {
        panic!("it waited")
    };
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!((60..63).contains(&retry_after.as_secs()), "{retry_after:?}");
    assert!(throttle.acquire_within(KEY, Duration::from_secs(62)).await.is_ok());
}

/// A regression: a call that found another one in the queue failed, although the limit had room for both.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_that_may_not_wait_use_the_whole_limit_at_once() {
    for _ in 0..20 {
        let throttle = Throttle::new("50/d").unwrap();
        let mut calls = JoinSet::new();
        for _ in 0..60 {
            let throttle = throttle.clone();
            calls.spawn(async move { throttle.acquire_within(KEY, Duration::ZERO).await.is_ok() });
        }
        let sent = calls.join_all().await.into_iter().filter(|sent| *sent).count();
        assert_eq!(sent, 50);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_may_not_wait_does_not_overtake_the_queue() {
    for algorithm in ["gcra", "sliding-log", "leaky-bucket"] {
        let mut builder = Throttle::builder().limit("1/m").algorithm(algorithm);
        if algorithm != "sliding-log" {
            builder = builder.burst(if algorithm == "gcra" { 1 } else { 5 });
        }
        let throttle = builder.build().unwrap();
        call(&throttle, 200, &[]).await;
        let waiting = tokio::spawn({
            let throttle = throttle.clone();
            async move { throttle.acquire(KEY).await.map(drop) }
        });
        tokio::task::yield_now().await;
        let start = Instant::now();
        let refused = throttle.acquire_within(KEY, Duration::from_secs(5)).await;
        let Err(ThrottleError::TooLate { retry_after }) = refused else { panic!("{algorithm}: it was sent") };
        assert!(start.elapsed() <= Duration::from_secs(5), "{algorithm}: {:?}", start.elapsed());
        assert!((55..63).contains(&retry_after.as_secs()), "{algorithm}: {retry_after:?}");
        waiting.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_leaves_no_trace() {
    let throttle = Throttle::new("1/m").unwrap();
    call(&throttle, 200, &[]).await;
    for _ in 0..100 {
        let waiting = throttle.acquire(KEY);
        tokio::time::timeout(Duration::from_millis(1), waiting).await.expect_err("it waits");
    }
    assert_eq!(throttle.waiting(), 0);
    let start = Instant::now();
    call(&throttle, 200, &[]).await;
    assert!(start.elapsed() < Duration::from_secs(62), "{:?}", start.elapsed());
    let permit = throttle.acquire(KEY).await.unwrap();
    permit.cancel();
    let start = Instant::now();
    call(&throttle, 200, &[]).await;
    assert_eq!(start.elapsed(), Duration::ZERO, "a permit that was given back is available again");
}

#[tokio::test(start_paused = true)]
async fn retry_after_stops_all_calls_of_the_key() {
    for status in [429, 503] {
        let throttle = Throttle::learning();
        call(&throttle, status, &[("retry-after", "30")]).await;
        let start = Instant::now();
        call(&throttle, 200, &[]).await;
        assert!((30.0..=31.0).contains(&start.elapsed().as_secs_f64()), "{:?}", start.elapsed());
    }
    let throttle = Throttle::learning();
    call(&throttle, 301, &[("retry-after", "30")]).await;
    let start = Instant::now();
    call(&throttle, 200, &[]).await;
    assert_eq!(start.elapsed(), Duration::ZERO, "a redirect is not a refusal");
}

/// nginx with `limit_req` and `nodelay`, as a bucket: it states nothing but `Retry-After`.
struct Nginx {
    per_second: f64,
    capacity: f64,
    /// What is used, at a time.
    used: f64,
    at: Instant,
    served: usize,
    refused: usize,
}

impl Nginx {
    fn call(&mut self) -> u16 {
        let now = Instant::now();
        let drained = (now - self.at).as_secs_f64() * self.per_second;
        self.used = (self.used - drained).max(0.0);
        self.at = now;
        if self.used + 1.0 > self.capacity {
            self.refused += 1;
            return 429;
        }
        self.used += 1.0;
        self.served += 1;
        200
    }
}

/// A regression: a limit without a burst was refused half of its calls in each second.
#[tokio::test(start_paused = true)]
async fn calls_are_spaced_after_a_server_with_a_smaller_burst_has_refused_some() {
    const CALLERS: usize = 16;
    const CALLS_PER_CALLER: usize = 400;
    for (burst, capacity) in [(None, 21.0), (None, 6.0), (Some(40), 21.0)] {
        let builder = Throttle::builder().limit("50/s");
        let builder = burst.into_iter().fold(builder, |builder, burst| builder.burst(burst));
        let throttle = builder.build().unwrap();
        let start = Instant::now();
        let nginx = Nginx { per_second: 50.0, capacity, used: 0.0, at: start, served: 0, refused: 0 };
        let nginx = Arc::new(Mutex::new(nginx));
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let throttle = throttle.clone();
            let nginx = Arc::clone(&nginx);
            let mut random = fastrand::Rng::with_seed(caller as u64);
            callers.spawn(async move {
                for _ in 0..CALLS_PER_CALLER {
                    let permit = throttle.acquire(KEY).await.unwrap();
                    tokio::time::sleep(Duration::from_micros(random.u64(500..5_000))).await;
                    let status = nginx.lock().unwrap().call();
                    tokio::time::sleep(Duration::from_micros(random.u64(500..5_000))).await;
                    let lines: &[_] = if status == 429 { &[("retry-after", "1")] } else { &[] };
                    permit.observe(StatusCode::from_u16(status).unwrap(), &headers(lines));
                }
            });
        }
        callers.join_all().await;
        let nginx = nginx.lock().unwrap();
        let used = nginx.served as f64 / (capacity + 50.0 * start.elapsed().as_secs_f64());
        assert!(used >= 0.95, "{burst:?}, {capacity}: {used}");
        assert!(
            nginx.refused <= CALLERS * CALLS_PER_CALLER / 100,
            "{burst:?}, {capacity}: {}",
            nginx.refused
        );
    }
}

/// The settings of `scripts/egress-rates`: a budget with a burst of 10 under nginx's burst of 20. Requests that are stopped on
/// their way arrive together; the 11 that nginx admits beyond the budget are those of 220 ms.
#[tokio::test(start_paused = true)]
async fn requests_that_are_held_up_on_the_way_are_not_refused_and_lose_no_rate() {
    const CALLS: usize = 2_000;
    for stall in [0, 100, 200].map(Duration::from_millis) {
        let throttle = Throttle::builder().limit("50/s").burst(10).build().unwrap();
        let start = Instant::now();
        let nginx = Nginx { per_second: 50.0, capacity: 21.0, used: 0.0, at: start, served: 0, refused: 0 };
        let nginx = Arc::new(Mutex::new(nginx));
        let started = Arc::new(AtomicUsize::new(0));
        let mut callers = JoinSet::new();
        for caller in 0..16 {
            let throttle = throttle.clone();
            let nginx = Arc::clone(&nginx);
            let started = Arc::clone(&started);
            let mut random = fastrand::Rng::with_seed(caller);
            callers.spawn(async move {
                while started.fetch_add(1, Ordering::Relaxed) < CALLS {
                    let permit = throttle.acquire(KEY).await.unwrap();
                    let arrives = Instant::now() + Duration::from_micros(random.u64(500..2_000));
                    // For the first part of every two seconds nothing gets through.
                    let second = (arrives - start).as_secs() / 2 * 2;
                    let open = start + Duration::from_secs(second) + stall;
                    tokio::time::sleep_until(arrives.max(open)).await;
                    let status = nginx.lock().unwrap().call();
                    let lines: &[_] = if status == 429 { &[("retry-after", "1")] } else { &[] };
                    permit.observe(StatusCode::from_u16(status).unwrap(), &headers(lines));
                }
            });
        }
        callers.join_all().await;
        let nginx = nginx.lock().unwrap();
        let used = nginx.served as f64 / (21.0 + 50.0 * start.elapsed().as_secs_f64());
        assert_eq!((nginx.served, nginx.refused), (CALLS, 0), "{stall:?}");
        assert!(used >= 0.97, "{stall:?}: {used}");
    }
}

/// `google.rpc.Status { code: 8, details: [RetryInfo { retry_delay: 30.5 s }] }`
const RETRY_INFO: &str = "CAgaNgoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIKCggIHhCAyrXuAQ==";

/// A regression: the HTTP status of such a response is 200, and it counted as served.
#[tokio::test(start_paused = true)]
async fn a_refusal_of_grpc_stops_all_calls_of_the_key() {
    for (status, more, waits) in [
        ("8", ("grpc-status-details-bin", RETRY_INFO), 30.5),
        ("14", ("grpc-status-details-bin", RETRY_INFO), 30.5),
        ("8", ("retry-after", "20"), 20.0),
        ("8", ("grpc-message", "larger than max"), 0.0),
        ("0", ("retry-after", "20"), 0.0),
        ("13", ("grpc-status-details-bin", RETRY_INFO), 0.0),
    ] {
        let throttle = Throttle::learning();
        call(&throttle, 200, &[("grpc-status", status), more]).await;
        let start = Instant::now();
        call(&throttle, 200, &[]).await;
        let waited = start.elapsed().as_secs_f64();
        assert!((waits..=waits + 1.0).contains(&waited), "{status} {more:?}: {waited}");
    }
    let throttle = Throttle::builder().limit("5/s").ignore_server().build().unwrap();
    call(&throttle, 200, &[("grpc-status", "8"), ("retry-after", "20")]).await;
    let start = Instant::now();
    call(&throttle, 200, &[]).await;
    assert_eq!(start.elapsed(), Duration::ZERO, "a server that is ignored");
}

#[tokio::test(start_paused = true)]
async fn the_longest_wait_that_a_server_can_cause_is_set() {
    let throttle = Throttle::builder().max_server_wait(Duration::from_secs(5)).build().unwrap();
    call(&throttle, 429, &[("retry-after", "86400")]).await;
    let start = Instant::now();
    call(&throttle, 200, &[]).await;
    assert!(start.elapsed() <= Duration::from_secs(6), "{:?}", start.elapsed());
}

/// A regression: the sum of a time and such a wait overflowed, and a server could cause the panic.
#[tokio::test(start_paused = true)]
async fn the_longest_duration_is_a_valid_wait() {
    let builder = Throttle::builder().max_wait(Duration::MAX).max_server_wait(Duration::MAX);
    let throttle = builder.build().unwrap();
    let huge = u64::MAX.to_string();
    call(&throttle, 200, &[("ratelimit-policy", &format!("\"a\";q=1;w={huge}"))]).await;
    call(&throttle, 200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", &huge)]).await;
    call(&throttle, 429, &[("retry-after", &huge)]).await;
    assert!(throttle.acquire_within(KEY, Duration::ZERO).await.is_err());
    assert!(throttle.acquire_within("another", Duration::MAX).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_ignored_teaches_nothing() {
    let throttle = Throttle::builder().limit("5/s").ignore_server().build().unwrap();
    let start = Instant::now();
    call(&throttle, 429, &[("retry-after", "30"), ("x-ratelimit-remaining", "0")]).await;
    call(&throttle, 200, &[]).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_call_is_sent_when_a_response_shows_more_room() {
    let throttle = Throttle::learning();
    call(&throttle, 200, &[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "60")]).await;
    tokio::time::advance(Duration::from_millis(1)).await;
    let first = throttle.acquire(KEY).await.unwrap();
    let waiting = tokio::spawn({
        let throttle = throttle.clone();
        async move { throttle.acquire(KEY).await.map(drop) }
    });
    tokio::task::yield_now().await;
    let start = Instant::now();
    first.observe(StatusCode::OK, &headers(&[("x-ratelimit-remaining", "5"), ("x-ratelimit-reset", "60")]));
    waiting.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[test]
fn a_limit_that_is_not_valid_is_named() {
    let message = |built: Result<Throttle, BuildError>| built.expect_err("not valid").to_string();
    assert!(
        message(Throttle::new("5/parsec")).starts_with("limits[0]: "),
        "{}",
        message(Throttle::new("5/parsec"))
    );
    let second = message(Throttle::builder().limit("20_000/h").limit("5/parsec").build());
    assert!(second.starts_with("limits[1]: "), "{second}");
    let unknown = message(Throttle::builder().limit("5/s").algorithm("magic").build());
    assert!(unknown.contains("magic"), "{unknown}");
    let injected = message(Throttle::new("5/s\"], key: ip, limits: [\"1/s"));
    assert!(injected.starts_with("limits[0]: "), "{injected}");
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_zero_never_allows_a_call() {
    let throttle = Throttle::new("0/m").unwrap();
    assert_eq!(throttle.acquire(KEY).await.err(), Some(ThrottleError::Never));
}
