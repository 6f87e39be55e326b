//! The model against servers that are simulated: every algorithm of a server, with one client and with several.

use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::headers::ReportedLimit;

const MAX_WAIT: Duration = Duration::from_secs(3600);

fn learned() -> Learned {
    Learned::new(LearnSettings { first_call: FirstCall::Alone, max_wait: MAX_WAIT })
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn stated(quota: u64, window: u64, remaining: u64, reset: u64) -> ServerLimits {
    let limit = ReportedLimit {
        name: "api".to_owned(),
        partition: None,
        quota: Some(quota),
        window: Some(secs(window)),
        remaining: Some(remaining),
        reset: Some(secs(reset)),
    };
    ServerLimits { limits: vec![limit], retry_after: None }
}

fn answer(learned: &mut Learned, stated: &ServerLimits, now: Instant) {
    let call = learned.send(now);
    assert_eq!(learned.observe(call, ResponseKind::Served, stated, now), None);
}

fn refuse(learned: &mut Learned, stated: &ServerLimits, now: Instant) -> Duration {
    let call = learned.send(now);
    learned.observe(call, ResponseKind::Refused, stated, now).expect("a refusal has a wait")
}

#[test]
fn the_first_call_is_sent_alone_and_its_response_admits_the_others() {
    let now = Instant::now();
    let mut learned = learned();
    assert_eq!(learned.readiness(now), Readiness::Now);
    let call = learned.send(now);
    assert_eq!(learned.readiness(now), Readiness::OnResponseOrAt(now + FIRST_RESPONSE_TIMEOUT));
    assert_eq!(learned.readiness(now + FIRST_RESPONSE_TIMEOUT), Readiness::Now, "it may never be answered");
    learned.observe(call, ResponseKind::Served, &ServerLimits::default(), now);
    for _ in 0..1000 {
        assert_eq!(learned.readiness(now), Readiness::Now, "the server states no limit");
        learned.send(now);
    }
}

#[test]
fn no_more_calls_are_in_flight_than_remain() {
    let now = Instant::now();
    let mut learned = learned();
    answer(&mut learned, &stated(5, 60, 4, 60), now);
    for _ in 0..4 {
        assert_eq!(learned.readiness(now), Readiness::Now);
        learned.send(now);
    }
    assert_eq!(learned.readiness(now), Readiness::OnResponseOrAt(now + secs(60)));
}

#[test]
fn a_call_that_is_not_sent_leaves_no_trace() {
    let now = Instant::now();
    let mut learned = learned();
    answer(&mut learned, &stated(2, 60, 1, 60), now);
    learned.send(now);
    learned.revert();
    assert_eq!(learned.readiness(now), Readiness::Now);
}

#[test]
fn quota_that_others_have_used_returns_at_the_stated_reset_only() {
    let now = Instant::now();
    let mut learned = learned();
    answer(&mut learned, &stated(100, 60, 0, 17), now);
    assert_eq!(learned.readiness(now), Readiness::At(now + secs(17)));
    assert_eq!(learned.readiness(now + secs(17)), Readiness::Now);
}

#[test]
fn own_calls_leave_a_window_one_by_one() {
    let start = Instant::now();
    let mut learned = learned();
    for n in 0..5 {
        answer(&mut learned, &stated(5, 60, 4 - n, 60), start + secs(n));
    }
    assert_eq!(learned.readiness(start + secs(4)), Readiness::At(start + secs(60)));
    assert_eq!(learned.readiness(start + secs(60)), Readiness::Now);
    learned.send(start + secs(60));
    assert_eq!(learned.readiness(start + secs(60)), Readiness::OnResponseOrAt(start + secs(61)));
}

#[test]
fn responses_out_of_order_do_not_add_credit() {
    let now = Instant::now();
    let mut learned = learned();
    answer(&mut learned, &stated(5, 60, 4, 60), now);
    let first = learned.send(now);
    let second = learned.send(now);
    learned.observe(second, ResponseKind::Served, &stated(5, 60, 2, 60), now);
    learned.observe(first, ResponseKind::Served, &stated(5, 60, 3, 60), now);
    learned.send(now);
    learned.send(now);
    assert_eq!(learned.readiness(now), Readiness::OnResponseOrAt(now + secs(60)));
}

#[test]
fn a_server_cannot_stop_the_calls_for_ever() {
    let now = Instant::now();
    let forever = ServerLimits { retry_after: Some(Duration::MAX), limits: Vec::new() };
    assert_eq!(refuse(&mut learned(), &forever, now), MAX_WAIT);
    let mut learned = learned();
    answer(&mut learned, &stated(1, u64::MAX, 0, u64::MAX), now);
    assert_eq!(learned.readiness(now), Readiness::At(now + MAX_WAIT));
    assert_eq!(learned.readiness(now + MAX_WAIT), Readiness::Now);
}

#[test]
fn refusals_without_a_header_double_the_wait_until_a_call_is_served() {
    let mut now = Instant::now();
    let mut learned = learned();
    for expected in [1, 2, 4, 8, 16, 32, 60, 60] {
        assert_eq!(refuse(&mut learned, &ServerLimits::default(), now), secs(expected));
        assert_eq!(learned.readiness(now), Readiness::At(now + secs(expected)));
        now += secs(expected);
    }
    answer(&mut learned, &ServerLimits::default(), now);
    assert_eq!(refuse(&mut learned, &ServerLimits::default(), now), secs(1));
}

#[test]
fn what_is_remembered_is_bounded() {
    let now = Instant::now();
    let mut learned = learned();
    for n in 0..10_000_u64 {
        let mut stated = stated(1_000_000, 60, 999_000, 60);
        stated.limits[0].name = n.to_string();
        answer(&mut learned, &stated, now);
    }
    assert!(learned.limits.len() <= MAX_LEARNED);
    assert!(learned.traffic.answered.len() <= MAX_ANSWERED);
    assert!(!learned.is_idle(now));
    assert!(learned.is_idle(now + secs(60)));
}

/// How a simulated server counts.
#[derive(Clone, Copy, Debug)]
enum Counting {
    FixedWindow,
    SlidingLog,
    TokenBucket { burst: u64 },
}

/// A server with a limit of 50 a second; its `t` is rounded up, as the draft requires.
struct SimulatedServer {
    counting: Counting,
    start: Instant,
    admitted: Vec<Instant>,
    tokens: f64,
    refilled_at: Instant,
    refused: u64,
}

const QUOTA: u64 = 50;

impl SimulatedServer {
    fn new(counting: Counting, start: Instant) -> SimulatedServer {
        let tokens = if let Counting::TokenBucket { burst } = counting { burst as f64 } else { 0.0 };
        SimulatedServer { counting, start, admitted: Vec::new(), tokens, refilled_at: start, refused: 0 }
    }

    fn call(&mut self, now: Instant) -> (ResponseKind, ServerLimits) {
        let window = secs(1);
        let capacity = if let Counting::TokenBucket { burst } = self.counting { burst } else { QUOTA };
        let available = match self.counting {
            Counting::FixedWindow => {
                let begun = self.start + secs((now - self.start).as_secs());
                QUOTA - self.admitted.iter().filter(|at| **at >= begun).count() as u64
            }
            Counting::SlidingLog => {
                QUOTA - self.admitted.iter().filter(|at| **at + window > now).count() as u64
            }
            Counting::TokenBucket { burst } => {
                let gained = (now - self.refilled_at).as_secs_f64() * QUOTA as f64;
                self.tokens = (self.tokens + gained).min(burst as f64);
                self.refilled_at = now;
                self.tokens as u64
            }
        };
        if available == 0 {
            self.refused += 1;
            return (ResponseKind::Refused, stated(QUOTA, 1, 0, 1));
        }
        self.tokens -= 1.0;
        self.admitted.push(now);
        (ResponseKind::Served, stated(QUOTA, 1, available - 1, u64::from(available <= capacity)))
    }
}

/// How long things take, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Delays {
    /// Of a request, and of a response: up to this, so that both overtake each other.
    latency: u64,
    /// Until the client notices that it may send, or that a response has arrived.
    wake_up: u64,
}

