//! The gRPC listener from outside: a client over tonic, raw bytes, and clients that people use.

use tollgate_testkit::{Folder, Server};
use tonic::Code;

pub mod authorization;
pub mod bad_input;
pub mod client;
mod envoy_compat;
mod envoy_config;
mod envoy_matching;
mod http2_misuse;
pub mod messages;
mod python;
mod refunds;
mod request_counts;

use client::{GrpcClient, OK, OVER_LIMIT, descriptor, request};
use messages::{
    HealthCheckRequest, HealthCheckResponse, RateLimitOverride, RateLimitRequest, RateLimitResponse,
};

const RULES: &str = "rules:
  - { id: per-user, key: user, limit: 3/m, algorithm: fixed-window }
  - { id: per-tenant, key: attr:tenant, limit: 5/h }
  - { id: login, match: POST /login, key: ip, limit: 1/d }
";

#[test]
fn a_descriptor_is_decided_by_the_rules() {
    let server = Server::start(RULES);
    let client = GrpcClient::to(server.grpc);
    for remaining in [2, 1, 0] {
        let status = client.single("shop", &[("user", "ann")]);
        assert_eq!((status.code, status.limit_remaining), (OK, remaining));
        let limit = status.current_limit.expect("a limit");
        assert_eq!((limit.name.as_str(), limit.requests_per_unit, limit.unit), ("per-user", 3, 2));
    }
    let denied = client.limit(request("shop", &[&[("user", "ann")]])).expect("an answer");
    assert_eq!(denied.overall_code, OVER_LIMIT);
    let wait = denied.statuses[0].duration_until_reset.expect("a wait").seconds;
    assert!((1..=60).contains(&wait), "{wait}");
    let headers: Vec<_> = denied.response_headers_to_add.iter().map(|header| header.key.as_str()).collect();
    assert_eq!(headers, ["ratelimit-policy", "ratelimit", "retry-after", "tollgate-ticket"]);
    assert_eq!(denied.response_headers_to_add[2].value, wait.to_string());
    // Domains count apart; what no rule matches passes without a limit.
    assert_eq!(client.single("other", &[("user", "ann")]).code, OK);
    let unmatched = client.single("shop", &[("colour", "red")]);
    assert_eq!((unmatched.code, unmatched.current_limit), (OK, None));
    assert_eq!(client.single("shop", &[("tenant", "t1")]).limit_remaining, 4);
    let login = &[("method", "POST"), ("path", "/login"), ("remote_address", "203.0.113.7")][..];
    assert_eq!(client.codes("shop", &[login]), [(OK, 0)]);
    assert_eq!(client.codes("shop", &[login]), [(OVER_LIMIT, 0)]);
}

/// A header of an answer, and how often it is there.
fn header<'a>(answer: &'a RateLimitResponse, name: &str) -> (usize, &'a str) {
    let mut found = answer.response_headers_to_add.iter().filter(|header| header.key == name);
    let value = found.next().map(|header| header.value.as_str());
    (found.count() + usize::from(value.is_some()), value.unwrap_or_default())
}

