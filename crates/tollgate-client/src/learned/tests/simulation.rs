//! The model against simulated servers of every algorithm, by a virtual clock: how much of a limit is used, how many calls
//! are refused, and how soon the rate recovers after a disturbance.

use std::time::Duration;

use tokio::time::Instant;

use super::{learned, secs, stated};
use crate::headers::ServerLimits;
use crate::learned::{Readiness, ResponseKind, SentCall};

/// The limit of the servers: 50 a second.
const QUOTA: u64 = 50;
const WINDOW: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_micros(500);
const MAX_IN_FLIGHT: usize = 16;
const DURATION: Duration = Duration::from_secs(30);
const DISTURBED_AT: Duration = Duration::from_millis(5_400);
/// The wait that a refusal causes is over by then, and the search for a continuous refill.
const RECOVERED_AT: Duration = Duration::from_secs(10);

/// How a simulated server counts.
#[derive(Clone, Copy, Debug)]
enum Counting {
    FixedWindow,
    SlidingLog,
    TokenBucket { burst: u64 },
}

const ALL_COUNTINGS: [Counting; 5] = [
    Counting::FixedWindow,
    Counting::SlidingLog,
    Counting::TokenBucket { burst: QUOTA },
    Counting::TokenBucket { burst: QUOTA / 5 },
    Counting::TokenBucket { burst: QUOTA * 2 },
];

/// What happens once, at `DISTURBED_AT`.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Disturbance {
    None,
    /// The server refuses one call that its limit would admit.
    Refusal,
    /// Another client uses up what is available.
    OtherClient,
    /// The client does not run, as on a busy machine.
    Stall(Duration),
}

/// How long things take, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Delays {
    /// Of a request, and of a response: up to this, so that both overtake each other.
    latency: u64,
    /// Until the client notices that it may send, or that a response has arrived.
    wake_up: u64,
}

const ALL_DELAYS: [Delays; 3] = [
    Delays { latency: 2, wake_up: 1 },
    Delays { latency: 10, wake_up: 10 },
    Delays { latency: 30, wake_up: 30 },
];

/// Its times are rounded up to seconds, as the draft requires.
struct SimulatedServer {
    counting: Counting,
    start: Instant,
    /// The calls of all clients that were admitted.
    admitted: Vec<Instant>,
    /// Those of the client under test.
    own: Vec<Instant>,
    tokens: f64,
    refilled_at: Instant,
    refused: u64,
}

impl SimulatedServer {
    fn new(counting: Counting, start: Instant) -> SimulatedServer {
        let tokens = if let Counting::TokenBucket { burst } = counting { burst as f64 } else { 0.0 };
        SimulatedServer {
            counting,
            start,
            admitted: Vec::new(),
            own: Vec::new(),
            tokens,
            refilled_at: start,
            refused: 0,
        }
    }

    fn admitted_since(&self, since: Instant) -> u64 {
        self.admitted.iter().rev().take_while(|at| **at >= since).count() as u64
    }

    fn available(&mut self, now: Instant) -> u64 {
        match self.counting {
            Counting::FixedWindow => {
                QUOTA - self.admitted_since(self.start + secs((now - self.start).as_secs()))
            }
            Counting::SlidingLog => QUOTA - self.admitted_since(now - WINDOW + Duration::from_nanos(1)),
            Counting::TokenBucket { burst } => {
                let gained = (now - self.refilled_at).as_secs_f64() * QUOTA as f64;
                self.tokens = (self.tokens + gained).min(burst as f64);
                self.refilled_at = now;
                self.tokens as u64
            }
        }
    }

    fn admit(&mut self, now: Instant) {
        self.tokens -= 1.0;
        self.admitted.push(now);
    }

    fn call(&mut self, now: Instant) -> (ResponseKind, ServerLimits) {
        let available = self.available(now);
        if available == 0 {
            return self.refuse();
        }
        self.admit(now);
        self.own.push(now);
        let reset =
            if let Counting::TokenBucket { burst } = self.counting { burst.div_ceil(QUOTA) } else { 1 };
        (ResponseKind::Served, stated(QUOTA, 1, available - 1, reset))
    }

    fn refuse(&mut self) -> (ResponseKind, ServerLimits) {
        self.refused += 1;
        (ResponseKind::Refused, ServerLimits { retry_after: Some(secs(1)), ..stated(QUOTA, 1, 0, 1) })
    }

