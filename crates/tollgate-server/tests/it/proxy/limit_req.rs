//! The same pattern as nginx's `limit_req` in its three forms, for the same requests at the same times.
//!
//! Many keys are used at once, each with bursts of requests at random times that keep clear of every boundary by a
//! margin. A key counts if the machine was never slower than that margin while one of its requests arrived or was due:
//! that is judged by requests beside the limits. Every key that counts must be treated by both as defined.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_testkit::servers::nginx::{Nginx, address};
use tollgate_testkit::{Client, Folder, free_port};

use crate::proxy::api::Api;
use crate::proxy::in_front_of;

/// One a second: the time of a place in the queue.
const PLACE: Duration = Duration::from_secs(1);
/// No burst comes this near to a boundary.
const MARGIN: Duration = Duration::from_millis(200);
/// A machine that is slower than this may blur a margin.
const SLOW: Duration = Duration::from_millis(80);
const KEYS_EACH: usize = 4;
const BURSTS: usize = 5;
/// A round in which the machine was too slow says nothing; in any other one a difference fails the test.
const TRIES: usize = 12;
/// Clients connect this long before they send.
const AHEAD: Duration = Duration::from_millis(500);

/// A form of `limit_req`: nginx's burst does not count the request that passes at once, ours does.
#[derive(Clone, Copy, Debug)]
struct Form {
    path: &'static str,
    burst: u32,
    /// How many may be ahead of one that passes at once; no request is held if all may.
    delay: u32,
    nginx: &'static str,
    ours: &'static str,
}

const FORMS: [Form; 3] = [
    Form { path: "/hold", burst: 5, delay: 0, nginx: "burst=5", ours: "burst: 6" },
    Form {
        path: "/nodelay",
        burst: 5,
        delay: 5,
        nginx: "burst=5 nodelay",
        ours: "burst: 6, on_exceed: reject",
    },
    Form { path: "/delay", burst: 12, delay: 8, nginx: "burst=12 delay=8", ours: "burst: 13, hold_after: 8" },
];

/// So many requests at the same time.
#[derive(Clone, Copy, Debug)]
struct Burst {
    at: Duration,
    size: u32,
}

struct Key {
    form: Form,
    name: String,
    bursts: Vec<Burst>,
}

/// How long a request is held; `None` if it is refused.
type Decision = Option<Duration>;

#[derive(Clone, Copy, Debug)]
struct Response {
    sent: Duration,
    took: Duration,
    status: u16,
}

impl Key {
    /// The defined decisions for each group; `None` if one is near a boundary.
    fn expected(&self) -> Option<Vec<Vec<Decision>>> {
        let mut dry_at = Duration::ZERO;
        let mut decisions = Vec::new();
        for Burst { at, size } in &self.bursts {
            let ahead = dry_at.saturating_sub(*at);
            let part = Duration::from_nanos((ahead.as_nanos() % PLACE.as_nanos()) as u64);
            let clear = if ahead.is_zero() {
                *at - dry_at >= MARGIN
            } else {
                (MARGIN..=PLACE - MARGIN).contains(&part)
            };
            if !clear {
                return None;
            }
            dry_at = dry_at.max(*at);
            let each = (0..*size).map(|_| {
                let ahead = dry_at - *at;
                if ahead > PLACE * self.form.burst {
                    return None;
                }
                dry_at += PLACE;
                Some(ahead.saturating_sub(PLACE * self.form.delay))
            });
            decisions.push(each.collect());
        }
        Some(decisions)
    }

    fn draw(form: Form, name: String, seed: &mut u64) -> Key {
        loop {
            let mut at = AHEAD * 2;
            let mut bursts = Vec::new();
            for n in 0..BURSTS {
                // The first is the whole pattern at once: it fills an empty queue, and some are refused.
                let size = if n == 0 { form.burst + 2 } else { 1 + drawn(seed) as u32 % 6 };
                bursts.push(Burst { at, size });
                at += Duration::from_millis(300 + drawn(seed) % 3_000);
            }
            let key = Key { form, name: name.clone(), bursts };
            if key.expected().is_some() {
                return key;
            }
        }
    }

    /// Sends all requests to a proxy; the answers of each burst, the quickest first and refusals last.
    fn send_all(&self, proxy: SocketAddr, start: Instant) -> Vec<Vec<Response>> {
        let request = format!("GET {} HTTP/1.1\r\nhost: x\r\nx-key: {}\r\n\r\n", self.form.path, self.name)
            .into_bytes();
        let send = |at: Duration| {
            sleep_until(start + at - AHEAD);
            let mut client = Client::to(proxy);
            sleep_until(start + at);
            let sent = Instant::now();
            client.write(&request);
            let status = client.answer().status;
            Response { sent: sent - start, took: sent.elapsed(), status }
        };
        thread::scope(|scope| {
            let bursts: Vec<Vec<_>> = self
                .bursts
                .iter()
                .map(|burst| (0..burst.size).map(|_| scope.spawn(|| send(burst.at))).collect())
                .collect();
            let responses = bursts.into_iter().map(|burst| {
                let mut responses: Vec<_> =
                    burst.into_iter().map(|sender| sender.join().expect("no panic")).collect();
                responses.sort_by_key(|responses| (responses.status != 200, responses.took));
                responses
            });
            responses.collect()
        })
    }

