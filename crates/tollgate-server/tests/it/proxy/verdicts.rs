//! Verdicts on the wire: refusals, headers, and the API's own headers beside ours.

use serde_json::json;
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::{Client, eventually};

use crate::proxy::api::Api;
use crate::proxy::{get, in_front_of};

const ONE: &str = "rules: [{ id: one, limit: 1/h }]\n";

#[test]
fn a_denial_is_429_with_its_headers_and_a_problem() {
    let api = Api::echo();
    let server = in_front_of(&api, ONE);
    let allowed = get(&server, "/", &[]);
    assert_eq!((allowed.status, allowed.header("ratelimit-policy")), (200, Some("\"one\";q=1;w=3600")));
    assert_eq!(allowed.header("ratelimit"), Some("\"one\";r=0;t=3600"));
    assert_eq!(allowed.header("retry-after"), None);
    let denied = get(&server, "/", &[]);
    assert_eq!((denied.status, denied.header("content-type")), (429, Some("application/problem+json")));
    assert_eq!(denied.header("cache-control"), Some("no-store"));
    let wait: u64 = denied.header("retry-after").and_then(|wait| wait.parse().ok()).expect("a wait");
    assert!((3590..=3600).contains(&wait), "{wait}");
    assert!(denied.header("ratelimit").is_some_and(|limit| limit.starts_with("\"one\";r=0;t=")));
    let body = denied.json();
    assert_eq!(body["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!((&body["status"], &body["violated-policies"]), (&json!(429), &json!(["one"])));
    assert_eq!(api.received().len(), 1, "the API sees what is allowed and nothing else");
}

#[test]
fn browsers_get_a_page() {
    let api = Api::echo();
    let server = in_front_of(&api, ONE);
    get(&server, "/", &[]);
    let denied = get(&server, "/", &[("accept", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8")]);
    assert_eq!((denied.status, denied.header("content-type")), (429, Some("text/html; charset=utf-8")));
    assert!(denied.text().contains("<p>Too many requests: rule one allows 1/h"), "{denied}");
    assert!(denied.header("retry-after").is_some());
}

#[test]
fn a_ban_is_403() {
    let api = Api::echo();
    let server = in_front_of(&api, "bans: [{ key: 'ip:127.0.0.1', reason: scraping }]");
    let banned = get(&server, "/", &[]);
    assert_eq!((banned.status, banned.header("content-type")), (403, Some("application/problem+json")));
    assert_eq!(banned.json()["detail"], "Banned until further notice: scraping");
    assert!(api.received().is_empty());
}

#[test]
fn without_its_store_a_closed_rule_is_503_and_an_open_one_lets_pass() {
    let Some(mut redis) = Redis::start(Make::Redis, "a proxy without its store") else { return };
    let api = Api::echo();
    let rules = "rules:
  - { id: closed, match: /closed, limit: 100/h, on_store_error: closed }
  - { id: open, match: /open, limit: 1/h, on_store_error: open }";
    let server = in_front_of(&api, &format!("counters: {}\n{rules}", redis.url()));
    eventually("it is connected", || get(&server, "/closed", &[]).status == 200);
    eventually("the limit is known", || get(&server, "/open", &[]).status == 429);
    let arrived = || api.received().iter().filter(|request| request.target() == "/closed").count();
    redis.process.kill();
    eventually("it is noticed", || get(&server, "/closed", &[]).status == 503);
    let before = arrived();
    let refused = get(&server, "/closed", &[]);
    assert_eq!((refused.status, refused.header("content-type")), (503, Some("application/problem+json")));
    assert_eq!((&refused.json()["status"], refused.header("ratelimit")), (&json!(503), None));
    let page = get(&server, "/closed", &[("accept", "text/html")]);
    assert_eq!((page.status, page.header("content-type")), (503, Some("text/html; charset=utf-8")));
    assert_eq!(arrived(), before, "nothing of it reaches the API");
    eventually("the last denial is forgotten", || get(&server, "/open", &[]).status == 200);
    assert_eq!(get(&server, "/elsewhere", &[]).status, 200);
}

#[test]
fn rate_limit_headers_of_the_api_are_not_loosened() {
    let api = Api::saying(
        "HTTP/1.1 200 OK\r\nratelimit-policy: \"api\";q=9;w=1\r\nratelimit: \"api\";r=2;t=1\r\nx-ratelimit-limit: 9\r\nx-ratelimit-remaining: 2\r\nx-ratelimit-reset: 1\r\ncontent-length: 0\r\n\r\n",
    );
    let server = in_front_of(&api, "headers: both\nrules: [{ id: own, limit: 100/m }]");
    let answer = get(&server, "/", &[]);
    assert_eq!(answer.header("ratelimit"), Some("\"api\";r=2;t=1, \"own\";r=99;t=1"));
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("2"));
    let policies: Vec<_> = answer
        .headers
        .iter()
        .filter(|(name, _)| name == "ratelimit-policy")
        .map(|(_, value)| value.as_str())
        .collect();
    assert_eq!(policies, ["\"api\";q=9;w=1", "\"own\";q=100;w=60"]);
}

#[test]
fn a_denial_during_an_upload_reaches_the_client() {
    let api = Api::echo();
    let server = in_front_of(&api, ONE);
    get(&server, "/", &[]);
    let mut client = Client::to(server.proxy);
    let answer = client.request("POST", "/", &[], &vec![b'x'; 300 << 10]);
    assert_eq!(answer.status, 429);
    assert_eq!(client.request("GET", "/", &[], b"").status, 429, "and the connection goes on");
}

#[test]
fn rules_match_what_is_asked_for_however_it_is_spelt() {
    let api = Api::echo();
    let server = in_front_of(
        &api,
        "rules: [{ id: login, match: POST /login, key: [ip, 'cookie:sid', 'query:q'], missing_key: shared, limit: 1/h }]",
    );
    let send = |path: &str, cookie: &str| {
        Client::to(server.proxy).request("POST", path, &[("cookie", cookie)], b"").status
    };
    assert_eq!([send("/login?q=1", "sid=a"), send("//%6Cogin?q=1", "x=y; sid=a")], [200, 429]);
    assert_eq!([send("/login?q=2", "sid=a"), send("/login?q=1", "sid=b")], [200, 200]);
    assert_eq!(get(&server, "/login?q=1", &[("cookie", "sid=a")]).status, 200, "another method");
}
