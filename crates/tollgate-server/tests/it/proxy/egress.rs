//! `tollgate egress`: a gateway to one API.

mod rates;

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tollgate_testkit::servers::nginx::Nginx;
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::{Answer, Client, Folder, Server, binary, eventually, free_port, run, tollgate};

use crate::callers::build_rust;
use crate::proxy::api::Api;
use crate::proxy::protocols::certificate;
use crate::proxy::{get, in_front_of};

fn egress(to: &str, args: &[&str]) -> Server {
    let mut command = binary();
    command.args(["egress", "--to", to, "--listen", "127.0.0.1:0"]).args(args);
    Server::run(&Folder::new(), &mut command)
}

#[test]
fn calls_wait_for_their_turn_and_are_denied_after_the_maximum_wait() {
    let api = Api::echo();
    let gateway = egress(&api.url(), &["--limit", "2/s", "--max-wait", "3s"]);
    let started = Instant::now();
    let statuses = [(); 3].map(|()| get(&gateway, "/", &[]).status);
    assert_eq!(statuses, [200; 3]);
    assert!(started.elapsed() >= Duration::from_secs(1), "the third waits: {:?}", started.elapsed());
    let gateway = egress(&api.url(), &["--limit", "2/m", "--max-wait", "3s"]);
    let answers = [(); 3].map(|()| get(&gateway, "/", &[]));
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 200, 429]);
    let wait: u64 = answers[2].header("retry-after").and_then(|wait| wait.parse().ok()).expect("Retry-After");
    assert!((50..=62).contains(&wait), "{wait}");
    assert_eq!(answers[2].header("content-type"), Some("application/problem+json"));
    assert_eq!(api.received().len(), 5, "a denied call is not sent");
}

#[test]
fn each_value_of_the_key_has_its_own_limit() {
    let api = Api::echo();
    let gateway = egress(&api.url(), &["--limit", "1/h", "--key", "header:x-api-key", "--max-wait", "0s"]);
    let send = |key| get(&gateway, "/", &[("x-api-key", key)]).status;
    assert_eq!([send("a"), send("b"), send("a")], [200, 200, 429]);
}

#[test]
fn requests_go_below_the_path_of_the_url_and_to_no_other_listener() {
    let api = Api::echo();
    let gateway = egress(&format!("{}/base/v1/", api.url()), &["--limit", "100/s"]);
    assert_eq!(get(&gateway, "/a?b=c", &[]).status, 200);
    assert_eq!(api.last().line, "GET /base/v1/a?b=c HTTP/1.1");
    assert_eq!(get(&gateway, "/../admin", &[]).status, 400);
    assert_eq!(get(&gateway, "/%2e%2e/admin", &[]).status, 400);
    assert_eq!(api.received().len(), 1);
    let (ended, log) = gateway.stop();
    assert!(ended.success());
    let listeners = log.lines().filter(|line| line.contains(" listens on ")).count();
    assert_eq!(listeners, 1, "{log}");
}

#[test]
fn the_api_gets_the_request_as_it_was_sent_and_its_own_host() {
    let api = Api::echo();
    let gateway = egress(&api.url(), &["--limit", "100/s"]);
    let sent =
        [("x-real-ip", "203.0.113.9"), ("x-http-method-override", "PATCH"), ("authorization", "Bearer s")];
    let answer = Client::to(gateway.proxy).request("POST", "/a?b=c", &sent, b"body");
    assert_eq!((answer.status, answer.text().as_str()), (200, "body"));
    let received = api.last();
    assert_eq!(received.line, "POST /a?b=c HTTP/1.1");
    assert_eq!(received.header("host"), Some(api.address.to_string().as_str()));
    for (name, value) in sent {
        assert_eq!(received.header(name), Some(value));
    }
    for name in ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "via"] {
        assert_eq!(received.header(name), None, "the API is not told who calls");
    }
    assert_eq!(answer.header("ratelimit"), None, "a header of the API is never invented");
}

/// Sends a head as it is, and returns the answer.
fn raw(gateway: &Server, head: &str) -> Answer {
    let mut client = Client::to(gateway.proxy);
    client.write(head.as_bytes());
    client.answer()
}

