//! Several upstreams: which one gets a request, and what happens when one is down.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_testkit::{Client, Server, eventually, free_port};

use crate::proxy::api::Api;
use crate::proxy::hold::metric;
use crate::proxy::{get, in_front_of};

/// An API that says its number.
fn numbered(number: usize) -> Api {
    Api::start(move |_, stream| {
        stream.write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{number}").as_bytes()).is_ok()
    })
}

fn in_front_of_all(apis: &[Api], rest: &str) -> Server {
    let urls: Vec<_> = apis.iter().map(|api| format!("'{}'", api.url())).collect();
    Server::start(&format!("upstreams: [{}]\n{rest}", urls.join(", ")))
}

/// An address without a listener.
fn closed_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

fn tally(server: &Server, count: usize) -> BTreeMap<String, usize> {
    let mut tally = BTreeMap::new();
    for _ in 0..count {
        *tally.entry(get(server, "/", &[]).text()).or_default() += 1;
    }
    tally
}

#[test]
fn upstreams_are_used_in_turn() {
    let apis = [numbered(0), numbered(1), numbered(2)];
    let server = in_front_of_all(&apis, "");
    assert_eq!(tally(&server, 30).into_values().collect::<Vec<_>>(), [10, 10, 10]);
}

#[test]
fn a_key_sticks_to_its_upstream() {
    let apis = [numbered(0), numbered(1), numbered(2)];
    let server = in_front_of_all(&apis, "proxy: { balance: 'hash:header:x-user' }");
    let send = |user: &str| get(&server, "/", &[("x-user", user)]).text();
    let mut places = BTreeMap::new();
    for n in 0..30 {
        let user = format!("user-{n}");
        let place = send(&user);
        assert!((0..3).all(|_| send(&user) == place));
        *places.entry(place).or_insert(0) += 1;
    }
    assert_eq!(places.len(), 3, "{places:?}");
}

#[test]
fn the_least_busy_upstream_is_chosen() {
    let slow = Api::start(|request, stream| {
        if request.target() == "/stuck" {
            std::io::Read::read(stream, &mut [0; 1]).ok();
            return false;
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\ns").is_ok()
    });
    let apis = [slow, numbered(1)];
    let server = in_front_of_all(&apis, "proxy: { balance: least-connections }");
    let mut stuck = Vec::new();
    while apis[0].received().iter().filter(|request| request.target() == "/stuck").count() == 0 {
        let mut client = Client::to(server.proxy);
        client.write(b"GET /stuck HTTP/1.1\r\nhost: x\r\n\r\n");
        eventually("it arrives", || apis.iter().map(|api| api.received().len()).sum::<usize>() > stuck.len());
        stuck.push(client);
    }
    assert_eq!(tally(&server, 10), BTreeMap::from([("1".to_owned(), 10)]));
}

#[test]
fn an_upstream_that_is_down_fails_no_request() {
    let up = numbered(1);
    let down = format!("http://{}", closed_port());
    let server = Server::start(&format!("upstreams: ['{down}', '{}']\n", up.url()));
    assert_eq!(tally(&server, 20), BTreeMap::from([("1".to_owned(), 20)]));
    let posts = [(); 5].map(|()| Client::to(server.proxy).request("POST", "/", &[], b"x").status);
    assert_eq!(posts, [200; 5], "nothing was sent yet: any request may go to another");
    server.wait_for_log("an upstream is down");
    let is_up = |url: &str, value: u8| {
        let line = format!("tollgate_upstream_up{{upstream=\"{url}\"}} {value}");
        server.admin("GET", "/metrics", "").text().lines().any(|each| each == line)
    };
    eventually("the metric says which one is down", || {
        get(&server, "/", &[]); // it is tried again after a while, and fails again
        is_up(&down, 0) && is_up(&up.url(), 1)
    });
}

#[test]
fn if_all_upstreams_are_down_the_response_is_502() {
    let server =
        Server::start(&format!("upstreams: ['http://{}', 'http://{}']\n", closed_port(), closed_port()));
    // An upstream that cannot be reached receives the next request all the same: there is no other one.
    let is_known_to_be_down = || {
        let page = server.admin("GET", "/metrics", "").text();
        page.lines().filter(|line| line.starts_with("tollgate_upstream_up{") && line.ends_with(" 0")).count()
            == 2
    };
    for n in 0..5 {
        assert_eq!(is_known_to_be_down(), n > 0);
        let answer = get(&server, "/", &[]);
        assert_eq!((answer.status, answer.header("content-type")), (502, Some("application/problem+json")));
        assert_eq!(answer.json()["detail"], "the API server cannot be reached: connection refused");
    }
    let page = get(&server, "/", &[("accept", "text/html")]);
    assert_eq!((page.status, page.header("content-type")), (502, Some("text/html; charset=utf-8")));
}

#[test]
fn a_request_that_may_have_been_executed_is_not_retried() {
    let breaks = || Api::start(|_, _| false);
    let apis = [breaks(), breaks()];
    let server = in_front_of_all(&apis, "");
    let answer = Client::to(server.proxy).request("POST", "/pay", &[], b"100");
    assert_eq!(
        (answer.status, answer.json()["detail"].as_str()),
        (502, Some("the API server closed the connection before it answered"))
    );
    let arrived = || apis.iter().map(|api| api.received().len()).sum::<usize>();
    assert_eq!(arrived(), 1);
    assert_eq!(get(&server, "/", &[]).status, 502);
    assert_eq!(arrived(), 3, "what only reads is tried on the other one, once");
}

#[test]
fn a_request_on_a_closed_idle_connection_is_retried() {
    // The upstream closes idle connections; the next request must not suffer from it.
    let api = Api::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").ok();
        false
    });
    let server = in_front_of(&api, "");
    for _ in 0..50 {
        assert_eq!(get(&server, "/", &[]).status, 200);
    }
}