    /// Whether the machine kept up when its requests arrived and when they were due.
    fn counts(
        &self,
        expected: &[Vec<Decision>],
        responses: &[Vec<Response>],
        slow: &[(Duration, Duration)],
    ) -> bool {
        self.bursts.iter().zip(expected).zip(responses).all(|((burst, decisions), responses)| {
            let in_time = responses.iter().all(|responses| responses.sent - burst.at < SLOW);
            in_time
                && decisions.iter().flatten().chain([&Duration::ZERO]).all(|wait| {
                    let due = burst.at + *wait;
                    !slow.iter().any(|(from, to)| *from < due + MARGIN && due < *to)
                })
        })
    }
}

fn sleep_until(at: Instant) {
    thread::sleep(at.saturating_duration_since(Instant::now()));
}

/// A number that looks drawn: the same every time.
fn drawn(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

/// Sends requests without a limit until `done`: from when to when answers were slow.
fn slow_times(proxy: SocketAddr, start: Instant, done: &AtomicBool) -> Vec<(Duration, Duration)> {
    let mut slow = Vec::new();
    let mut last = start.elapsed();
    let mut client = Client::to(proxy);
    while !done.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(10));
        client.request("GET", "/free", &[], b"");
        let now = start.elapsed();
        if now - last > SLOW {
            slow.push((last, now));
        }
        last = now;
    }
    slow
}

fn is_as_expected(decisions: &[Decision], responses: &[Response]) -> bool {
    decisions.len() == responses.len()
        && decisions.iter().zip(responses).all(|(decision, responses)| match decision {
            None => matches!(responses.status, 429 | 503),
            Some(wait) => responses.status == 200 && responses.took.abs_diff(*wait) < MARGIN,
        })
}

#[test]
fn held_passed_and_refused_are_those_of_nginx_in_all_three_forms() {
    let api = Api::echo();
    let folder = Folder::new();
    let port = free_port();
    let mut locations = format!("location /free {{ proxy_pass {}; }}", api.url());
    let mut zones = String::new();
    let mut rules = String::from("rules:\n");
    for Form { path, nginx, ours, .. } in FORMS {
        let name = path.trim_start_matches('/');
        zones += &format!("limit_req_zone $http_x_key zone={name}:1m rate=1r/s;");
        locations += &format!(
            "location {path} {{ limit_req zone={name} {nginx}; limit_req_log_level info; proxy_pass {}; }}",
            api.url()
        );
        rules += &format!(
            "  - {{ id: {name}, match: {path}, key: 'header:x-key', algorithm: leaky-bucket, limit: 1/s, {ours} }}\n"
        );
    }
    let http = format!("{zones} server {{ listen 127.0.0.1:{port}; {locations} }}");
    let what = "limit_req beside nginx";
    let Some(_nginx) = Nginx::start(what, &folder, &http, &[port]) else { return };
    let server = in_front_of(&api, &rules);
    let mut seed = 7;
    let mut counted = [0; FORMS.len()];
    for attempt in 0..TRIES {
        round(attempt, &mut seed, &mut counted, server.proxy, address(port));
        if counted.iter().all(|count| *count >= KEYS_EACH / 2) {
            return;
        }
    }
    panic!("the machine was too slow: of each form only {counted:?} keys count");
}

/// Sends both of them requests with keys of every form at once; panics if one that counts is not treated as defined.
fn round(
    attempt: usize,
    seed: &mut u64,
    counted: &mut [usize; FORMS.len()],
    ours: SocketAddr,
    nginx: SocketAddr,
) {
    let keys: Vec<Key> = (0..FORMS.len() * KEYS_EACH)
        .map(|n| Key::draw(FORMS[n % FORMS.len()], format!("{attempt}-{n}"), seed))
        .collect();
    let start = Instant::now();
    let done = AtomicBool::new(false);
    let (responses, slow) = thread::scope(|scope| {
        let done = &done;
        let canaries = [ours, nginx].map(|proxy| scope.spawn(move || slow_times(proxy, start, done)));
        let senders: Vec<_> = keys
            .iter()
            .map(|key| [ours, nginx].map(|proxy| scope.spawn(move || key.send_all(proxy, start))))
            .collect();
        let responses: Vec<_> =
            senders.into_iter().map(|both| both.map(|sender| sender.join().expect("no panic"))).collect();
        done.store(true, Ordering::Relaxed);
        (responses, canaries.map(|canary| canary.join().expect("no panic")).concat())
    });
    for (n, (key, both)) in keys.iter().zip(&responses).enumerate() {
        let expected = key.expected().expect("clear of boundaries");
        if !both.iter().all(|responses| key.counts(&expected, responses, &slow)) {
            continue;
        }
        for (name, responses) in ["tollgate", "nginx"].into_iter().zip(both) {
            for ((decisions, responses), burst) in expected.iter().zip(responses).zip(&key.bursts) {
                let Form { path, .. } = key.form;
                assert!(
                    is_as_expected(decisions, responses),
                    "{name} {path} {burst:?}: {decisions:?} but {responses:?}"
                );
            }
        }
        counted[n % FORMS.len()] += 1;
    }
}