#[test]
fn a_denial_has_a_ticket_and_what_the_rule_says() {
    let rules = "rules:
  - { id: words, key: attr:words, limit: 1/d, deny: { message: slow down, retry_after_max: 5s } }
  - { id: own, key: attr:own, limit: 1/d, deny: { body: '{\"e\":1}', content_type: application/json } }
";
    let server = Server::start(rules);
    let client = GrpcClient::to(server.grpc);
    let ask =
        |client: &GrpcClient, name: &str| client.limit(request("d", &[&[(name, "x")]])).expect("an answer");
    for (name, body, content_type) in [("words", "slow down", ""), ("own", "{\"e\":1}", "application/json")] {
        let passed = ask(&client, name);
        assert_eq!((passed.overall_code, header(&passed, "tollgate-ticket").0), (OK, 0));
        assert!(passed.raw_body.is_empty());
        let denied = ask(&client, name);
        assert_eq!((denied.overall_code, denied.raw_body.as_slice()), (OVER_LIMIT, body.as_bytes()));
        assert_eq!(header(&denied, "content-type").1, content_type);
        let wait = denied.statuses[0].duration_until_reset.expect("a wait").seconds;
        assert!(wait > 86_000, "the status is exact, whatever the header says: {wait}");
        let (count, ticket) = header(&denied, "tollgate-ticket");
        let ticket = serde_json::json!({ "ticket": ticket }).to_string();
        let explained = server.admin("POST", "/v1/explain", ticket).json();
        assert_eq!((count, &explained["rule"]), (1, &serde_json::json!(name)), "{explained}");
    }
    assert_eq!(header(&ask(&client, "words"), "retry-after").1, "5");

    let server = Server::start(&format!("compat: envoy\n{rules}"));
    let client = GrpcClient::to(server.grpc);
    ask(&client, "own");
    let denied = ask(&client, "own");
    assert_eq!((denied.overall_code, header(&denied, "tollgate-ticket").0), (OVER_LIMIT, 0));
    assert_eq!(denied.raw_body, b"{\"e\":1}", "an option of the rule is obeyed");
}

#[test]
fn limits_beside_the_rules_have_tickets_too() {
    let server = Server::start(RULES);
    let client = GrpcClient::to(server.grpc);
    let limit = Some(RateLimitOverride { requests_per_unit: 1, unit: 3 });
    let asked = RateLimitRequest {
        descriptors: vec![messages::RateLimitDescriptor { limit, ..descriptor(&[("a", "b")]) }],
        ..request("d", &[])
    };
    client.limit(asked.clone()).expect("an answer");
    let denied = client.limit(asked).expect("an answer");
    let ticket = header(&denied, "tollgate-ticket").1;
    let explained = server.admin("POST", "/v1/explain", serde_json::json!({ "ticket": ticket }).to_string());
    let explained = explained.json();
    assert_eq!(explained["rule"], "envoy-override", "{explained}");
    assert_eq!(explained["ticket"]["limit"], "1/h", "{explained}");
}

#[test]
fn all_descriptors_are_charged_or_none() {
    let server = Server::start(RULES);
    let client = GrpcClient::to(server.grpc);
    let both: &[&[(&str, &str)]] = &[&[("tenant", "t1")], &[("user", "ann")]];
    for left in [2, 1, 0] {
        assert_eq!(client.codes("shop", both), [(OK, left + 2), (OK, left)]);
    }
    for _ in 0..5 {
        assert_eq!(client.codes("shop", both), [(OK, 2), (OVER_LIMIT, 0)]);
    }
    assert_eq!(client.codes("shop", &[&[("tenant", "t1")]]), [(OK, 1)]);
}

/// Each denied descriptor was a violation: one request of three descriptors banned its sender. It was fixed for counters in
/// memory first, and left for requests that are counted as envoyproxy/ratelimit does and for central stores.
#[test]
fn a_request_of_several_descriptors_is_one_violation() {
    ["tollgate", "envoy"].into_iter().for_each(one_violation_a_request);
}

fn one_violation_a_request(compat: &str) {
    let ban = "ban: { key: ['attr:tenant'], after: 3, within: 1h, for: 1h }";
    let rules = format!("rules: [{{ id: r, key: user, limit: 0/d, {ban} }}]");
    let server = Server::start(&format!("compat: {compat}\n{rules}"));
    let client = GrpcClient::to(server.grpc);
    let of = |tenant: &'static str| ["a", "b", "c", "d"].map(|user| [("user", user), ("tenant", tenant)]);
    let bans = || server.admin("GET", "/v1/bans", "").json()["bans"].as_array().map(Vec::len);
    let deny = |descriptors: &[[(&'static str, &'static str); 2]]| {
        let descriptors: Vec<_> = descriptors.iter().map(|entries| &entries[..]).collect();
        let codes = client.codes("shop", &descriptors);
        assert!(codes.iter().all(|(code, _)| *code == OVER_LIMIT), "{codes:?}");
    };
    deny(&of("one"));
    deny(&of("one"));
    assert_eq!(bans(), Some(0), "two violations so far");
    deny(&of("one"));
    assert_eq!(bans(), Some(1));
    // Descriptors with different ban keys are violations for each of them.
    let [two, three] = [of("two"), of("three")];
    let both = [two[0], three[1], two[2], three[3]];
    deny(&both);
    deny(&both);
    assert_eq!(bans(), Some(1));
    deny(&both);
    assert_eq!(bans(), Some(3));
}