#[test]
fn an_api_that_does_not_answer_is_504() {
    let api = Api::start(|_, stream| {
        std::io::Read::read(stream, &mut [0; 1]).ok();
        false
    });
    let server = in_front_of(&api, "proxy: { response_timeout: 200ms }");
    let start = Instant::now();
    let answer = get(&server, "/", &[]);
    assert_eq!(
        (answer.status, answer.json()["detail"].as_str()),
        (504, Some("the API server did not answer in time"))
    );
    assert!(start.elapsed().as_millis() >= 200);
}

#[test]
fn an_api_that_accepts_no_connection_times_out_soon() {
    // It accepts connections and never starts a TLS handshake.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = Server::start(&format!(
        "upstreams: ['https://{address}']\nproxy: {{ connect_timeout: 200ms, response_timeout: 1h }}\n"
    ));
    let answer = get(&server, "/", &[]);
    assert_eq!(
        (answer.status, answer.json()["detail"].as_str()),
        (502, Some("the API server cannot be reached: connecting took too long"))
    );
}

#[test]
fn the_cause_of_a_failure_is_in_the_response_the_log_and_health() {
    let check = |upstream: &str, settings: &str, detail: &str, cause: &str| {
        let server = Server::start(&format!("upstreams: ['{upstream}']\nproxy: {{ {settings} }}\n"));
        let health = |server: &Server| server.admin("GET", "/healthz", "").json();
        assert_eq!(health(&server)["status"], "ok", "{upstream}");
        let answer = get(&server, "/", &[]);
        let expected = format!("the API server cannot be reached: {detail}");
        assert_eq!((answer.status, answer.json()["detail"].as_str()), (502, Some(expected.as_str())));
        let report = health(&server);
        let trouble = report["upstreams"][0]["trouble"].as_str().unwrap_or_default();
        assert!(report["status"] == "impaired" && trouble.contains(cause), "{report}");
        server.wait_for_log(cause);
    };
    let refused = closed_port();
    check(&format!("http://{refused}"), "", "connection refused", "Connection refused");
    check("http://nowhere.invalid", "", "its name cannot be resolved", "its name cannot be resolved");
    let plain = numbered(0);
    let tls = plain.url().replace("http://", "https://");
    check(&tls, "", "the TLS handshake failed", "the TLS handshake failed");
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address");
    let settings = "connect_timeout: 200ms";
    check(&format!("https://{address}"), settings, "connecting took too long", "within 200ms");
}

#[test]
fn health_is_ok_again_once_an_upstream_answers() {
    let up = numbered(0);
    let down = format!("http://{}", closed_port());
    let server = Server::start(&format!("upstreams: ['{down}', '{}']\n", up.url()));
    let health = || server.admin("GET", "/healthz", "").json();
    for _ in 0..4 {
        assert_eq!(get(&server, "/", &[]).status, 200);
    }
    let report = health();
    assert_eq!((&report["status"], &report["upstreams"][0]["up"]), (&"ok".into(), &false.into()), "{report}");
    assert_eq!(report["upstreams"][1]["up"], true, "{report}");
}

#[test]
fn a_response_that_stops_in_the_middle_is_cut_off() {
    let api = Api::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf").ok();
        std::io::Read::read(stream, &mut [0; 1]).ok();
        false
    });
    let server = in_front_of(&api, "proxy: { idle_timeout: 200ms }");
    let mut client = Client::to(server.proxy);
    client.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert_eq!(client.head().status, 200);
    assert_eq!(client.read(4), b"half");
    assert!(client.try_answer().is_none(), "the client sees that it is not whole");
}