/// Calls a server as fast as the model allows for 20 s, with up to 16 calls in flight. Returns the share of the limit that
/// was used, and the refused calls.
fn saturate(counting: Counting, delays: Delays) -> (f64, u64) {
    let mut random = fastrand::Rng::with_seed(1);
    let start = Instant::now();
    let mut server = SimulatedServer::new(counting, start);
    let mut learned = learned();
    let mut requests: Vec<(Instant, SentCall)> = Vec::new();
    let mut responses: Vec<(Instant, SentCall, ResponseKind, ServerLimits)> = Vec::new();
    let mut awake_at = start;
    let mut now = start;
    while now < start + secs(20) {
        now += Duration::from_micros(500);
        requests.sort_by_key(|(at, _)| *at);
        while requests.first().is_some_and(|(at, _)| *at <= now) {
            let (at, call) = requests.remove(0);
            let (kind, stated) = server.call(at);
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
        while learned.readiness(now) == Readiness::Now && requests.len() + responses.len() < 16 {
            let latency = Duration::from_micros(random.u64(500..=delays.latency * 1000));
            requests.push((now + latency, learned.send(now)));
        }
    }
    let burst = if let Counting::TokenBucket { burst } = counting { burst } else { QUOTA };
    let first = server.admitted.iter().min().expect("some are admitted");
    let last = server.admitted.iter().max().expect("some are admitted");
    let seconds = (*last - *first).as_secs_f64();
    let allowed = match counting {
        Counting::TokenBucket { .. } => burst as f64 + QUOTA as f64 * seconds,
        // A window is used up at once: what remains of the last second admits nothing more.
        Counting::FixedWindow | Counting::SlidingLog => QUOTA as f64 * (seconds.floor() + 1.0),
    };
    (server.admitted.len() as f64 / allowed, server.refused)
}

#[test]
fn learned_limits_are_used_up_and_not_exceeded() {
    let mut problems = Vec::new();
    for delays in [
        Delays { latency: 2, wake_up: 1 },
        Delays { latency: 10, wake_up: 10 },
        Delays { latency: 30, wake_up: 30 },
    ] {
        for counting in [
            Counting::FixedWindow,
            Counting::SlidingLog,
            Counting::TokenBucket { burst: QUOTA },
            Counting::TokenBucket { burst: 10 },
        ] {
            let (used, refused) = saturate(counting, delays);
            println!("{counting:?}, {delays:?}: {:.1} % used, {refused} refused", used * 100.0);
            if used < 0.95 || refused > 5 {
                problems.push(format!("{counting:?}, {delays:?}: {used}, {refused} refused"));
            }
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}
