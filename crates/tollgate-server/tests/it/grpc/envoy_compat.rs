//! What `compat: envoy` decides as envoyproxy/ratelimit does, and what the allow list and `tollgate import` mean for its files.

use tollgate_testkit::{Folder, Server, tollgate};

use super::client::{GrpcClient, OK, OVER_LIMIT, descriptor, request};
use super::envoy_config::start_with;
use super::messages::RateLimitOverride;

const CONFIG: &str = "
domain: shop
descriptors:
  - { key: soft, quota_mode: true, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: hard, rate_limit: { unit: day, requests_per_unit: 2 } }
  - { key: remote_address, rate_limit: { unit: day, requests_per_unit: 1 } }
";

#[test]
fn a_request_over_all_of_its_quotas_is_denied_by_compat_envoy() {
    for (compat, all_over) in [("tollgate", OK), ("envoy", OVER_LIMIT)] {
        let (server, client) = start_with(&[("shop.yaml", CONFIG)], &format!("compat: {compat}\n"));
        let ask = |descriptors: &[&[(&str, &str)]]| {
            let answer = client.limit(request("shop", descriptors)).expect("an answer");
            let codes: Vec<_> = answer.statuses.iter().map(|status| status.code).collect();
            (answer.overall_code, codes)
        };
        let x: &[(&str, &str)] = &[("soft", "x")];
        let y: &[(&str, &str)] = &[("soft", "y")];
        assert_eq!(ask(&[x]), (OK, vec![OK]), "{compat}");
        assert_eq!(ask(&[x]), (all_over, vec![OVER_LIMIT]), "{compat}");
        assert_eq!(ask(&[x, y]), (OK, vec![OVER_LIMIT, OK]), "one of two quotas is left: {compat}");
        assert_eq!(ask(&[x, y]), (all_over, vec![OVER_LIMIT; 2]), "{compat}");
        let hard: &[(&str, &str)] = &[("hard", "x")];
        assert_eq!(ask(&[x, hard]), (all_over, vec![OVER_LIMIT, OK]), "limits are not quotas: {compat}");
        let body =
            "{\"domain\":\"shop\",\"descriptors\":[{\"entries\":[{\"key\":\"soft\",\"value\":\"x\"}]}]}";
        let status = server.request("POST", "/json", body).status;
        assert_eq!(status, if all_over == OK { 200 } else { 429 }, "{compat}");
    }
}

#[test]
fn compat_envoy_ignores_limits_of_descriptors_in_domains_without_a_file() {
    let ask = |client: &GrpcClient, domain: &str| {
        let mut own = request(domain, &[&[("a", "x")]]);
        own.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 7, unit: 3 });
        let status = client.limit(own).expect("an answer").statuses[0].clone();
        status.current_limit.map(|limit| limit.requests_per_unit)
    };
    let (_server, client) = start_with(&[("shop.yaml", CONFIG)], "compat: envoy\n");
    assert_eq!([ask(&client, "shop"), ask(&client, "other")], [Some(7), None]);
    let (_server, client) = start_with(&[("shop.yaml", CONFIG)], "");
    assert_eq!([ask(&client, "shop"), ask(&client, "other")], [Some(7); 2]);
    let server = Server::start("compat: envoy\nrules: []");
    assert_eq!(ask(&GrpcClient::to(server.grpc), "other"), Some(7), "no files at all");
}

#[test]
fn a_client_of_the_allow_list_is_not_limited_by_the_files_or_its_own_limits() {
    let (_server, client) = start_with(&[("shop.yaml", CONFIG)], "allow: ['ip:203.0.113.7']\n");
    let entries = |address| [("remote_address", address)];
    for n in 0..3 {
        let exempt = client.single("shop", &entries("203.0.113.7"));
        assert_eq!((exempt.code, exempt.current_limit), (OK, None));
        let limited = client.single("shop", &entries("203.0.113.8"));
        assert_eq!(limited.code, if n == 0 { OK } else { OVER_LIMIT });
    }
    let mut own = request("shop", &[]);
    own.descriptors.push(descriptor(&entries("203.0.113.7")));
    own.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 0, unit: 3 });
    assert_eq!(client.limit(own).expect("an answer").overall_code, OK);
}

#[test]
fn import_names_each_limit_that_is_left_out_and_gives_every_rule_an_id_of_its_own() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("envoy")).expect("a folder");
    let long = "k".repeat(70);
    folder.write(
        "envoy/a.yaml",
        format!(
            "domain: first
descriptors:
  - {{ key: user, rate_limit: {{ unit: minute, requests_per_unit: 5 }} }}
  - {{ key: user, value: vip, rate_limit: {{ unit: minute, requests_per_unit: 50 }} }}
  - {{ key: same, rate_limit: {{ unit: minute, requests_per_unit: 9 }} }}
  - {{ key: a.b, rate_limit: {{ unit: minute, requests_per_unit: 1 }} }}
  - {{ key: a, descriptors: [{{ key: b, rate_limit: {{ unit: minute, requests_per_unit: 2 }} }}] }}
  - {{ key: {long}1, rate_limit: {{ unit: minute, requests_per_unit: 3 }} }}
  - {{ key: {long}2, rate_limit: {{ unit: minute, requests_per_unit: 4 }} }}
"
        ),
    );
    folder.write(
        "envoy/b.yaml",
        "domain: second
descriptors:
  - { key: user, rate_limit: { unit: hour, requests_per_unit: 7 } }
  - { key: user, value: vip, rate_limit: { unlimited: true } }
  - { key: same, rate_limit: { unit: minute, requests_per_unit: 9 } }
",
    );
    let path = folder.path("envoy");
    let ran = tollgate(&["import", "envoy", path.to_str().expect("text")]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for note in [
        "second: user=: 7/hour is left out: these keys have 5/minute elsewhere",
        "second: user=vip: no limit is left out: these keys have 50/minute elsewhere",
    ] {
        assert!(ran.stderr.contains(note), "{note}: {}", ran.stderr);
    }
    assert!(!ran.stderr.contains("same"), "{}", ran.stderr);
    let ids: Vec<_> = ran.stdout.lines().filter_map(|line| line.trim().strip_prefix("- id: ")).collect();
    let cut = "k".repeat(57);
    let numbered = format!("{}-2", "k".repeat(55));
    assert_eq!(ids, ["a.b", "a.b-2", &*cut, &*numbered, "same", "user"], "{}", ran.stdout);
    folder.configure(&ran.stdout);
    let server = Server::start_in(&folder);
    let client = GrpcClient::to(server.grpc);
    let limits = [&[("a", "x"), ("b", "y")][..], &[("a.b", "x")], &[("user", "x")], &[("user", "vip")]];
    let left = limits.map(|entries| client.single("first", entries).limit_remaining);
    assert_eq!(left, [1, 0, 4, 49], "{}", ran.stdout);
}
