//! One file and the same hits, decided by the server and by the library: the verdicts are the same.

use std::net::IpAddr;

use serde_json::{Value, json};
use tollgate::{Engine, FieldSource, Hit, Policy, Verdict};
use tollgate_testkit::{Client, Folder, Server, binary};

/// A hit a second would take days to give back what these limits count, so that the time of a run changes no verdict.
const FILE: &str = "
memory: 64MiB
rules_db: none
trusted_proxies: [10.0.0.0/8]
headers: both
ipv6_prefix: 48
case_insensitive_paths: true
identity: {api_key: 'header:x-key', email: 'attr:mail'}
rules:
  - {id: everything, key: ip, limit: '${EVERYTHING}/d', burst: 30}
  - {id: login, match: 'POST /Login', key: [ip, email], limits: [3/d, 9/w], algorithm: sliding-log, ban: {key: [ip], after: 4, within: 1d, for: 1d}}
  - {id: keys, match: 'GET /api/**', key: api_key, limit: 5/d, missing_key: shared}
  - {id: plans, match: '/api/{item}', key: user, limits_by: {attr: plan, free: [2/d], pro: [6/d]}, missing_key: skip}
  - {id: uploads, match: 'POST /upload', key: user, limit: 20/d, algorithm: token-bucket, cost: 3, missing_key: deny}
  - {id: downloads, host: files.example.com, key: 'cookie:session', limit: 2/d, algorithm: fixed-window, window: first-hit}
  - {id: new, match: /api/**, key: ip, limit: 1/d, mode: shadow}
  - {id: wild, match: '/**', key: 'query:token', limit: 4/d, count_denied: true}
allow: ['user:root', 'ip:192.0.2.0/28']
bans: [{key: 'user:evil', until: 2099-01-01T00:00:00Z}, {key: 'ip:2001:db8:bad::/48'}]
";
const HITS: usize = 600;

/// The parts of a hit, in the words of the decision API.
fn draw(random: &mut fastrand::Rng) -> Value {
    fn one_of<'a>(random: &mut fastrand::Rng, words: &[&'a str]) -> &'a str {
        words[random.usize(..words.len())]
    }
    let random = &mut *random;
    let mut hit = json!({
        "method": one_of(random, &["GET", "POST"]),
        "path": one_of(random, &["/login", "/LOGIN/", "/api/a", "/api/b?token=t1", "/API/%61", "/upload", "/", "/x?token=t1&token=t2"]),
        "host": one_of(random, &["files.example.com", "FILES.example.com:443", "example.com"]),
        "cost": random.u64(0..4),
    });
    for (name, words) in [
        (
            "ip",
            &[
                "203.0.113.1",
                "::ffff:203.0.113.1",
                "203.0.113.2",
                "192.0.2.7",
                "2001:db8:1:2::1",
                "2001:db8:1:3::1",
                "2001:db8:bad:1::1",
            ][..],
        ),
        ("user", &["ann", " ann ", "bob", "root", "evil"]),
        ("email", &["ann@example.com", " ANN@Example.com", "bob@example.com"]),
    ] {
        if random.u8(..3) > 0 {
            hit[name] = one_of(random, words).into();
        }
    }
    if random.bool() {
        hit["headers"] = json!({ "x-key": one_of(random, &["k1", "k2"]), "cookie": one_of(random, &["session=s1", "a=b; session=s2"]) });
    }
    if random.bool() {
        hit["attributes"] =
            json!({ "plan": one_of(random, &["free", "pro", "none"]), "mail": "carl@example.com" });
    }
    hit
}

/// The same parts as a hit of the library.
fn hit(parts: &Value) -> Hit<'_> {
    let text = |name: &str| parts[name].as_str();
    let [method, host, path] = ["method", "host", "path"].map(|name| text(name).unwrap_or_default());
    let mut hit = Hit::on(method, host, path).cost(parts["cost"].as_u64().expect("a number"));
    if let Some(ip) = text("ip") {
        hit = hit.ip(ip.parse::<IpAddr>().expect("an address"));
    }
    if let Some(user) = text("user") {
        hit = hit.user(user);
    }
    if let Some(email) = text("email") {
        hit = hit.email(email);
    }
    for (list, source) in [("headers", FieldSource::Header), ("attributes", FieldSource::Attr)] {
        for (name, value) in parts[list].as_object().into_iter().flatten() {
            hit = hit.field(source, name, value.as_str().expect("text"));
        }
    }
    hit
}

/// A verdict, without its times.
fn of_library(verdict: &Verdict) -> Value {
    let reported = verdict.reported();
    let limits = verdict.limits().map(|limit| {
        json!([limit.rule(), limit.limit(), limit.is_allowed(), limit.remaining(), limit.is_enforced()])
    });
    json!({
        "allowed": verdict.is_allowed(),
        "reason": verdict.reason().name(),
        "reported": reported.map(|limit| json!([limit.rule(), limit.limit(), limit.remaining()])),
        "waits": verdict.retry_after().is_some(),
        "limits": limits.collect::<Vec<_>>(),
    })
}

fn of_server(body: &Value) -> Value {
    let reported = [&body["rule"], &body["limit"], &body["remaining"]];
    let limits = body["rules"].as_array().expect("a list").iter().map(|each| {
        let is_enforced = each["mode"] == "enforce";
        json!([each["rule"], each["limit"], each["allowed"], each["remaining"], is_enforced])
    });
    json!({
        "allowed": body["allowed"],
        "reason": body["reason"],
        "reported": (!body["rule"].is_null()).then(|| json!(reported)),
        "waits": !body["retry_after_ms"].is_null(),
        "limits": limits.collect::<Vec<_>>(),
    })
}

#[test]
fn the_library_decides_by_the_file_as_the_server_does() {
    let folder = Folder::new();
    let file = folder.configure(FILE);
    let mut command = binary();
    command.arg("serve").arg("-c").arg(&file).env("EVERYTHING", "50");
    let server = Server::run(&folder, &mut command);
    // With the addresses of its listeners, as the server has read it.
    let text = std::fs::read_to_string(&file).expect("the file can be read");
    let policy = Policy::with_variables(&text, |name| (name == "EVERYTHING").then(|| "50".to_owned()));
    let engine = Engine::new(policy.expect("the file of the server")).expect("it fits the memory");
    let mut client = Client::to(server.http);
    let mut random = fastrand::Rng::with_seed(14);
    let mut reasons = std::collections::BTreeMap::<String, usize>::new();
    for n in 0..HITS {
        let parts = draw(&mut random);
        let answer = client.request("POST", "/v1/check", &[], parts.to_string().as_bytes());
        let here = of_library(&engine.check(&hit(&parts)));
        assert_eq!(of_server(&answer.json()), here, "hit {n}: {parts}");
        *reasons.entry(here["reason"].to_string()).or_default() += 1;
    }
    assert!(reasons.values().all(|count| *count >= 10) && reasons.len() >= 4, "{reasons:?}");
}
