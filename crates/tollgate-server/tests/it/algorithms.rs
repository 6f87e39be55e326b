//! Each algorithm, chosen in YAML and shown over HTTP to behave by its definition.
//!
//! Spans are long, so that no test depends on how fast it runs.

use std::ops::RangeInclusive;

use serde_json::{Value, json};
use tollgate_testkit::{ALGORITHMS, Folder, Server};

const HOUR: u64 = 3_600_000;
/// How long a test may be held up between two requests.
const SLACK: u64 = 100_000;

fn start(rule: &str) -> Server {
    Server::start(&format!("rules: [{{ id: a, key: user, {rule} }}]"))
}

fn hit(server: &Server, cost: u64) -> Value {
    server.check(&json!({ "user": "ann", "cost": cost })).json()
}

fn counter(server: &Server) -> Value {
    server.admin("GET", "/v1/keys?rule=a&key=user:ann", "").json()["limits"][0].clone()
}

/// Three of three pass, the fourth waits as long as the definition says.
fn check(rule: &str, algorithm: &str, wait_ms: RangeInclusive<u64>) -> Value {
    let server = start(rule);
    for left in [2, 1, 0] {
        let body = hit(&server, 1);
        assert_eq!((&body["allowed"], &body["remaining"]), (&json!(true), &json!(left)), "{rule}: {body}");
    }
    let body = hit(&server, 1);
    let wait = body["retry_after_ms"].as_u64();
    assert_eq!(body["allowed"], false, "{rule}: {body}");
    assert!(wait.is_some_and(|wait| wait_ms.contains(&wait)), "{rule}: {body}");
    let never = hit(&server, 4);
    assert_eq!((&never["allowed"], &never["retry_after_ms"]), (&json!(false), &Value::Null), "{rule}");
    let counter = counter(&server);
    assert_eq!((&counter["algorithm"], &counter["used"]), (&json!(algorithm), &json!(3)), "{rule}");
    assert_eq!(counter["remaining"], 0, "{rule}");
    server.admin("DELETE", "/v1/keys?rule=a&key=user:ann", "");
    assert_eq!(hit(&server, 3)["remaining"], 0, "{rule}: a cost of three takes three");
    counter
}

fn just_below(span: u64) -> RangeInclusive<u64> {
    span - SLACK..=span
}

#[test]
fn gcra_gives_back_one_token_at_a_time() {
    check("limit: 3/h", "gcra", just_below(HOUR / 3));
    check("limit: 1/h, burst: 3, algorithm: gcra", "gcra", just_below(HOUR));
}

#[test]
fn a_token_bucket_refills_continuously_by_tick_or_by_the_calendar() {
    check("limit: 3/h, algorithm: token-bucket", "token-bucket", just_below(HOUR / 3));
    let tick = "limit: 3/y, algorithm: token-bucket, refill: tick, tick: 100d";
    check(tick, "token-bucket", 0..=200 * 24 * HOUR);
    let calendar = "limit: 3/y, algorithm: token-bucket, refill: calendar";
    check(calendar, "token-bucket", 0..=366 * 24 * HOUR);
}

#[test]
fn a_leaky_bucket_reports_the_wait_until_ones_turn() {
    let server = start("limit: 3/h, algorithm: leaky-bucket, max_wait: 2h");
    for turn in 0..3 {
        let body = hit(&server, 1);
        let delay = body["delay_ms"].as_u64().expect("a delay");
        let exact = turn * HOUR / 3;
        assert!((exact.saturating_sub(SLACK)..=exact).contains(&delay), "turn {turn}: {body}");
        assert_eq!((&body["allowed"], &body["remaining"]), (&json!(true), &json!(2 - turn)));
    }
    let full = hit(&server, 1);
    assert_eq!((&full["allowed"], &full["delay_ms"]), (&json!(false), &json!(0)));
    assert!(just_below(HOUR / 3).contains(&full["retry_after_ms"].as_u64().expect("a wait")), "{full}");
    assert_eq!(counter(&server)["used"], 3);
}

#[test]
fn a_wait_longer_than_max_wait_is_denied_and_charges_nothing() {
    let server = start("limit: 3/h, algorithm: leaky-bucket, max_wait: 30m");
    assert_eq!(hit(&server, 1)["delay_ms"], 0);
    assert!(just_below(HOUR / 3).contains(&hit(&server, 1)["delay_ms"].as_u64().expect("a delay")));
    for _ in 0..3 {
        let body = hit(&server, 1);
        assert_eq!(body["allowed"], false, "{body}");
        assert!(just_below(HOUR / 6).contains(&body["retry_after_ms"].as_u64().expect("a wait")), "{body}");
    }
    assert_eq!(counter(&server)["used"], 2);
}

/// So many hits at the same time: how long each is to wait, `None` if it is denied.
fn at_once(server: &Server, hits: usize) -> Vec<Option<u64>> {
    let batch = vec![json!({ "user": "ann" }); hits];
    let reply = server.request("POST", "/v1/check/batch", json!(batch).to_string()).json();
    let reply = reply.as_array().expect("an array");
    reply.iter().map(|each| each["delay_ms"].as_u64().filter(|_| each["allowed"] == true)).collect()
}