/// A descriptor that violated two rules counted for both of them, although another one had violated the first.
#[test]
fn a_second_descriptor_is_a_violation_only_for_rules_that_the_first_has_not_violated() {
    let ban = "ban: { key: ['attr:tenant'], after: 2, within: 1h, for: 1h }";
    let server = Server::start(&format!(
        "rules:
  - {{ id: a, key: user, limit: 0/d, {ban} }}
  - {{ id: b, key: 'attr:device', limit: 0/d, {ban} }}"
    ));
    let client = GrpcClient::to(server.grpc);
    let descriptors: [&[_]; 2] =
        [&[("user", "ann"), ("tenant", "t")], &[("user", "bob"), ("device", "phone"), ("tenant", "t")]];
    let banned_by = || {
        client.codes("shop", &descriptors);
        server.admin("GET", "/v1/bans", "").json()["bans"][0]["reason"].clone()
    };
    assert_eq!(banned_by(), serde_json::Value::Null, "one violation of each rule");
    assert_eq!(banned_by(), "2 denials by rule a");
}

#[test]
fn costs_are_of_the_request_or_of_the_descriptor_and_zero_is_a_look() {
    let server = Server::start("rules: [{ id: tenant, key: attr:tenant, limit: 10/h }]");
    let client = GrpcClient::to(server.grpc);
    let call = |own: Option<u64>, whole: u32| {
        let mut request = request("shop", &[&[("tenant", "t1")]]);
        request.hits_addend = whole;
        request.descriptors[0].hits_addend = own;
        let status = client.limit(request).expect("an answer").statuses[0].clone();
        (status.code, status.limit_remaining)
    };
    assert_eq!(call(None, 0), (OK, 9));
    assert_eq!(call(None, 3), (OK, 6));
    assert_eq!(call(Some(2), 3), (OK, 4));
    assert_eq!(call(Some(0), 3), (OK, 4));
    assert_eq!(call(Some(5), 0), (OVER_LIMIT, 4));
    assert_eq!(call(Some(4), 0), (OK, 0));
    assert_eq!(call(Some(0), 0), (OVER_LIMIT, 0), "the next request would be denied");
}

#[test]
fn a_request_may_bring_its_own_limit() {
    let server = Server::start("rules: []");
    let client = GrpcClient::to(server.grpc);
    let mut own = request("shop", &[&[("tenant", "t1")]]);
    own.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 2, unit: 3 });
    let call = |request: &RateLimitRequest| {
        let status = client.limit(request.clone()).expect("an answer").statuses[0].clone();
        let limit = status.current_limit.map(|limit| (limit.requests_per_unit, limit.unit));
        (status.code, status.limit_remaining, limit)
    };
    assert_eq!(call(&own), (OK, 1, Some((2, 3))));
    assert_eq!(call(&own), (OK, 0, Some((2, 3))));
    assert_eq!(call(&own), (OVER_LIMIT, 0, Some((2, 3))));
    let mut other = own.clone();
    other.descriptors[0].entries[0].value = "t2".to_owned();
    assert_eq!(call(&other), (OK, 1, Some((2, 3))));
    // A denied limit of the request takes nothing from the others.
    other.descriptors.push(own.descriptors[0].clone());
    let statuses = client.limit(other.clone()).expect("an answer").statuses;
    assert_eq!((statuses[0].code, statuses[0].limit_remaining), (OK, 1));
    assert_eq!(statuses[1].code, OVER_LIMIT);
}

