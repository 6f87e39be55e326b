//! How slowly a body may arrive.

use std::convert::Infallible;

use http_body_util::BodyExt;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::time::sleep;

use super::*;

const IDLE: Duration = Duration::from_secs(60);
const MIN_RATE: u32 = 240;

/// Sends `count` chunks of `size` bytes, one every ten seconds, to a receiver that pauses after each. Returns
/// whether all were received, and the duration.
async fn send(count: usize, size: usize, min_rate: Option<u32>, pause: Duration) -> (bool, Duration) {
    let limits = StallLimits { idle: IDLE, min_rate, is_grpc: false };
    send_within(limits, |_| {}, count, size, pause).await
}

/// As above, with a body that is about to be sent to an upstream.
async fn send_within(
    limits: StallLimits,
    prepare: fn(&mut Upload),
    count: usize,
    size: usize,
    pause: Duration,
) -> (bool, Duration) {
    let (mut client, server) = duplex(1 << 20);
    let service = service_fn(move |request: Request<Incoming>| async move {
        let body = RequestBody::Streamed(request.into_body());
        let mut upload = Upload::new(body, limits);
        prepare(&mut upload);
        let mut response = Response::new(Full::<Bytes>::default());
        while let Some(frame) = upload.frame().await {
            if frame.is_err() {
                *response.status_mut() = StatusCode::REQUEST_TIMEOUT;
                break;
            }
            sleep(pause).await;
        }
        Ok::<_, Infallible>(response)
    });
    let served = tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(server), service));
    let start = Instant::now();
    client.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
    let chunk = format!("{size:x}\r\n{}\r\n", "x".repeat(size));
    let (mut reading, mut writing) = tokio::io::split(client);
    let sending = tokio::spawn(async move {
        for _ in 0..count {
            sleep(Duration::from_secs(10)).await;
            writing.write_all(chunk.as_bytes()).await.ok();
        }
        writing.write_all(b"0\r\n\r\n").await.ok();
        writing
    });
    let mut status = [0; 12];
    reading.read_exact(&mut status).await.unwrap();
    let took = start.elapsed();
    sending.abort();
    served.abort();
    (&status == b"HTTP/1.1 200", took)
}

#[tokio::test(start_paused = true)]
async fn a_body_that_trickles_is_cut_off_after_the_window() {
    let (whole, took) = send(100, 1, Some(MIN_RATE), Duration::ZERO).await;
    assert!(!whole && took >= RATE_WINDOW && took < RATE_WINDOW * 2, "{took:?}");
    let (whole, took) = send(100, 2_000, Some(MIN_RATE), Duration::ZERO).await;
    assert!(!whole && took < RATE_WINDOW * 2, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_body_at_the_lowest_rate_is_taken_whole() {
    let (whole, took) = send(30, 3_600, Some(MIN_RATE), Duration::ZERO).await;
    assert!(whole && took >= RATE_WINDOW * 10, "{took:?}");
    assert!(send(30, 1, None, Duration::ZERO).await.0, "without a rate only silence counts");
}

/// A regression: any client of HTTP/2 named its body a gRPC call, and it trickled on to an upstream of HTTP/1.1.
#[tokio::test(start_paused = true)]
async fn a_grpc_call_has_no_minimum_rate_once_it_is_sent_over_http2() {
    let call = StallLimits { idle: IDLE, min_rate: Some(MIN_RATE), is_grpc: true };
    let other = StallLimits { is_grpc: false, ..call };
    let sent = Upload::lift_min_rate_of_calls;
    let (whole, took) = send_within(call, sent, 30, 1, Duration::ZERO).await;
    assert!(whole && took >= RATE_WINDOW * 10, "{took:?}");
    assert!(!send_within(call, |_| {}, 30, 1, Duration::ZERO).await.0, "not sent yet, or over HTTP/1.1");
    assert!(!send_within(other, sent, 30, 1, Duration::ZERO).await.0, "not a call");
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_is_slow_does_not_make_a_body_slow() {
    let (whole, took) = send(10, 10, Some(MIN_RATE), Duration::from_secs(100)).await;
    assert!(whole && took >= Duration::from_secs(1_000), "{took:?}");
}
