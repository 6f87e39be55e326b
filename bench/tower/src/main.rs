//! What a layer adds to a request: the same axum service bare, behind Tollgate's layer and behind tower_governor's,
//! called in process, in turns, in one run.
//!
//!     bench/tower/run [--quick] [--strict]
//!
//! `--strict` fails if Tollgate's layer adds more than a microsecond, or more than tower_governor's.
//!
//! `--counted NAME REQUESTS` runs one of them inside the function `measured`, for `bench/tower/instructions`.

use std::error::Error;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::get;
use http::{Request, StatusCode};
use tollgate_tower::{HeaderStyle, RateLimitLayer};
use tower::Service;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

/// Requests that are timed together.
const BATCH: usize = 1000;
const MAX_ADDED_NANOS: f64 = 1000.0;

struct Contestant {
    name: &'static str,
    app: Router,
    expected: StatusCode,
    /// Nanoseconds per request, a number for each round.
    rounds: Vec<f64>,
}

impl Contestant {
    fn new(name: &'static str, app: Router) -> Contestant {
        Contestant { name, app, expected: StatusCode::OK, rounds: Vec::new() }
    }

    fn denying(self) -> Contestant {
        Contestant { expected: StatusCode::TOO_MANY_REQUESTS, ..self }
    }

    fn run(&mut self, addresses: &[SocketAddr], from: usize) -> f64 {
        let requests: Vec<Request<Body>> =
            (from..from + BATCH).map(|n| request(addresses[n % addresses.len()])).collect();
        let mut service = self.app.as_service::<Body>();
        let mut unexpected = 0;
        let begun = cpu_nanos();
        for request in requests {
            let response = pin!(service.call(request)).poll(&mut Context::from_waker(Waker::noop()));
            let Poll::Ready(Ok(response)) = response else { panic!("the service answers at once") };
            unexpected += usize::from(response.status() != self.expected);
        }
        let nanos = (cpu_nanos() - begun) as f64 / BATCH as f64;
        assert!(
            unexpected <= addresses.len(),
            "{}: {unexpected} of {BATCH} answers are unexpected",
            self.name
        );
        nanos
    }

    fn median(&self) -> f64 {
        let mut rounds = self.rounds.clone();
        rounds.sort_by(f64::total_cmp);
        rounds[rounds.len() / 2]
    }
}

/// The processor time of this thread: on a busy machine it is steadier than the time of a clock.
fn cpu_nanos() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn request(address: SocketAddr) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = http::Uri::from_static("/users/42/orders?page=2");
    request.headers_mut().insert("host", http::HeaderValue::from_static("api.example.com"));
    request.headers_mut().insert("accept", http::HeaderValue::from_static("application/json"));
    request.extensions_mut().insert(ConnectInfo(address));
    request
}

fn app() -> Router {
    Router::new().route("/users/{id}/orders", get(|| async { "[]" }))
}

fn governor(period_nanos: u64, burst: u32) -> Router {
    let config = GovernorConfigBuilder::default().per_nanosecond(period_nanos).burst_size(burst).finish();
    app().layer(GovernorLayer::new(config.expect("a valid quota")))
}

fn governor_with_headers(period_nanos: u64, burst: u32) -> Router {
    let mut config = GovernorConfigBuilder::default();
    let config = config.per_nanosecond(period_nanos).burst_size(burst).use_headers().finish();
    app().layer(GovernorLayer::new(config.expect("a valid quota")))
}

fn tollgate(limit: &str, style: HeaderStyle) -> Result<Router, Box<dyn Error>> {
    Ok(app().layer(RateLimitLayer::builder().limit(limit).headers(style).build()?))
}

fn rules() -> Result<Router, Box<dyn Error>> {
    let text = "
rules:
  - {id: orders, match: 'GET /users/{id}/orders', key: ip, limit: 100000000/s}
  - {id: login, match: POST /login, key: ip, limit: 5/m}
  - {id: all, key: ip, limit: 100000000/s}
";
    Ok(app().layer(RateLimitLayer::rules(text)?))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [option, name, requests] = &arguments[..]
        && option == "--counted"
    {
        let mut all = contestants()?;
        let each = all.iter_mut().find(|each| each.name == name).ok_or("there is no such service")?;
        count(each, requests.parse()?);
        return Ok(());
    }
    let rounds = if arguments.iter().any(|argument| argument == "--quick") { 21 } else { 301 };
    let mut failed = false;
    for (title, count) in [("one client address", 1), ("10,000 client addresses", 10_000)] {
        failed |= !compare(title, count, rounds)?;
    }
    if failed && arguments.iter().any(|argument| argument == "--strict") {
        return Err("a bound does not hold".into());
    }
    Ok(())
}