#[test]
fn no_request_reaches_another_host() {
    let api = Api::echo();
    let other = Api::echo();
    let gateway = egress(&api.url(), &["--limit", "100/s"]);
    let own = gateway.proxy;
    let elsewhere = other.address;
    for (head, status) in [
        (format!("GET http://{elsewhere}/ HTTP/1.1\r\nhost: {elsewhere}\r\n\r\n"), 421),
        (format!("GET http://{elsewhere}/ HTTP/1.1\r\nhost: {own}\r\n\r\n"), 421),
        (format!("GET http://user@{elsewhere}/ HTTP/1.1\r\nhost: {own}\r\n\r\n"), 421),
        (format!("GET http://{}/ HTTP/1.1\r\nhost: {own}\r\n\r\n", api.address), 200),
        (format!("CONNECT {elsewhere} HTTP/1.1\r\nhost: {elsewhere}\r\n\r\n"), 501),
        (format!("GET / HTTP/1.1\r\nhost: {elsewhere}\r\n\r\n"), 200),
        ("GET / HTTP/1.1\r\nhost: evil.example.com\r\n\r\n".to_owned(), 403),
        (format!("GET / HTTP/1.1\r\nhost: {own}\r\norigin: https://evil.example.com\r\n\r\n"), 403),
        (format!("GET / HTTP/1.1\r\nhost: {own}\r\nsec-fetch-site: cross-site\r\n\r\n"), 403),
    ] {
        let answer = raw(&gateway, &head);
        assert_eq!(answer.status, status, "{head}: {answer}");
    }
    assert_eq!(other.connections(), 0);
    assert!(api.received().iter().all(|sent| sent.header("host") == Some(&api.address.to_string())));
}

#[test]
fn a_redirect_within_the_api_stays_with_the_gateway_and_is_not_followed() {
    let api = Api::start(|request, stream| {
        let host = request.header("host").unwrap_or_default();
        let location = match request.target() {
            "/inside" => format!("http://{host}/new?a=b"),
            _ => "http://other.example.com/".to_owned(),
        };
        let head = format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(head.as_bytes()).is_ok()
    });
    let gateway = egress(&api.url(), &["--limit", "100/s"]);
    let location = |path| get(&gateway, path, &[]).header("location").map(str::to_owned);
    assert_eq!(location("/inside").as_deref(), Some("/new?a=b"));
    assert_eq!(location("/outside").as_deref(), Some("http://other.example.com/"));
    assert_eq!(api.received().len(), 2);
}

#[test]
fn a_refusal_of_the_api_is_passed_on_and_stops_further_calls() {
    let api =
        Api::saying("HTTP/1.1 429 Too Many Requests\r\nretry-after: 30\r\ncontent-length: 3\r\n\r\napi");
    let gateway = egress(&api.url(), &["--max-wait", "5s"]);
    let first = get(&gateway, "/", &[]);
    assert_eq!((first.status, first.text().as_str()), (429, "api"));
    let second = get(&gateway, "/", &[]);
    assert_eq!(second.status, 429);
    assert!(second.text().contains("gateway"), "{second}");
    assert!(matches!(second.header("retry-after"), Some("29" | "30")), "{second}");
    assert_eq!(api.received().len(), 1);
}

#[test]
fn a_caller_that_disconnects_while_it_waits_leaves_no_trace() {
    let api = Api::echo();
    let gateway = egress(&api.url(), &["--limit", "1/s"]);
    assert_eq!(get(&gateway, "/first", &[]).status, 200);
    for body in ["", "body"] {
        let mut gone = Client::to(gateway.proxy);
        let length = body.len();
        gone.write(
            format!(
                "POST /gone HTTP/1.1\r\nhost: {}\r\ncontent-length: {length}\r\n\r\n{body}",
                gateway.proxy
            )
            .as_bytes(),
        );
        drop(gone);
    }
    let started = Instant::now();
    assert_eq!(get(&gateway, "/last", &[]).status, 200);
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    let targets: Vec<_> = api.received().iter().map(|request| request.target().to_owned()).collect();
    assert_eq!(targets, ["/first", "/last"]);
}

