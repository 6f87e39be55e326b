//! A server whose memory is full: the limits of new and known keys, and what the operator sees.

use serde_json::{Value, json};
use tollgate_testkit::{Client, Folder, Server, tollgate};

/// States of first-hit windows are wide: this many fill the least memory.
const FLOOD: usize = 24_000;
const BATCH: usize = 1_000;
/// Counters that the new keys of a limit share.
const CELLS: usize = 64;

fn start(memory_full: &str) -> Server {
    let rule = |id: &str, limit: &str| {
        format!(
            "{{ id: {id}, match: /{id}, key: user, limit: {limit}, algorithm: fixed-window, window: first-hit }}"
        )
    };
    let rules = [rule("flooded", "5/h"), rule("other", "3/h")].join(", ");
    Server::start(&format!("memory: 1MiB\n{memory_full}\nrules: [{rules}]\n"))
}

/// Sends hits in batches; returns the answers in order.
fn send(client: &mut Client, hits: impl Iterator<Item = Value>) -> Vec<Value> {
    let hits: Vec<Value> = hits.collect();
    let mut answers = Vec::new();
    for batch in hits.chunks(BATCH) {
        let answer = client.request("POST", "/v1/check/batch", &[], json!(batch).to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        answers.extend(answer.json().as_array().expect("an array of answers").iter().cloned());
    }
    answers
}

fn hit(rule: &str, user: &str, cost: u64) -> Value {
    json!({ "path": format!("/{rule}"), "user": user, "cost": cost })
}

fn passed(answers: &[Value]) -> usize {
    answers.iter().filter(|answer| answer["allowed"] == true).count()
}

fn metric(server: &Server, name: &str) -> u64 {
    let metrics = server.admin("GET", "/metrics", "").text();
    let line = metrics.lines().find(|line| line.starts_with(&format!("{name} ")));
    let value = line.and_then(|line| line.rsplit(' ').next()).and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in\n{metrics}"))
}

/// Brings a known client near its limit, and made-up users to theirs.
fn flood(client: &mut Client) {
    assert_eq!(passed(&send(client, (0..4).map(|_| hit("flooded", "known", 1)))), 4);
    send(client, (0..FLOOD).map(|n| hit("flooded", &format!("made-up-{n}"), 5)));
}

#[test]
fn new_keys_share_counters_and_known_keys_keep_their_own() {
    let server = start("");
    let mut client = Client::to(server.http);
    let health = server.admin("GET", "/healthz", "").json();
    assert_eq!((&health["status"], health.get("memory")), (&json!("ok"), None));
    flood(&mut client);

    // The flood goes on: in all it gets the limit for each shared counter.
    let late = send(&mut client, (0..2_000).map(|n| hit("flooded", &format!("late-{n}"), 1)));
    assert!(passed(&late) <= 5 * CELLS, "{} of the flood passed", passed(&late));
    let denied = late.iter().find(|answer| answer["allowed"] == false).expect("most are denied");
    assert_eq!(
        (&denied["status"], &denied["reason"], &denied["rule"]),
        (&json!(429), &json!("limit"), &json!("flooded"))
    );
    assert!(denied["retry_after_ms"].as_u64().is_some_and(|wait| wait > 0 && wait <= 3_600_000), "{denied}");

    // The operator sees it.
    let health = server.admin("GET", "/healthz", "").json();
    assert_eq!(
        (&health["status"], &health["memory"]),
        (&json!("impaired"), &json!("full: new keys share counters"))
    );
    assert!(metric(&server, "tollgate_store_aggregated_limits") > 0);
    assert!(metric(&server, "tollgate_store_denied_total") >= 1_000);
    server.wait_for_log("memory is full");

    // A known client is decided by its own counter, before and at its limit.
    assert_eq!(passed(&send(&mut client, (0..3).map(|_| hit("flooded", "known", 1)))), 1);

    // Honest newcomers of a rule that is not flooded get the whole limit from each shared counter.
    let honest = send(&mut client, (0..50).map(|n| hit("other", &format!("honest-{n}"), 1)));
    assert!(passed(&honest) >= 40, "{} of 50 honest newcomers passed", passed(&honest));
    // A peek returns the decision for a new key.
    let peek = json!({ "path": "/flooded", "user": "one-more", "peek": true });
    let peeked = send(&mut client, std::iter::repeat_n(peek, 20));
    let got = send(&mut client, std::iter::once(hit("flooded", "one-more", 1)));
    assert_eq!(passed(&peeked) == 20, passed(&got) == 1);
}

#[test]
fn new_keys_pass_or_are_denied_as_configured() {
    for (full, expected) in [("open", 300), ("closed", 0)] {
        let server = start(&format!("memory_full: {full}"));
        let mut client = Client::to(server.http);
        assert_eq!(server.admin("GET", "/healthz", "").json().get("memory"), None);
        flood(&mut client);
        let late = send(&mut client, (0..300).map(|n| hit("flooded", &format!("late-{n}"), 1)));
        assert_eq!(passed(&late), expected, "{full}");
        let health = server.admin("GET", "/healthz", "").json();
        let consequence = if full == "open" { "pass without a limit" } else { "are denied" };
        let memory = format!("full: new keys {consequence}");
        assert_eq!((&health["status"], &health["memory"]), (&json!("impaired"), &json!(memory)));
        assert_eq!(passed(&send(&mut client, (0..3).map(|_| hit("flooded", "known", 1)))), 1, "{full}");
        if full == "closed" {
            let body = hit("flooded", "late-0", 1).to_string();
            let answer = client.request("POST", "/v1/check", &[], body.as_bytes());
            assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
        }
    }
}

/// The memory that a rejection says would do.
fn would_do(text: &str) -> String {
    let size = text.split("set memory to ").nth(1).and_then(|rest| rest.split(' ').next());
    size.unwrap_or_else(|| panic!("no size in: {text}")).to_owned()
}

#[test]
fn a_rule_that_does_not_fit_the_memory_is_rejected_everywhere_with_the_size_that_would_do() {
    const BIG: &str = "{ id: big, key: user, limit: 100000/h, algorithm: sliding-log }";
    let folder = Folder::new();
    let config = |memory: &str| format!("memory: {memory}\nrules: [{BIG}]\n");

    // At the start, and by the check of a file.
    let file = folder.configure(&config("8MiB"));
    let path = file.to_str().expect("a path in UTF-8");
    let size = would_do(&tollgate(&["rules", "check", path]).stderr);
    let ran = tollgate(&["serve", "-c", path]);
    assert_eq!((ran.code, would_do(&ran.stderr)), (Some(3), size.clone()));
    folder.configure(&config(&size));
    assert_eq!(tollgate(&["rules", "check", path]).code, Some(0), "{size} is enough");

    // In an edit, which changes nothing then.
    folder.configure(
        "memory: 8MiB\nrules_db: sqlite:rules.db\nrules: [{ id: small, key: user, limit: 5/h }]\n",
    );
    let server = Server::start_in(&folder);
    let big = json!({ "id": "big", "key": "user", "limit": "100000/h", "algorithm": "sliding-log" });
    let answer = server.admin("POST", "/v1/rules", big.to_string());
    assert!((400..500).contains(&answer.status), "{}", answer.status);
    assert_eq!(would_do(&answer.text()), size);
    assert_eq!(server.admin("GET", "/v1/rules/big", "").status, 404);

    // In a changed file: the last good rules stay in force.
    folder.configure(&format!("memory: 8MiB\nrules_db: sqlite:rules.db\nrules: [{BIG}]\n"));
    server.wait_for_log("set memory to ");
    assert_eq!(server.admin("GET", "/v1/rules/small", "").status, 200);
    assert_eq!(server.admin("GET", "/v1/rules/big", "").status, 404);
}
