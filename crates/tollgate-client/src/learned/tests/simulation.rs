//! The model against simulated servers of every algorithm, by a virtual clock: how much of a limit is used, how many calls
//! are refused, and how soon the rate recovers after a disturbance.

use std::time::Duration;

use tokio::time::Instant;

use super::{learned, secs, stated};
use crate::headers::ServerLimits;
use crate::learned::{Readiness, ResponseKind, SentCall};

/// A limit of the servers.
#[derive(Clone, Copy, Debug)]
struct SimulatedQuota {
    number: u64,
    window: Duration,
    /// The windows that are simulated.
    windows: u32,
}

const FIFTY_A_SECOND: SimulatedQuota =
    SimulatedQuota { number: 50, window: Duration::from_secs(1), windows: 30 };
const STEP: Duration = Duration::from_micros(500);
const MAX_IN_FLIGHT: usize = 16;
const DISTURBED_AT: Duration = Duration::from_millis(5_400);
/// The wait that a refusal causes is over by then, and the search for a continuous refill.
const RECOVERED_AT: Duration = Duration::from_secs(10);

impl SimulatedQuota {
    fn per_second(self) -> f64 {
        self.number as f64 / self.window.as_secs_f64()
    }

    fn duration(self) -> Duration {
        self.window * self.windows
    }
}

/// How a simulated server counts.
#[derive(Clone, Copy, Debug)]
enum Counting {
    FixedWindow,
    SlidingLog,
    TokenBucket { burst: u64 },
}

fn all_countings(quota: SimulatedQuota) -> [Counting; 5] {
    [
        Counting::FixedWindow,
        Counting::SlidingLog,
        Counting::TokenBucket { burst: quota.number },
        Counting::TokenBucket { burst: quota.number / 5 },
        Counting::TokenBucket { burst: quota.number * 2 },
    ]
}

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
    quota: SimulatedQuota,
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
    fn new(quota: SimulatedQuota, counting: Counting, start: Instant) -> SimulatedServer {
        let tokens = if let Counting::TokenBucket { burst } = counting { burst as f64 } else { 0.0 };
        SimulatedServer {
            quota,
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
                let window = self.quota.window.as_secs();
                let elapsed = (now - self.start).as_secs() / window * window;
                self.quota.number - self.admitted_since(self.start + secs(elapsed))
            }
            Counting::SlidingLog => {
                self.quota.number - self.admitted_since(now - self.quota.window + Duration::from_nanos(1))
            }
            Counting::TokenBucket { burst } => {
                let gained = (now - self.refilled_at).as_secs_f64() * self.quota.per_second();
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
            return self.refuse(now);
        }
        self.admit(now);
        self.own.push(now);
        (ResponseKind::Served, self.stated(available - 1, now))
    }

    fn refuse(&mut self, now: Instant) -> (ResponseKind, ServerLimits) {
        self.refused += 1;
        let retry_after = match self.counting {
            Counting::TokenBucket { .. } => (1.0 / self.quota.per_second()).ceil() as u64,
            Counting::FixedWindow | Counting::SlidingLog => self.reset(now),
        };
        (ResponseKind::Refused, ServerLimits { retry_after: Some(secs(retry_after)), ..self.stated(0, now) })
    }

    fn stated(&self, remaining: u64, now: Instant) -> ServerLimits {
        stated(self.quota.number, self.quota.window.as_secs(), remaining, self.reset(now))
    }

    /// Seconds until the whole quota is available, as Tollgate states them.
    fn reset(&self, now: Instant) -> u64 {
        let window = self.quota.window;
        let reset = match self.counting {
            Counting::FixedWindow => {
                window - Duration::from_secs_f64((now - self.start).as_secs_f64() % window.as_secs_f64())
            }
            Counting::SlidingLog => window,
            Counting::TokenBucket { burst } => {
                Duration::from_secs_f64((burst as f64 - self.tokens) / self.quota.per_second())
            }
        };
        (reset.as_secs_f64().ceil() as u64).max(1)
    }

    /// The share of the limit that the client has used between two times that are whole windows.
    fn used(&self, from: Duration, to: Duration) -> f64 {
        let range = self.start + from..self.start + to;
        let calls = self.own.iter().filter(|at| range.contains(at)).count();
        calls as f64 / (self.quota.per_second() * (to - from).as_secs_f64())
    }
}

/// Calls a server as fast as the model allows, with up to 16 calls in flight.
fn saturate(
    quota: SimulatedQuota,
    counting: Counting,
    delays: Delays,
    disturbance: Disturbance,
    seed: u64,
) -> SimulatedServer {
    let mut random = fastrand::Rng::with_seed(seed);
    let start = Instant::now();
    let mut server = SimulatedServer::new(quota, counting, start);
    let mut learned = learned();
    let mut requests: Vec<(Instant, SentCall)> = Vec::new();
    let mut responses: Vec<(Instant, SentCall, ResponseKind, ServerLimits)> = Vec::new();
    let mut awake_at = start;
    let mut pending = Some(disturbance);
    let mut now = start;
    while now < start + quota.duration() {
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
                if is_refused && server.refused == 0 { server.refuse(at) } else { server.call(at) };
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
fn required(quota: SimulatedQuota, counting: Counting, delays: Delays) -> f64 {
    match counting {
        Counting::TokenBucket { .. } | Counting::FixedWindow => 0.95,
        Counting::SlidingLog => 1.0 / (1.0 + delays.round_trip() / quota.window.as_secs_f64()),
    }
}

/// Checks every algorithm with all delays: the share of the limit used from a time on, and the calls refused in all.
fn check(quota: SimulatedQuota, disturbance: Disturbance, from: Duration, max_refused: u64) {
    let mut problems = Vec::new();
    for delays in ALL_DELAYS {
        for counting in all_countings(quota) {
            for seed in 1..=3 {
                let server = saturate(quota, counting, delays, disturbance, seed);
                let used = server.used(from, quota.duration());
                let text = format!(
                    "{quota:?}, {disturbance:?}, {counting:?}, {delays:?}, seed {seed}: {:.1} % used, {} refused",
                    used * 100.0,
                    server.refused
                );
                println!("{text}");
                if used < required(quota, counting, delays) || server.refused > max_refused {
                    problems.push(text);
                }
            }
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn learned_limits_are_used_up_and_not_exceeded() {
    check(FIFTY_A_SECOND, Disturbance::None, Duration::ZERO, 5);
}

#[test]
fn slower_limits_are_used_up_as_well() {
    for (number, seconds, windows) in [(10, 1, 60), (100, 60, 3)] {
        let quota = SimulatedQuota { number, window: secs(seconds), windows };
        check(quota, Disturbance::None, quota.window, 5);
    }
}

#[test]
fn the_rate_recovers_after_one_refusal() {
    check(FIFTY_A_SECOND, Disturbance::Refusal, RECOVERED_AT, 6);
}

#[test]
fn the_rate_recovers_after_another_client_has_used_up_the_limit() {
    check(FIFTY_A_SECOND, Disturbance::OtherClient, RECOVERED_AT, 16);
}

#[test]
fn the_rate_recovers_after_the_client_was_stopped() {
    for length in [100, 400, 2000].map(Duration::from_millis) {
        check(FIFTY_A_SECOND, Disturbance::Stall(length), RECOVERED_AT, 6);
    }
}