#[test]
fn the_api_is_called_over_tls_and_a_failure_names_the_cause() {
    let folder = Folder::new();
    certificate(&folder, "api");
    let port = free_port();
    let path = |name: &str| folder.path(name).display().to_string();
    let http = format!(
        "server {{ listen 127.0.0.1:{port} ssl http2; ssl_certificate {}; ssl_certificate_key {};
          location / {{ add_header x-host $http_host; return 200 hello; }} }}",
        path("api.pem"),
        path("api.key")
    );
    let Some(_nginx) = Nginx::start("egress over TLS", &folder, &http, &[port]) else { return };
    let to = format!("https://localhost:{port}");
    let trusted = egress(&to, &["--limit", "100/s", "--ca", &path("api.pem")]);
    let answer = get(&trusted, "/", &[]);
    assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
    let untrusted = egress(&to, &["--limit", "100/s"]);
    let answer = get(&untrusted, "/", &[]);
    assert_eq!(answer.status, 502);
    assert!(answer.text().contains("certificate"), "{answer}");
    untrusted.wait_for_log("invalid peer certificate");
    let nowhere = egress("http://127.0.0.1:1", &["--limit", "100/s"]);
    let answer = get(&nowhere, "/", &[]);
    assert_eq!(answer.status, 502);
    assert!(answer.text().contains("refused"), "{answer}");
}

#[test]
fn a_call_that_cannot_be_sent_is_not_counted() {
    let gateway = egress("http://127.0.0.1:1", &["--limit", "1/h", "--max-wait", "0s"]);
    let statuses = [(); 5].map(|()| get(&gateway, "/", &[]).status);
    assert_eq!(statuses, [502; 5]);
}

#[test]
fn a_stop_lets_calls_in_flight_end() {
    let api = Api::start(|_, stream| {
        thread::sleep(Duration::from_millis(500));
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_ok()
    });
    let gateway = egress(&api.url(), &["--limit", "100/s"]);
    let address = gateway.proxy;
    let caller = thread::spawn(move || Client::to(address).request("GET", "/", &[], b"").status);
    eventually("the call is in flight", || !api.received().is_empty());
    let (ended, log) = gateway.stop();
    assert!(ended.success(), "{log}");
    assert_eq!(caller.join().expect("the caller has an answer"), 200);
}

/// On a busy machine an answer may take longer than the default, and the gateway would count for itself.
const PATIENT: [&str; 2] = ["--store-deadline", "20s"];

#[test]
fn gateways_share_a_limit_through_redis() {
    let Some(redis) = Redis::start(Make::Redis, "egress with a store") else { return };
    let api = Api::echo();
    let url = redis.url();
    let args = [&["--limit", "3/h", "--max-wait", "0s", "--store", &url][..], &PATIENT].concat();
    let gateways = [egress(&api.url(), &args), egress(&api.url(), &args)];
    let statuses: Vec<_> = (0..6).map(|n| get(&gateways[n % 2], "/", &[]).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429]);
}

/// A regression: the calls to all APIs were counted together.
#[test]
fn gateways_to_different_apis_share_a_redis_and_no_limit() {
    let Some(redis) = Redis::start(Make::Redis, "egress to several APIs") else { return };
    let apis = [Api::echo(), Api::echo()];
    let url = redis.url();
    for key in [&[][..], &["--key", "header:x-api-key"]] {
        let gateways = apis.each_ref().map(|api| {
            let args = ["--limit", "2/h", "--max-wait", "0s", "--store", &url];
            egress(&api.url(), &[&args[..], &PATIENT, key].concat())
        });
        for gateway in &gateways {
            let statuses = [(); 3].map(|()| get(gateway, "/", &[("x-api-key", "k")]).status);
            assert_eq!(statuses, [200, 200, 429]);
        }
        let path = format!("{}/v1", apis[0].url());
        let args = ["--limit", "2/h", "--max-wait", "0s", "--store", &url];
        let other = egress(&path, &[&args[..], &PATIENT, key].concat());
        assert_eq!(get(&other, "/", &[("x-api-key", "k")]).status, 429, "another path of the same API");
    }
}

