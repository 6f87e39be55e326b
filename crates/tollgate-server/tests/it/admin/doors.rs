//! Which callers the decision API serves, and what the admin API shows to callers without a token.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tollgate_testkit::{Client, Folder, Server, tollgate};

const APP: &str = "application-0123456789";
const READER: &str = "reader-0123456789";
const RULES: &str = "rules: [{ id: a, key: user, limit: 5/y }]\n";
const ANN: &[u8] = b"{\"user\":\"ann\"}";

fn check(at: SocketAddr, headers: &[(&str, &str)]) -> u16 {
    Client::to(at).request("POST", "/v1/check", headers, ANN).status
}

/// A loopback address at which a listener on all addresses is reached.
fn local(address: SocketAddr) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], address.port()))
}

#[test]
fn on_loopback_decisions_are_for_local_hosts_and_the_own_origin() {
    let server = Server::start(RULES);
    let own = server.http.to_string();
    let own_origin = format!("http://{own}");
    for headers in [
        &[("host", "evil.example")][..],
        &[("host", "127.0.0.1.evil.example")],
        &[("origin", "http://evil.example")],
        &[("origin", "null")],
        &[("origin", "http://\u{e4}.example")],
        &[("origin", &own_origin), ("origin", "http://evil.example")],
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site")],
    ] {
        assert_eq!(check(server.http, headers), 403, "{headers:?}");
    }
    assert_eq!(check(server.http, &[("host", &own), ("host", "evil.example")]), 400);
    assert_eq!(server.used("a", "user:ann"), [0], "nothing was charged");
    for headers in [
        &[("host", own.as_str())][..],
        &[("host", "localhost")],
        &[("host", own.as_str()), ("origin", &own_origin), ("sec-fetch-site", "same-origin")],
        &[("sec-fetch-site", "none")],
    ] {
        assert_eq!(check(server.http, headers), 200, "{headers:?}");
    }
}

/// Callers of envoyproxy/ratelimit's path have other names for this machine; pages of other sites are refused.
#[test]
fn on_loopback_json_is_for_programs_with_any_host_and_for_no_page_of_another_site() {
    let server = Server::start(RULES);
    let own = format!("http://{}", server.http);
    let body = json!({ "domain": "a", "descriptors": [{ "entries": [{ "key": "user", "value": "ann" }] }] });
    let send = |method: &str, headers: &[(&str, &str)]| {
        Client::to(server.http).request(method, "/json", headers, body.to_string().as_bytes()).status
    };
    for headers in [
        &[("origin", "https://evil.example"), ("content-type", "text/plain")][..],
        &[("origin", "null")],
        &[("host", "evil.example"), ("origin", "http://evil.example")],
        &[("host", "evil.example"), ("sec-fetch-site", "same-origin")],
        &[("sec-fetch-site", "cross-site")],
    ] {
        assert_eq!(send("POST", headers), 403, "{headers:?}");
    }
    assert_eq!(send("POST", &[("host", "ratelimit"), ("host", "ratelimit")]), 400);
    assert_eq!(send("GET", &[("host", "ratelimit")]), 405);
    assert_eq!(server.used("a", "user:ann"), [0], "nothing was charged");
    for headers in [&[("host", "ratelimit:8080")][..], &[], &[("origin", own.as_str())]] {
        assert_eq!(send("POST", headers), 200, "{headers:?}");
    }
    assert_eq!(check(server.http, &[("host", "ratelimit:8080")]), 403, "/v1/check is not exempt");
}

#[test]
fn beyond_loopback_decisions_take_tokens_of_the_role_check_once_one_exists() {
    let folder = Folder::new();
    let listen = "listen: { http: 0.0.0.0:0, admin: 127.0.0.1:0 }\ntokens_file: tokens\n";
    let config = folder.write("open.yaml", format!("{listen}{RULES}"));
    folder.write("tokens", format!("read {READER}\n"));
    let open = Server::start_at(&folder, &config);
    open.wait_for_log("http can be reached from outside and requires no token");
    assert_eq!(check(local(open.http), &[("host", "limits.internal")]), 200, "as before");
    assert_eq!(open.stop().0.code(), Some(0));

    folder.write("tokens", format!("read {READER}\ncheck {APP} shop\n"));
    let closed = Server::start_at(&folder, &config);
    assert!(!closed.log().contains("requires no token"), "{}", closed.log());
    let with = |token: &str| check(local(closed.http), &[("authorization", &format!("Bearer {token}"))]);
    assert_eq!(check(local(closed.http), &[]), 401);
    assert_eq!((with("wrong-0123456789"), with(READER), with(APP)), (401, 403, 200));
    let admin = Client::to(closed.admin).request(
        "GET",
        "/v1/rules",
        &[("authorization", &format!("Bearer {APP}"))],
        b"",
    );
    assert_eq!(admin.status, 403, "a token for decisions reads nothing: {admin}");
    let http = format!("http://{}", local(closed.http));
    let run = |token: &str| {
        tollgate_testkit::run(
            tollgate_testkit::binary()
                .env("TOLLGATE_TOKEN", token)
                .args(["check", "--user", "ann", "--http", &http]),
        )
        .code
    };
    assert_eq!((run(APP), run(READER)), (Some(0), Some(5)));
    closed.wait_for_log("decision call refused");
    for secret in [APP, READER, "wrong-0123456789"] {
        assert!(!closed.log().contains(secret), "{}", closed.log());
    }
}