#[test]
fn a_health_check_takes_an_upstream_out_and_back_in() {
    let sick = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let well = numbered(1);
    let is_sick = std::sync::Arc::clone(&sick);
    let other = Api::start(move |request, stream| {
        let failing = request.target() == "/healthz" && is_sick.load(std::sync::atomic::Ordering::SeqCst);
        let status = if failing { "503 Out" } else { "200 OK" };
        stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 1\r\n\r\n0").as_bytes()).is_ok()
    });
    let apis = [other, well];
    let server = in_front_of_all(&apis, "proxy: { health: { path: /healthz, every: 50ms } }");
    server.wait_for_log("an upstream fails its health check");
    assert_eq!(tally(&server, 10), BTreeMap::from([("1".to_owned(), 10)]));
    sick.store(false, std::sync::atomic::Ordering::SeqCst);
    server.wait_for_log("an upstream passes its health check again");
    assert_eq!(tally(&server, 10).len(), 2);
}

#[test]
fn an_upload_that_is_not_read_does_not_block_others() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            // The head is read, the body is not, and the connection stays open.
            std::thread::spawn(move || {
                while std::io::Read::read(&mut stream, &mut [0; 4096]).is_ok_and(|count| count > 0) {
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").ok();
                }
            });
        }
    });
    let server = Server::start(&format!("upstreams: ['http://{address}']\n"));
    let mut stuck = Vec::new();
    for _ in 0..5 {
        let mut client = Client::to(server.proxy);
        client.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n");
        assert_eq!(client.head().status, 200);
        stuck.push(client);
        let start = Instant::now();
        assert_eq!(get(&server, "/", &[]).status, 200);
        assert!(start.elapsed().as_secs() < 10);
    }
}

/// Time-outs were dated back to the arrival of their requests, so that the rest was over before it began.
#[test]
fn an_upstream_that_times_out_three_times_is_marked_down() {
    let silent = Api::start(|_, _| {
        thread::sleep(Duration::from_secs(60));
        false
    });
    let apis = [silent, numbered(1)];
    // Longer than the rest.
    let server = in_front_of_all(&apis, "proxy: { response_timeout: 11s }");
    let send = || Client::patient(server.proxy, Duration::from_secs(90)).request("GET", "/", &[], b"").status;
    let mut statuses = thread::scope(|scope| {
        let clients: Vec<_> = (0..6).map(|_| scope.spawn(send)).collect();
        clients.into_iter().map(|clients| clients.join().expect("an answer")).collect::<Vec<_>>()
    });
    statuses.sort();
    assert_eq!(statuses, [200, 200, 200, 504, 504, 504]);
    assert_eq!(tally(&server, 4), BTreeMap::from([("1".to_owned(), 4)]));
}

/// Idle time was counted from the arrival of the request before.
#[test]
fn a_connection_is_idle_from_the_end_of_its_last_response() {
    let api = Api::start(|request, stream| {
        if request.target() == "/slow" {
            thread::sleep(Duration::from_secs(4));
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_ok()
    });
    let server = in_front_of(&api, "proxy: { keep_alive: 4s }");
    let mut client = Client::to(server.proxy);
    for path in ["/slow", "/"] {
        assert_eq!(client.request("GET", path, &[], b"").status, 200);
    }
    assert_eq!(api.connections(), 1);
}

/// During an upload, an upstream that read nothing of it did not time out.
#[test]
fn an_upstream_that_does_not_read_the_body_times_out() {
    let deaf = TcpListener::bind("127.0.0.1:0").expect("a port");
    let config = "proxy: { response_timeout: 500ms, idle_timeout: 3s }";
    let address = deaf.local_addr().expect("an address");
    let server = Server::start(&format!("upstreams: ['http://{address}']\n{config}"));
    let mut client = Client::to(server.proxy);
    let sending = thread::spawn(move || {
        client
            .write(format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", 64 << 20).as_bytes());
        client.write(&vec![b'x'; 64 << 20]);
    });
    eventually("the request has timed out", || metric(&server, "tollgate_proxy_timeouts_total") == 1);
    sending.join().expect("the connection is closed");
}

#[test]
fn the_time_until_the_head_of_a_response_is_in_a_histogram() {
    const DELAY: Duration = Duration::from_millis(30);
    let api = Api::start(|_, stream| {
        thread::sleep(DELAY);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_ok()
    });
    let server = in_front_of(&api, "");
    for _ in 0..3 {
        assert_eq!(get(&server, "/", &[]).status, 200);
    }
    let page = server.admin("GET", "/metrics", "").text();
    let value = |name: &str| {
        let start = format!("tollgate_upstream_response_seconds{name} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&start)?.parse::<f64>().ok());
        value.unwrap_or_else(|| panic!("no {start} in {page}"))
    };
    let bucket = |bound: &str| value(&format!("_bucket{{le=\"{bound}\"}}"));
    assert_eq!([bucket("0.000001"), bucket("0.025")], [0.0; 2], "no response is faster than the API");
    assert_eq!([bucket("+Inf"), value("_count")], [3.0; 2]);
    assert!(value("_sum") >= 3.0 * DELAY.as_secs_f64(), "{page}");
    let first = page.lines().find(|line| line.starts_with("tollgate_upstream_response_seconds_bucket"));
    assert!(first.is_some_and(|line| line.contains("le=\"0.000001\"")), "{page}");
}