/// Redis is killed, or accepts and stays silent.
#[test]
fn while_redis_does_not_answer_each_gateway_counts_for_itself() {
    for signal in ["KILL", "STOP"] {
        let Some(mut redis) = Redis::start(Make::Redis, "egress with a store that fails") else { return };
        let api = Api::echo();
        let url = redis.url();
        let args = ["--limit", "3/h", "--max-wait", "0s", "--store", &url];
        let gateways = [egress(&api.url(), &args), egress(&api.url(), &args)];
        // By a third one: if its answer is late, it counts for itself, and the others have counted nothing yet.
        assert_eq!(get(&egress(&api.url(), &args), "/", &[]).status, 200);
        match signal {
            "KILL" => redis.process.kill(),
            _ => redis.process.signal(signal),
        }
        for gateway in &gateways {
            let statuses = [(); 5].map(|()| get(gateway, "/", &[]).status);
            assert_eq!(statuses, [200, 200, 200, 429, 429], "SIG{signal}: limited, and neither stopped");
        }
        match signal {
            "KILL" => redis.restart(&[]),
            _ => redis.process.signal("CONT"),
        }
        let used = || redis.command(&["KEYS", "*"]).contains("budget");
        eventually("the limit is shared again", || {
            gateways.iter().for_each(|gateway| _ = get(gateway, "/", &[]));
            used()
        });
    }
}

#[test]
fn a_gateway_starts_without_its_store_and_counts_for_itself() {
    let api = Api::echo();
    let url = format!("redis://127.0.0.1:{}", free_port());
    let gateway = egress(&api.url(), &["--limit", "2/h", "--max-wait", "0s", "--store", &url]);
    assert_eq!([(); 3].map(|()| get(&gateway, "/", &[]).status), [200, 200, 429]);
}

#[test]
fn the_example_with_reqwest_stays_under_a_limit_that_it_learns_or_is_given() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/reqwest/main.rs");
    let program = build_rust("reqwest", &source);
    for limit in [None, Some("5/s")] {
        let api = Api::echo();
        let server = in_front_of(&api, "rules: [{ id: api, limit: 5/s, algorithm: sliding-log }]");
        let mut command = Command::new(&program);
        command.arg(format!("http://{}/", server.proxy)).arg("12").args(limit);
        let ran = run(&mut command);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let served = ran.stdout.lines().filter(|line| line.contains(" 200 after ")).count();
        assert_eq!((served, api.received().len()), (12, 12), "{}", ran.stdout);
    }
}

#[test]
fn bad_arguments_are_explained() {
    let to = "https://api.example.com";
    for (args, words) in [
        (vec!["--to", "api.example.com"], "https://HOST"),
        (vec!["--to", "https://api.example.com/v1?key=secret"], "has a query"),
        (vec!["--to", "https://api.example.com/../v1"], "not valid"),
        (vec!["--to", to, "--limit", "5/fortnight"], "--limit: unknown unit 'fortnight'"),
        (vec!["--to", to, "--limit", "5/s", "--algorithm", "magic"], "magic"),
        (vec!["--to", to, "--limit", "5/s", "--key", "ip"], "header:NAME"),
        (vec!["--to", to, "--limit", "5/s", "--listen", "0.0.0.0:8001"], "--allow-remote"),
        (vec!["--to", to, "--limit", "5/s", "--store", "mysql://h"], "unknown store 'mysql'"),
        (vec!["--to", to, "--limit", "5/s", "--ca", "missing.pem"], "missing.pem"),
        (vec!["--to", to, "--burst", "5"], "--limit"),
        (vec!["--to", to, "--limit", "5/s", "--store-deadline", "1s"], "--store"),
        (vec!["--limit", "5/s"], "--to"),
    ] {
        let ran = tollgate(&[&["egress"][..], &args].concat());
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn an_address_that_others_can_reach_is_warned_about() {
    let api = Api::echo();
    let mut command = binary();
    let to = api.url();
    command.args(["egress", "--to", &to, "--limit", "9/s", "--listen", "0.0.0.0:0", "--allow-remote"]);
    let gateway = Server::run(&Folder::new(), &mut command);
    gateway.wait_for_log("other machines can call");
    let local = std::net::SocketAddr::from(([127, 0, 0, 1], gateway.proxy.port()));
    let answer = Client::to(local).request("GET", "/", &[("host", "gateway.internal:8001")], b"");
    assert_eq!(answer.status, 200);
}