#[test]
fn once_a_check_token_exists_loopback_needs_it_too() {
    let folder = Folder::new();
    folder.write("tokens", format!("check {APP}\n"));
    folder.configure(&format!("tokens_file: tokens\n{RULES}"));
    let server = Server::start_in(&folder);
    assert_eq!(check(server.http, &[]), 401);
    assert_eq!(check(server.http, &[("authorization", &format!("Bearer {APP}"))]), 200);
    server.wait_for_log("no token has a role for the admin API");
}

#[test]
fn health_names_no_servers_to_callers_without_a_token() {
    let folder = Folder::new();
    folder.write("tokens", format!("read {READER}\n"));
    let elsewhere =
        "counters: redis://127.0.0.1:1\nrules_db: postgres://127.0.0.1:2/limits\non_rules_error: open\n";
    folder.configure(&format!("tokens_file: tokens\n{elsewhere}{RULES}"));
    let server = Server::start_in(&folder);
    let bearer = format!("Bearer {READER}");
    for page in ["/healthz", "/readyz"] {
        let stranger = Client::to(server.admin).request("GET", page, &[], b"");
        assert_eq!(stranger.status, 200, "{page}");
        assert!(!stranger.text().contains("127.0.0.1"), "{page}: {stranger}");
    }
    let health: Value = Client::to(server.admin).request("GET", "/healthz", &[], b"").json();
    assert!(health["status"].is_string() && health["protection"].is_string(), "{health}");
    let reply =
        Client::to(server.admin).request("GET", "/healthz", &[("authorization", &bearer)], b"").text();
    assert!(reply.contains("127.0.0.1:1") && reply.contains("127.0.0.1:2"), "{reply}");
}

#[test]
fn refused_callers_cannot_fill_the_log() {
    let server = Server::start(RULES);
    let mut client = Client::to(server.admin);
    for _ in 0..500 {
        assert_eq!(client.request("GET", "/v1/bans", &[("host", "evil.example")], b"").status, 403);
    }
    server.wait_for_log("refused calls: more of these are counted");
    let lines = server.log().matches("admin call refused").count();
    assert!((1..=180).contains(&lines), "{lines} lines for 500 calls");
}

#[test]
fn admin_responses_forbid_content_sniffing() {
    let server = Server::start(RULES);
    for (path, headers) in [
        ("/healthz", None),
        ("/v1/bans", None),
        ("/nothing", None),
        ("/v1/bans", Some(("host", "evil.example"))),
    ] {
        let answer = Client::to(server.admin).request("GET", path, headers.as_slice(), b"");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
    }
    let admin = server.admin;
    let status = |headers: &[(&str, &str)]| Client::to(admin).request("GET", "/v1/bans", headers, b"").status;
    assert_eq!(status(&[("host", "localhost"), ("host", "localhost")]), 400);
    assert_eq!(status(&[("origin", "http://\u{e4}.example")]), 403);
    assert_eq!(status(&[("sec-fetch-site", "cross-site")]), 403);
    assert_eq!(status(&[("sec-fetch-site", "same-origin")]), 200);
}

#[test]
fn a_secret_in_an_upstream_address_is_never_shown() {
    let folder = Folder::new();
    for upstream in ["http://user:s3cret@api:3000", "http://api/?token=s3cret", "user:s3cret@api"] {
        let config = folder.configure(&format!("upstreams: {}\n", json!([upstream])));
        let path = config.to_str().expect("a plain path");
        for command in [&["serve", "-c", path][..], &["proxy", "--to", upstream, "--limit", "5/s"]] {
            let ran = tollgate(command);
            assert!(matches!(ran.code, Some(2 | 3)), "{ran:?}");
            assert!(ran.stderr.contains("api") && !format!("{ran:?}").contains("s3cret"), "{ran:?}");
        }
    }
}