/// Each wait is at most what it should be, and not much shorter: time goes on between the hits.
fn check_waits(waits: &[Option<u64>], expected_ms: &[Option<u64>], place_ms: u64) {
    assert_eq!(waits.len(), expected_ms.len());
    for (wait, expected) in waits.iter().zip(expected_ms) {
        let fits = match (wait, expected) {
            (Some(wait), Some(expected)) => {
                (expected.saturating_sub(place_ms / 2)..=*expected).contains(wait)
            }
            (wait, expected) => wait == expected,
        };
        assert!(fits, "{waits:?} is not {expected_ms:?}");
    }
}

#[test]
fn the_queue_of_a_leaky_bucket_is_the_only_bound_on_its_waits_by_default() {
    // max_wait was 30 s: of six at once three were accepted.
    let server = start("limit: 5/m, algorithm: leaky-bucket");
    let expected = [0, 12_000, 24_000, 36_000, 48_000].map(Some);
    check_waits(&at_once(&server, 6), &[&expected[..], &[None]].concat(), 12_000);
    server.wait_for_log("rule a: 5/m holds requests for up to 48s, longer than most clients wait");
}

#[test]
fn hold_after_is_the_delay_of_nginx_and_may_change_at_any_time() {
    let folder = Folder::new();
    let rule = |options: &str| {
        folder.configure(&format!(
            "rules: [{{ id: a, key: user, algorithm: leaky-bucket, limit: 1/h, burst: 13, {options} }}]"
        ))
    };
    let config = rule("hold_after: 8");
    let server = Server::start_at(&folder, &config);
    let mut expected = vec![Some(0); 9];
    expected.extend((1..5).map(|place| Some(place * HOUR)));
    expected.push(None);
    check_waits(&at_once(&server, 14), &expected, HOUR);
    assert_eq!(counter(&server)["used"], 13);
    // The queue is the same one; only which requests are held changes.
    server.admin("DELETE", "/v1/keys?rule=a&key=user:ann", "");
    check_waits(&at_once(&server, 5), &[Some(0); 5], HOUR);
    rule("hold_after: 3");
    server.wait_for_log("rules generation 1 → 2");
    check_waits(&at_once(&server, 1), &[Some(2 * HOUR)], HOUR);
    rule("max_wait: 7h");
    server.wait_for_log("rules generation 2 → 3");
    check_waits(&at_once(&server, 3), &[Some(6 * HOUR), Some(7 * HOUR), None], HOUR);
    assert_eq!(counter(&server)["used"], 8);
}

#[test]
fn a_leaky_bucket_that_rejects_lets_its_burst_through_at_once() {
    let rule = "limit: 3/h, algorithm: leaky-bucket, on_exceed: reject";
    check(rule, "leaky-bucket", just_below(HOUR / 3));
    assert_eq!(hit(&start(rule), 3)["delay_ms"], 0);
}

#[test]
fn a_fixed_window_starts_by_the_clock_or_with_the_first_hit() {
    check("limit: 3/y, algorithm: fixed-window", "fixed-window", 0..=366 * 24 * HOUR);
    check("limit: 3/h, algorithm: fixed-window, window: first-hit", "fixed-window", just_below(HOUR));
}

#[test]
fn a_sliding_log_waits_for_its_oldest_hit_to_leave() {
    check("limit: 3/h, algorithm: sliding-log", "sliding-log", just_below(HOUR));
}

#[test]
fn a_compacted_log_waits_in_steps_of_its_resolution() {
    let rule = "limit: 3/h, algorithm: sliding-compact, resolution: 1m";
    check(rule, "sliding-compact", HOUR - 60_000 - SLACK..=HOUR + 60_000);
}

#[test]
fn a_sliding_counter_shows_both_its_windows() {
    let counter = check("limit: 3/y, algorithm: sliding-counter", "sliding-counter", 1..=2 * 366 * 24 * HOUR);
    assert_eq!((&counter["previous"], &counter["current"]), (&json!(0), &json!(3)));
}

#[test]
fn a_sliding_counter_may_count_what_it_denies() {
    let server = start("limit: 3/y, algorithm: sliding-counter, count_denied: true");
    for _ in 0..5 {
        hit(&server, 1);
    }
    assert_eq!(counter(&server)["remaining"], 0);
    assert_eq!(hit(&server, 1)["allowed"], false);
}

#[test]
fn a_tiered_day_is_read_in_at_most_142_buckets() {
    let day = 24 * HOUR;
    let counter = check("limit: 3/d, algorithm: tiered-window", "tiered-window", day - SLACK..=day + 1000);
    assert!((1..=142).contains(&counter["buckets_read"].as_u64().expect("a number")), "{counter}");
    let coarse = "limit: 3/d, algorithm: tiered-window, levels: [h]";
    let counter = check(coarse, "tiered-window", day - HOUR - SLACK..=day + HOUR);
    assert!((1..=25).contains(&counter["buckets_read"].as_u64().expect("a number")), "{counter}");
}

#[test]
fn an_empty_limit_denies_everything_for_every_algorithm() {
    for algorithm in ALGORITHMS {
        let server = start(&format!("limit: 0/m, algorithm: {algorithm}"));
        let body = hit(&server, 1);
        assert_eq!((&body["allowed"], &body["retry_after_ms"]), (&json!(false), &Value::Null), "{algorithm}");
    }
}