fn contestants() -> Result<Vec<Contestant>, Box<dyn Error>> {
    const DAY: u64 = 86_400_000_000_000;
    let open = "100000000/s";
    Ok(vec![
        Contestant::new("bare", app()),
        Contestant::new("tollgate", tollgate(open, HeaderStyle::None)?),
        Contestant::new("tower_governor", governor(1, u32::MAX)),
        Contestant::new("tollgate, headers", tollgate(open, HeaderStyle::Ietf)?),
        Contestant::new("tower_governor, headers", governor_with_headers(1, u32::MAX)),
        Contestant::new("tollgate, two of three rules, headers", rules()?),
        Contestant::new("tollgate, denied", tollgate("1/d", HeaderStyle::Ietf)?).denying(),
        Contestant::new("tower_governor, denied", governor_with_headers(DAY, 1)).denying(),
    ])
}

/// Sends requests of one client. No clock is read: valgrind does not have the one that is used above.
fn count(each: &mut Contestant, requests: usize) {
    let address = SocketAddr::from(([10, 1, 0, 1], 4711));
    let mut service = each.app.as_service::<Body>();
    let mut status = |request| {
        let response = pin!(service.call(request)).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Ok(response)) = response else { panic!("the service answers at once") };
        response.status()
    };
    (0..BATCH).for_each(|_| _ = status(request(address)));
    let prepared: Vec<Request<Body>> = (0..requests).map(|_| request(address)).collect();
    measured(|| {
        for request in prepared {
            assert_eq!(status(request), each.expected);
        }
    });
}

/// What is counted: the one function of this name.
#[inline(never)]
fn measured(send: impl FnOnce()) {
    send();
}

/// Prints a table; returns whether the bounds hold.
fn compare(title: &str, count: usize, rounds: usize) -> Result<bool, Box<dyn Error>> {
    let addresses: Vec<SocketAddr> =
        (0..count).map(|n| SocketAddr::from(([10, 1, (n >> 8) as u8, n as u8], 4711))).collect();
    let mut all = contestants()?;
    for each in &mut all {
        (0..count.max(BATCH)).step_by(BATCH).for_each(|from| _ = each.run(&addresses, from)); // all keys are known
    }
    for round in 0..rounds {
        let turns = all.len();
        for turn in 0..turns {
            let each = &mut all[(round + turn) % turns];
            each.run(&addresses, round * BATCH); // untimed
            let nanos = each.run(&addresses, round * BATCH);
            each.rounds.push(nanos);
        }
    }
    let bare = all[0].median();
    println!(
        "{title}: ns of processor time per request, median of {rounds} rounds; added: more than the bare service"
    );
    println!("{:<40} {:>8} {:>8}", "", "ns", "added");
    for each in &all {
        println!("{:<40} {:>8.0} {:>8.0}", each.name, each.median(), each.median() - bare);
    }
    let mut holds = true;
    let added = |n: usize| all[n].median() - bare;
    for (n, rival) in [(1, Some(2)), (3, Some(4)), (5, None), (6, Some(7))] {
        let verdict = |holds: bool| if holds { "holds" } else { "DOES NOT HOLD" };
        if n < 6 {
            let fits = added(n) <= MAX_ADDED_NANOS;
            println!("{} adds at most {MAX_ADDED_NANOS} ns: {}", all[n].name, verdict(fits));
            holds &= fits;
        }
        if let Some(rival) = rival {
            let faster = added(n) < added(rival);
            let share = added(n) / added(rival);
            println!("{} adds {share:.2} of {}: {}", all[n].name, all[rival].name, verdict(faster));
            holds &= faster;
        }
    }
    println!();
    Ok(holds)
}