#[test]
fn bad_requests_are_named() {
    let server = Server::start("rules: []");
    let client = GrpcClient::to(server.grpc);
    let long = "x".repeat(5_000);
    let many = vec![descriptor(&[("a", "b")]); 200];
    for (request, message) in [
        (request("", &[&[("a", "b")]]), "rate limit domain must not be empty"),
        (request("shop", &[]), "rate limit descriptor list must not be empty"),
        (request("shop", &[&[]]), "descriptors[0] has no entries"),
        (request("shop", &[&[("", "b")]]), "descriptors[0].entries[0] has no key"),
        (
            request("shop", &[&[(&long, "b")]]),
            "the key of descriptors[0].entries[0] is longer than 4096 bytes",
        ),
        (
            RateLimitRequest { domain: "shop".to_owned(), descriptors: many, hits_addend: 0 },
            "200 descriptors in one request: at most 100",
        ),
    ] {
        let status = client.limit(request).expect_err(message);
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, message));
    }
    let unknown: Result<RateLimitResponse, _> = client.call("/envoy.service.x/Y", request("a", &[]));
    assert_eq!(unknown.expect_err("no such method").code(), Code::Unimplemented);
    assert_eq!(client.single("shop", &[("a", "b")]).code, OK, "the connection goes on");
}

#[test]
fn a_ban_denies_every_domain() {
    let server = Server::start("bans: [{ key: 'ip:203.0.113.9', until: 2099-01-01T00:00:00Z }]");
    let client = GrpcClient::to(server.grpc);
    let status = client.single("shop", &[("remote_address", "203.0.113.9")]);
    assert_eq!((status.code, status.current_limit), (OVER_LIMIT, None));
    assert_eq!(client.single("shop", &[("remote_address", "203.0.113.8")]).code, OK);
}

#[test]
fn tokens_of_the_role_check_are_required_where_there_are_any() {
    let folder = Folder::new();
    folder.write("tokens", "check app-0123456789abc\nread look-0123456789abc\n");
    folder.configure("tokens_file: tokens\n");
    let server = Server::start_in(&folder);
    let mut client = GrpcClient::to(server.grpc);
    client.traceparent = Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    let mut code = |token: Option<&str>| {
        client.token = token.map(str::to_owned);
        match client.limit(request("shop", &[&[("a", "b")]])) {
            Ok(_) => Code::Ok,
            Err(status) => status.code(),
        }
    };
    assert_eq!(code(None), Code::Unauthenticated);
    assert_eq!(code(Some("wrong-0123456789abc")), Code::Unauthenticated);
    assert_eq!(code(Some("look-0123456789abc")), Code::PermissionDenied);
    assert_eq!(code(Some("app-0123456789abc")), Code::Ok);
    server.wait_for_log("trace_id=4bf92f3577b34da6a3ce929d0e0e4736");
    client.token = None;
    let health: HealthCheckResponse =
        client.call("/grpc.health.v1.Health/Check", HealthCheckRequest::default()).expect("open to all");
    assert_eq!(health.status, 1);
}

#[test]
fn health_is_answered_for_each_service() {
    let server = Server::start("rules: []");
    let client = GrpcClient::to(server.grpc);
    let check = |service: &str| {
        let request = HealthCheckRequest { service: service.to_owned() };
        client.call::<_, HealthCheckResponse>("/grpc.health.v1.Health/Check", request)
    };
    for service in ["", "envoy.service.ratelimit.v3.RateLimitService", "envoy.service.auth.v3.Authorization"]
    {
        assert_eq!(check(service).expect("known").status, 1);
    }
    assert_eq!(check("unknown").expect_err("unknown").code(), Code::NotFound);
}
