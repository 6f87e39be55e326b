//! The configuration of envoyproxy/ratelimit, read as it is.

use std::process::Command;

use serde_json::json;
use tollgate_testkit::{Folder, Server, eventually};

use super::client::{GrpcClient, OK, OVER_LIMIT, request};
use super::messages::RateLimitOverride;

const CONFIG: &str = "
domain: shop
descriptors:
  - key: key2
    rate_limit: { unit: minute, requests_per_unit: 20 }
  - key: key2
    value: value2
    rate_limit: { unit: minute, requests_per_unit: 30 }
  - key: key2
    value: value3
  - key: remote_address
    rate_limit: { unit: SECOND, requests_per_unit: 10 }
  - key: remote_address
    value: 50.0.0.5
    rate_limit: { unit: second, requests_per_unit: 0 }
  - key: file
    value: a*z
    rate_limit: { unit: hour, requests_per_unit: 2 }
  - key: file
    value: shared/*
    share_threshold: true
    rate_limit: { unit: hour, requests_per_unit: 2 }
  - key: free
    rate_limit: { unlimited: true }
  - key: shady
    shadow_mode: true
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: soft
    quota_mode: true
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: kind
    value: read
    rate_limit: { name: read, unit: day, requests_per_unit: 1 }
  - key: endpoint
    value: list
    rate_limit: { name: list, unit: day, requests_per_unit: 5, replaces: [{ name: read }] }
  - key: type
    value: marketing
    descriptors:
      - key: number
        rate_limit: { unit: day, requests_per_unit: 5 }
  - key: route
    value: api/*
    share_threshold: true
    descriptors: [{ key: method, rate_limit: { unit: day, requests_per_unit: 2 } }]
  - key: route
    value: web/*
    descriptors: [{ key: method, rate_limit: { unit: day, requests_per_unit: 2 } }]
  - key: number
    rate_limit: { unit: week, requests_per_unit: 100 }
";

pub fn start_with(files: &[(&str, &str)], rest: &str) -> (Server, GrpcClient) {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("envoy")).expect("a folder");
    files.iter().for_each(|(name, text)| drop(folder.write(&format!("envoy/{name}"), text)));
    folder.configure(&format!("envoy_config: envoy/\n{rest}"));
    let server = Server::start_in(&folder);
    let client = GrpcClient::to(server.grpc);
    (server, client)
}

fn start(rest: &str) -> (Server, GrpcClient) {
    start_with(&[("shop.yaml", CONFIG)], rest)
}

/// The limit of a descriptor as (requests, unit); looks only.
pub fn limit(client: &GrpcClient, domain: &str, entries: &[(&str, &str)]) -> Option<(u32, i32)> {
    let mut look = request(domain, &[entries]);
    look.descriptors[0].hits_addend = Some(0);
    let status = client.limit(look).expect("an answer").statuses[0].clone();
    status.current_limit.map(|limit| (limit.requests_per_unit, limit.unit))
}

#[test]
fn the_most_specific_descriptor_applies_at_its_depth_only() {
    let (_server, client) = start("");
    for (entries, expected) in [
        (&[("key2", "something")][..], Some((20, 2))),
        (&[("key2", "value2")], Some((30, 2))),
        (&[("key2", "value3")], None),
        (&[("file", "abcz")], Some((2, 3))),
        (&[("file", "az")], Some((2, 3))),
        (&[("file", "abc")], None),
        (&[("type", "marketing"), ("number", "1")], Some((5, 4))),
        (&[("type", "other"), ("number", "1")], None),
        (&[("type", "marketing")], None),
        (&[("number", "1")], Some((100, 7))),
        (&[("number", "1"), ("more", "x")], None),
        (&[("unknown", "x")], None),
    ] {
        assert_eq!(limit(&client, "shop", entries), expected, "{entries:?}");
    }
    assert_eq!(limit(&client, "other", &[("key2", "x")]), None);
}

#[test]
fn limits_count_as_in_the_original() {
    let (_server, client) = start("");
    for left in (0..20).rev() {
        assert_eq!(client.codes("shop", &[&[("key2", "x")]]), [(OK, left)]);
    }
    assert_eq!(client.codes("shop", &[&[("key2", "x")]]), [(OVER_LIMIT, 0)]);
    assert_eq!(client.codes("shop", &[&[("key2", "y")]]), [(OK, 19)], "values count apart");
    assert_eq!(client.codes("shop", &[&[("remote_address", "50.0.0.5")]]), [(OVER_LIMIT, 0)]);
    assert_eq!(client.codes("shop", &[&[("free", "x")]]), [(OK, u32::MAX)]);
    for left in [0, 0, 0] {
        assert_eq!(client.codes("shop", &[&[("shady", "x")]]), [(OK, left)]);
    }
    let file = |name: &str| client.codes("shop", &[&[("file", name)]])[0];
    assert_eq!([file("a1z"), file("a2z")], [(OK, 1), (OK, 1)], "values of a wildcard count apart");
    assert_eq!([file("shared/a"), file("shared/b")], [(OK, 1), (OK, 0)]);
    assert_eq!(file("shared/c"), (OVER_LIMIT, 0));
}

#[test]
fn values_of_a_shared_wildcard_share_the_limits_below_it() {
    let (_server, client) = start("");
    let call =
        |route: &str, method: &str| client.codes("shop", &[&[("route", route), ("method", method)]])[0];
    assert_eq!([call("api/v1", "GET"), call("api/v2", "GET")], [(OK, 1), (OK, 0)]);
    assert_eq!(call("api/v3", "GET"), (OVER_LIMIT, 0));
    assert_eq!(call("api/v3", "PUT"), (OK, 1), "values of the bare key below it count apart");
    assert_eq!([call("web/a", "GET"), call("web/b", "GET")], [(OK, 1), (OK, 1)], "not shared");
}

/// As those of rules: the names are those of the configuration, and values of clients are no labels.
#[test]
fn limits_of_the_files_have_metrics() {
    let (server, client) = start("rules: [{ id: native, key: 'attr:key2', limit: 100/h }]\n");
    for _ in 0..2 {
        client.single("shop", &[("kind", "read")]);
        client.single("shop", &[("shady", "secret")]);
    }
    client.single("shop", &[("key2", "secret")]);
    let metrics = server.admin("GET", "/metrics", "").text();
    let count = |rule: &str, outcome: &str| {
        let start = format!("tollgate_rule_hits_total{{rule=\"{rule}");
        let end = format!("outcome=\"{outcome}\"}} ");
        let lines = metrics.lines().filter(|line| line.starts_with(&start));
        lines.filter_map(|line| line.split_once(&end)?.1.parse::<u64>().ok()).sum::<u64>()
    };
    assert_eq!([count("shop.kind-", "allowed"), count("shop.kind-", "denied")], [1, 1], "{metrics}");
    assert_eq!([count("shop.shady-", "allowed"), count("shop.shady-", "shadow_denied")], [1, 1], "{metrics}");
    assert_eq!([count("native", "allowed"), count("shop.key2-", "allowed")], [1, 1], "{metrics}");
    assert!(!metrics.contains("secret"), "{metrics}");
}

#[test]
fn a_limit_in_quota_mode_is_reported_and_passes() {
    let (server, client) = start("");
    let soft = request("shop", &[&[("free", "x")], &[("soft", "x")]]);
    assert_eq!(client.limit(soft.clone()).expect("an answer").overall_code, OK);
    let over = client.limit(soft).expect("an answer");
    assert_eq!((over.overall_code, over.statuses[1].code), (OK, OVER_LIMIT));
    let entry = |key: &str| json!({ "entries": [{ "key": key, "value": "x" }] });
    let body = json!({ "domain": "shop", "hitsAddend": 2, "descriptors": [entry("unknown"), entry("soft")] });
    let answer = server.request("POST", "/json", body.to_string());
    assert_eq!(answer.status, 200, "{answer}");
    let expected = json!({
        "domain": "shop",
        "hitsAddend": 2,
        "descriptors": [{ "entries": ["unknown=x"] }, { "entries": ["soft=x"] }],
        "quotaModeEnabled": true,
        "quotaModeViolations": [1],
    });
    assert_eq!(answer.json()["dynamicMetadata"], expected);
    // A limit that denies decides, and the quota is charged nothing.
    let denied = client.codes("shop", &[&[("soft", "y")], &[("remote_address", "50.0.0.5")]]);
    assert_eq!(denied, [(OK, 1), (OVER_LIMIT, 0)]);
    assert_eq!(client.codes("shop", &[&[("soft", "y")]]), [(OK, 0)]);
}

#[test]
fn the_ticket_of_a_limit_of_the_files_is_explained() {
    let (server, _client) = start("");
    let entry = json!({ "entries": [{ "key": "remote_address", "value": "50.0.0.5" }] });
    let body = json!({ "domain": "shop", "descriptors": [entry] });
    let denied = server.request("POST", "/json", body.to_string());
    assert_eq!(denied.status, 429, "{denied}");
    let headers = denied.json()["responseHeadersToAdd"].as_array().expect("headers").clone();
    let is_ticket = |header: &&serde_json::Value| {
        header["key"].as_str().is_some_and(|key| key.eq_ignore_ascii_case("tollgate-ticket"))
    };
    let ticket = &headers.iter().find(is_ticket).expect("a ticket")["value"];
    let explained = server.admin("POST", "/v1/explain", json!({ "ticket": ticket }).to_string()).json();
    assert_eq!(explained["steps"][0]["source"], "envoy_config", "{explained}");
    assert!(!explained.to_string().contains("no rule with this id"), "{explained}");
}

#[test]
fn a_limit_replaces_another_of_the_same_request() {
    let (_server, client) = start("");
    let both: &[&[(&str, &str)]] = &[&[("kind", "read")], &[("endpoint", "list")]];
    for left in (2..5).rev() {
        assert_eq!(client.codes("shop", both), [(OK, 0), (OK, left)]);
    }
    assert_eq!(client.codes("shop", &[&[("kind", "read")]]), [(OK, 0)], "it was not charged");
    assert_eq!(client.codes("shop", &[&[("kind", "read")]]), [(OVER_LIMIT, 0)]);
}

#[test]
fn rules_and_limits_of_requests_are_asked_beside_it() {
    let (_server, client) = start("rules: [{ id: native, key: 'attr:key2', limit: 2/h }]\n");
    assert_eq!(client.codes("shop", &[&[("key2", "x")]]), [(OK, 19)]);
    assert_eq!(client.codes("shop", &[&[("key2", "x")]]), [(OK, 18)]);
    let denied = client.single("shop", &[("key2", "x")]);
    assert_eq!(denied.code, OVER_LIMIT);
    assert_eq!(denied.current_limit.expect("a limit").name, "native");
    assert_eq!(client.codes("other", &[&[("key2", "x")]]), [(OK, 1)], "also in other domains");
    let mut own = request("shop", &[&[("key2", "z")]]);
    own.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 7, unit: 3 });
    let status = client.limit(own).expect("an answer").statuses[0].clone();
    assert_eq!(status.current_limit.expect("a limit").requests_per_unit, 7);
}

#[test]
fn a_denial_counts_nowhere_unless_compat_is_envoy() {
    for (compat, left) in [("tollgate", 18), ("envoy", 16)] {
        let (_server, client) = start(&format!("compat: {compat}\n"));
        let both: &[&[(&str, &str)]] = &[&[("key2", "x")], &[("kind", "read")]];
        assert_eq!(client.codes("shop", both), [(OK, 19), (OK, 0)], "{compat}");
        for _ in 0..2 {
            assert_eq!(client.codes("shop", both)[1], (OVER_LIMIT, 0), "{compat}");
        }
        assert_eq!(client.codes("shop", &[&[("key2", "x")]]), [(OK, left)], "{compat}");
    }
}

#[test]
fn a_changed_folder_is_in_force_soon_and_a_bad_one_changes_nothing() {
    let (server, client) = start("");
    for _ in 0..5 {
        client.single("shop", &[("key2", "x")]);
    }
    let write = |text: &str| server.folder.write("envoy/shop.yaml", text);
    write(&CONFIG.replace("requests_per_unit: 20 }", "requests_per_unit: 50 }"));
    eventually("the new limit", || limit(&client, "shop", &[("key2", "x")]) == Some((50, 2)));
    assert_eq!(client.codes("shop", &[&[("key2", "x")]]), [(OK, 44)], "what was used stays used");
    write("domain: shop\ndescriptors:\n  - key: key2\n    rate_limit: { unit: fortnight }\n");
    server.wait_for_log("shop.yaml:4:25");
    assert_eq!(limit(&client, "shop", &[("key2", "x")]), Some((50, 2)));
    server.folder.write(
        "envoy/other.yaml",
        "domain: other\ndescriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: 3 } }]\n",
    );
    write(CONFIG);
    eventually("the new file", || limit(&client, "other", &[("a", "x")]) == Some((3, 4)));
}

#[test]
fn bad_files_are_named_with_their_lines() {
    for (text, expected) in [
        ("descriptors: []", "'domain' is missing"),
        ("domain: a\ndescriptors: [{ value: x }]", "'key' is missing"),
        ("domain: a\ndescriptors: [{ key: x }, { key: x }]", "the key 'x' is in this list twice"),
        (
            "domain: a\ndescriptors: [{ key: x, rate_limit: { unit: eon, requests_per_unit: 1 } }]",
            "expected second",
        ),
        ("domain: a\ndescriptors: [{ key: x, rate_limit: { unlimited: true, unit: day } }]", "has no unit"),
        ("domain: a\ndescriptors: [{ key: x, colour: red }]", "unknown key 'colour'"),
        (
            "domain: a\ndescriptors:\n- { key: x, value: y, share_threshold: true }",
            "a.yaml:3:40: descriptors[0].share_threshold: only a value with a wildcard ('*')",
        ),
        ("domain: a\ndescriptors: 5", "expected a list of descriptors"),
    ] {
        let folder = Folder::new();
        std::fs::create_dir(folder.path("envoy")).expect("a folder");
        folder.write("envoy/a.yaml", text);
        let config = folder.configure("envoy_config: envoy/\n");
        let mut check = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let ran = check.args(["rules", "check"]).arg(config).output().expect("it runs");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(3), "{said}");
        assert!(said.contains("a.yaml:") && said.contains(expected), "{text}: {said}");
    }
}

#[test]
fn the_json_form_is_answered_on_the_http_listener() {
    let (server, _client) = start("");
    let body = json!({
        "domain": "shop",
        "descriptors": [{ "entries": [{ "key": "kind", "value": "read" }], "hitsAddend": "1" }],
    });
    let answer = server.request("POST", "/json", body.to_string());
    assert_eq!(answer.status, 200, "{answer}");
    let json = answer.json();
    assert_eq!(json["overallCode"], "OK");
    let limit = json!({ "requestsPerUnit": 1, "unit": "DAY", "name": "read" });
    assert_eq!(json["statuses"][0]["currentLimit"], limit);
    let answer = server.request("POST", "/json", body.to_string());
    assert_eq!((answer.status, answer.json()["statuses"][0]["code"].clone()), (429, json!("OVER_LIMIT")));
    // The forms that proto3-JSON allows.
    let entries = "\"entries\": [{ \"key\": \"key2\", \"value\": \"json\" }]";
    for (hits, limit, requests, left) in [
        ("\"2\"", "null", 20, 18),
        ("null", "null", 20, 17),
        ("1", "{ \"unit\": \"HOUR\", \"requestsPerUnit\": \"7\" }", 7, 6),
        ("1", "{ \"unit\": 3, \"requests_per_unit\": null }", 0, 0),
        ("1", "{ \"unit\": null, \"requestsPerUnit\": 7 }", 20, 16),
    ] {
        let body = format!(
            "{{ \"domain\": \"shop\", \"hitsAddend\": {hits}, \"descriptors\": [{{ {entries}, \"limit\": {limit}, \"hitsAddend\": null }}] }}"
        );
        let status = server.request("POST", "/json", &body).json()["statuses"][0].clone();
        assert_eq!(status["currentLimit"]["requestsPerUnit"], requests, "{body}: {status}");
        assert_eq!(status["limitRemaining"], left, "{body}: {status}");
    }
    let refund = format!(
        "{{ \"domain\": \"shop\", \"descriptors\": [{{ {entries}, \"isNegativeHits\": true, \"hits_addend\": \"3\" }}] }}"
    );
    let status = server.request("POST", "/json", &refund).json()["statuses"][0].clone();
    assert_eq!((&status["code"], &status["limitRemaining"]), (&json!("OK"), &json!(19)), "{status}");
    for bad in [
        "{\"domain\": \"shop\", \"hitsAddend\": \"x\"}",
        "{\"domain\": \"shop\", \"hitsAddend\": -1}",
        "{\"domain\": \"shop\", \"hitsAddend\": 4294967296}",
        "not json",
        "{\"domain\": 5}",
        "{\"domain\": \"\"}",
        "{\"colour\": 1}",
        "[]",
    ] {
        assert_eq!(server.request("POST", "/json", bad).status, 400, "{bad}");
    }
}

#[test]
fn import_prints_rules_that_the_server_accepts() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("envoy")).expect("a folder");
    folder.write("envoy/shop.yaml", CONFIG);
    let mut import = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let ran = import.args(["import", "envoy"]).arg(folder.path("envoy")).output().expect("it runs");
    let rules = String::from_utf8(ran.stdout).expect("text");
    let notes = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{notes}");
    assert!(notes.contains("file=a*z: a rule has no wildcards"), "{notes}");
    folder.configure(&rules);
    let server = Server::start_in(&folder);
    let client = GrpcClient::to(server.grpc);
    for (entries, expected) in [
        (&[("key2", "x")][..], (OK, 19)),
        (&[("key2", "value2")], (OK, 29)),
        (&[("remote_address", "50.0.0.5")], (OVER_LIMIT, 0)),
        (&[("type", "marketing"), ("number", "1")], (OK, 4)),
    ] {
        assert_eq!(client.codes("shop", &[entries]), [expected], "{entries:?}\n{rules}");
    }
}