    /// The share of the limit that the client has used between two times that are whole windows.
    fn used(&self, from: Duration, to: Duration) -> f64 {
        let range = self.start + from..self.start + to;
        let calls = self.own.iter().filter(|at| range.contains(at)).count();
        calls as f64 / (QUOTA as f64 * (to - from).as_secs_f64())
    }
}

/// Calls a server as fast as the model allows, with up to 16 calls in flight.
fn saturate(counting: Counting, delays: Delays, disturbance: Disturbance, seed: u64) -> SimulatedServer {
    let mut random = fastrand::Rng::with_seed(seed);
    let start = Instant::now();
    let mut server = SimulatedServer::new(counting, start);
    let mut learned = learned();
    let mut requests: Vec<(Instant, SentCall)> = Vec::new();
    let mut responses: Vec<(Instant, SentCall, ResponseKind, ServerLimits)> = Vec::new();
    let mut awake_at = start;
    let mut pending = Some(disturbance);
    let mut now = start;
    while now < start + DURATION {
        now += STEP;
        let due = pending.take_if(|_| now >= start + DISTURBED_AT);
        match due {
            Some(Disturbance::OtherClient) => {
                (0..server.available(now)).for_each(|_| server.admit(now));
            }
            Some(Disturbance::Stall(length)) => awake_at = now + length,
            Some(Disturbance::Refusal) if requests.first().is_none_or(|(at, _)| *at > now) => pending = due,
            _ => {}
        }
        requests.sort_by_key(|(at, _)| *at);
        while requests.first().is_some_and(|(at, _)| *at <= now) {
            let (at, call) = requests.remove(0);
            let is_refused = due == Some(Disturbance::Refusal) && pending.is_none();
            let (kind, stated) =
                if is_refused && server.refused == 0 { server.refuse() } else { server.call(at) };
            let latency = Duration::from_micros(random.u64(500..=delays.latency * 1000));
            responses.push((at + latency, call, kind, stated));
        }
        if now < awake_at {
            continue;
        }
        awake_at = now + Duration::from_micros(random.u64(0..=delays.wake_up * 1000));
        responses.sort_by_key(|(at, ..)| *at);
        while responses.first().is_some_and(|(at, ..)| *at <= now) {
            let (_, call, kind, stated) = responses.remove(0);
            learned.observe(call, kind, &stated, now);
        }
        while learned.readiness(now) == Readiness::Now && requests.len() + responses.len() < MAX_IN_FLIGHT {
            let latency = Duration::from_micros(random.u64(500..=delays.latency * 1000));
            requests.push((now + latency, learned.send(now)));
        }
    }
    server
}

impl Delays {
    /// The longest time from a call to its response, in seconds.
    fn round_trip(self) -> f64 {
        (2 * self.latency + self.wake_up) as f64 / 1000.0
    }
}

/// The share of the limit that must be used. A call may have been counted as late as at its response, so in a sliding
/// window it takes up its place for a round trip longer.
fn required(counting: Counting, delays: Delays) -> f64 {
    match counting {
        Counting::TokenBucket { .. } | Counting::FixedWindow => 0.95,
        Counting::SlidingLog => 1.0 / (1.0 + delays.round_trip()),
    }
}

/// Checks every algorithm with all delays: the share of the limit used from a time on, and the calls refused in all.
fn check(disturbance: Disturbance, from: Duration, max_refused: u64) {
    let mut problems = Vec::new();
    for delays in ALL_DELAYS {
        for counting in ALL_COUNTINGS {
            for seed in 1..=3 {
                let server = saturate(counting, delays, disturbance, seed);
                let used = server.used(from, DURATION);
                let text = format!(
                    "{disturbance:?}, {counting:?}, {delays:?}, seed {seed}: {:.1} % used, {} refused",
                    used * 100.0,
                    server.refused
                );
                println!("{text}");
                if used < required(counting, delays) || server.refused > max_refused {
                    problems.push(text);
                }
            }
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn learned_limits_are_used_up_and_not_exceeded() {
    check(Disturbance::None, Duration::ZERO, 5);
}

#[test]
fn the_rate_recovers_after_one_refusal() {
    check(Disturbance::Refusal, RECOVERED_AT, 6);
}

#[test]
fn the_rate_recovers_after_another_client_has_used_up_the_limit() {
    check(Disturbance::OtherClient, RECOVERED_AT, 16);
}

#[test]
fn the_rate_recovers_after_the_client_was_stopped() {
    for length in [100, 400, 2000].map(Duration::from_millis) {
        check(Disturbance::Stall(length), RECOVERED_AT, 6);
    }
}
