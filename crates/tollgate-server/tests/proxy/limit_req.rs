//! The same pattern as nginx's `limit_req`, for the same requests at the same times.
//!
//! nginx counts in milliseconds, so no request comes near a boundary. Where the machine was too slow for that
//! the times are drawn again, a bounded number of times.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::api::Api;
use crate::harness::{Client, Folder};
use crate::in_front_of;
use crate::nginx::{Nginx, address};
use crate::servers::free_port;

/// Ten a second: a place in the queue is 100 ms.
const PLACE: Duration = Duration::from_millis(100);
/// nginx's burst; ours counts the one that passes at once too.
const BURST: u32 = 5;
/// No request this near to a boundary.
const MARGIN: Duration = Duration::from_millis(12);
const TRIES: u32 = 20;

/// What a proxy did with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    AtOnce,
    Delayed,
    Denied,
}

struct Told {
    sent: Duration,
    status: u16,
    took: Duration,
}

/// Sends a request at each of `times`, each on a connection of its own that is there already.
fn ask_at(proxy: SocketAddr, times: &[Duration], start: Instant) -> Vec<Told> {
    let mut clients: Vec<_> = times.iter().map(|_| Client::to(proxy)).collect();
    thread::scope(|scope| {
        let asks: Vec<_> = clients
            .iter_mut()
            .zip(times)
            .map(|(client, at)| {
                scope.spawn(move || {
                    thread::sleep((start + *at).saturating_duration_since(Instant::now()));
                    let sent = Instant::now();
                    client.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n");
                    let status = client.answer().status;
                    Told { sent: sent - start, status, took: sent.elapsed() }
                })
            })
            .collect();
        asks.into_iter().map(|ask| ask.join().expect("no panic")).collect()
    })
}

/// What the definition says to requests at these times; `None` if one is near a boundary.
fn expected(times: &[Duration], delays: bool) -> Option<Vec<(Fate, Duration)>> {
    let far = |a: Duration, b: Duration| a.abs_diff(b) >= MARGIN;
    let (mut dry_at, mut before, mut fates) = (Duration::ZERO, Duration::ZERO, Vec::new());
    for now in times {
        let wait = dry_at.saturating_sub(*now);
        let full = PLACE * BURST;
        let crowded = !fates.is_empty() && now.saturating_sub(before) < MARGIN;
        before = *now;
        if crowded
            || !far(wait, full)
            || (!wait.is_zero() || now.abs_diff(dry_at) < MARGIN) && !far(dry_at, *now)
        {
            return None;
        }
        if wait > full {
            fates.push((Fate::Denied, Duration::ZERO));
            continue;
        }
        let delayed = delays && !wait.is_zero();
        fates.push(if delayed { (Fate::Delayed, wait) } else { (Fate::AtOnce, Duration::ZERO) });
        dry_at = dry_at.max(*now) + PLACE;
    }
    Some(fates)
}

/// A number that looks drawn: the same every time.
fn drawn(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

fn draw_times(seed: &mut u64, delays: bool) -> Vec<Duration> {
    loop {
        // By then the queue of the last round is dry, and all clients are connected.
        let mut at = PLACE * (BURST + 5);
        let mut times = Vec::new();
        for _ in 0..24 {
            times.push(at);
            let gap = if drawn(seed).is_multiple_of(6) { drawn(seed) % 500 } else { drawn(seed) % 50 };
            at += MARGIN * 2 + Duration::from_millis(gap);
        }
        if expected(&times, delays).is_some() {
            return times;
        }
    }
}

/// Whether all went as expected, each answer when it should come.
fn is_as_expected(told: &[Told], expected: &[(Fate, Duration)]) -> bool {
    told.iter().zip(expected).all(|(told, (fate, wait))| {
        let denied = matches!(told.status, 429 | 503);
        denied == (*fate == Fate::Denied) && told.took.abs_diff(*wait) < MARGIN
    })
}

fn check(delays: bool) {
    let (api, folder, port) = (Api::echo(), Folder::new(), free_port());
    let nodelay = if delays { "" } else { "nodelay" };
    let http = format!(
        "limit_req_zone $binary_remote_addr zone=one:1m rate=10r/s;
         server {{ listen 127.0.0.1:{port}; location / {{ limit_req zone=one burst={BURST} {nodelay}; proxy_pass {}; }} }}",
        api.url()
    );
    let _nginx = Nginx::start(&folder, &http, &[port]);
    let on_exceed = if delays { "hold" } else { "reject" };
    let server = in_front_of(
        &api,
        &format!(
            "rules: [{{ id: q, algorithm: leaky-bucket, limit: 10/s, burst: {}, on_exceed: {on_exceed} }}]",
            BURST + 1
        ),
    );
    let (mut seed, mut seen) = (7, Vec::new());
    for _ in 0..TRIES {
        let times = draw_times(&mut seed, delays);
        let start = Instant::now();
        let told = thread::scope(|scope| {
            let ours = scope.spawn(|| ask_at(server.proxy, &times, start));
            let theirs = ask_at(address(port), &times, start);
            [ours.join().expect("no panic"), theirs]
        });
        // The times at which they really were sent must be clear of boundaries too, and say the same.
        let [ours, theirs] = &told;
        let sent = |told: &[Told]| told.iter().map(|each| each.sent).collect::<Vec<_>>();
        let [for_us, for_them] = [ours, theirs].map(|told| expected(&sent(told), delays));
        let pattern = |expected: &Option<Vec<(Fate, Duration)>>| {
            expected.as_ref().map(|fates| fates.iter().map(|(fate, _)| *fate).collect::<Vec<_>>())
        };
        let (Some(ours_should), Some(theirs_should)) = (&for_us, &for_them) else { continue };
        if pattern(&for_us) != pattern(&for_them) {
            continue;
        }
        let agree = (is_as_expected(ours, ours_should), is_as_expected(theirs, theirs_should));
        seen.push(agree);
        if agree == (true, true) {
            return;
        }
    }
    panic!("never both as defined; (ours, nginx's): {seen:?}");
}

#[test]
fn with_delay_the_pattern_is_that_of_nginx() {
    check(true);
}

#[test]
fn without_delay_the_pattern_is_that_of_nginx() {
    check(false);
}
