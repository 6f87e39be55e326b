//! What single responses teach; `simulation` runs the model against servers of every algorithm.

use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::headers::ReportedLimit;

mod simulation;

const MAX_WAIT: Duration = Duration::from_secs(3600);

fn learned() -> Learned {
    Learned::new(LearnSettings { first_call: FirstCall::Alone, max_wait: MAX_WAIT, spaced: None })
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

/// A regression: such a server was called again at once, without end.
#[test]
fn a_wait_of_zero_after_a_refusal_is_no_wait_that_is_stated() {
    let mut now = Instant::now();
    let mut learned = learned();
    let zero = ServerLimits { retry_after: Some(Duration::ZERO), limits: Vec::new() };
    let exhausted = stated(5, 60, 0, 0);
    for (stated, expected) in [(&zero, 1), (&exhausted, 2), (&zero, 4)] {
        assert_eq!(refuse(&mut learned, stated, now), secs(expected));
        now += secs(expected);
    }
    let both = ServerLimits { retry_after: Some(Duration::ZERO), ..stated(5, 60, 0, 7) };
    assert_eq!(refuse(&mut learned, &both, now), secs(7));
}

/// A regression: after a first call that failed, all others were sent at once.
#[test]
fn the_call_after_a_first_one_without_a_response_is_sent_alone() {
    let now = Instant::now();
    for sent_at in [now, now + FIRST_RESPONSE_TIMEOUT] {
        let mut learned = learned();
        let call = learned.send(now);
        learned.fail(call, sent_at);
        learned.send(sent_at);
        assert_eq!(learned.readiness(sent_at), Readiness::OnResponseOrAt(sent_at + FIRST_RESPONSE_TIMEOUT));
        learned.revert();
        assert_eq!(learned.readiness(sent_at), Readiness::Now);
        learned.send(sent_at + secs(2));
        let next = sent_at + secs(2) + FIRST_RESPONSE_TIMEOUT;
        assert_eq!(learned.readiness(sent_at + secs(3)), Readiness::OnResponseOrAt(next));
    }
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
