//! Many rules or bans at once: all or none, and what is wrong is named by its line.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_testkit::{Answer, Client, Server, eventually};

use crate::admin::bans::bans;

const FILE: &str = "rules: [{ id: filed, match: /filed, limit: 9/h }]";

/// The bound for 100,000 rules; a build without optimisation on a busy machine takes its time.
const A_MINUTE: Duration = Duration::from_secs(if cfg!(debug_assertions) { 240 } else { 60 });

fn import(server: &Server, query: &str, text: &str) -> Answer {
    let path = format!("/v1/rules/import{query}");
    Client::patient(server.admin, A_MINUTE).request("POST", &path, &[], text.as_bytes())
}

fn counts(answer: &Answer) -> [u64; 4] {
    assert_eq!(answer.status, 200, "{answer}");
    let reply = answer.json();
    ["created", "changed", "deleted", "unchanged"].map(|name| reply[name].as_u64().expect("a number"))
}

fn export(server: &Server, query: &str) -> String {
    let answer = server.admin("GET", &format!("/v1/rules/export{query}"), "");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/yaml")), "{answer}");
    answer.text()
}

#[test]
fn rules_are_imported_and_what_is_exported_can_be_imported_again() {
    let server = Server::start(FILE);
    let yaml = "rules:\n  - id: a\n    match: POST /a\n    key: [email]\n    limits: [5/m, 20/h]\n  - { id: b, url: /b, uid: 42, time: minute, requests: 5 }\n";
    let first = import(&server, "", yaml);
    assert_eq!(counts(&first), [2, 0, 0, 0]);
    assert_eq!((&first.json()["version"], &first.json()["changes"]), (&json!("0-2"), &json!(["a", "b"])));
    assert_eq!(counts(&import(&server, "", yaml)), [0, 0, 0, 2]);
    let exported = export(&server, "");
    assert_eq!(exported.lines().next(), Some("rules:"));
    assert_eq!(counts(&import(&server, "?mode=replace", &exported)), [0, 0, 0, 2]);
    let json = r#"[{"id":"b","limit":"7/m"},{"id":"c","limit":"8/m"}]"#;
    let would = import(&server, "?mode=replace&dry_run=true", json);
    assert_eq!(counts(&would), [1, 1, 1, 0]);
    assert_eq!(would.json()["version"], "0-2", "the one that it was compared with");
    let diff = &would.json()["diff"];
    assert_eq!(diff[0]["before"]["requests"], 5);
    assert_eq!(diff[0]["after"], json!({ "id": "b", "limit": "7/m" }));
    assert_eq!((&diff[1]["id"], &diff[1]["before"]), (&json!("c"), &Value::Null));
    assert_eq!((&diff[2]["id"], &diff[2]["after"]), (&json!("a"), &Value::Null));
    assert_eq!(export(&server, ""), exported, "a dry run writes nothing");
    assert_eq!(counts(&import(&server, "?mode=replace", json)), [1, 1, 1, 0]);
    assert_eq!(server.admin("GET", "/v1/rules/a", "").status, 404);
    let all = export(&server, "?source=all");
    assert!(all.contains("\"filed\"") && all.contains("\"c\""), "{all}");
    assert!(!export(&server, "?source=file").contains("\"c\""));
    let empty = import(&server, "?mode=replace", "rules: []");
    assert_eq!(counts(&empty), [0, 0, 2, 0]);
    assert_eq!(export(&server, ""), "rules: []\n");
}

#[test]
fn one_bad_rule_and_nothing_is_imported() {
    let server = Server::start(FILE);
    let good = "- { id: good, limit: 5/m }\n";
    for (bad, line, words) in [
        ("- { id: bad, limit: five }\n", 2, "five"),
        ("- { id: bad, limit: 5/m, colour: red }\n", 2, "colour"),
        ("- { id: good, limit: 6/m }\n", 2, "used twice, first at line 1"),
        ("- { id: filed, limit: 6/m }\n", 2, "configuration file"),
        ("\n- nonsense\n", 3, "a map"),
        ("- { id: bad", 3, ""),
    ] {
        let refused = import(&server, "", &format!("{good}{bad}"));
        let reply = refused.json();
        assert_eq!((refused.status, &reply["problems"][0]["line"]), (400, &json!(line)), "{bad}: {reply}");
        assert!(reply["detail"].as_str().is_some_and(|detail| detail.contains(words)), "{bad}: {reply}");
        assert_eq!(export(&server, ""), "rules: []\n", "{bad}");
    }
    for (query, field) in [("?mode=loud", "mode"), ("?dry_run=perhaps", "dry_run"), ("?colour=red", "colour")]
    {
        let refused = import(&server, query, good);
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!(field)), "{refused}");
    }
    let more = import(&server, "", "rules: []\nlisten: { http: off }\n");
    assert_eq!((more.status, &more.json()["field"]), (400, &json!("listen")), "{more}");
}

#[test]
fn rules_that_would_not_fit_together_are_refused_as_a_whole() {
    let server = Server::start(FILE);
    let many: String = (0..65).map(|n| format!("- {{ id: r{n:02}, match: /x, limit: 5/m }}\n")).collect();
    let refused = import(&server, "", &many);
    assert_eq!((refused.status, &refused.json()["problems"][0]["line"]), (400, &json!(65)), "{refused}");
    assert_eq!(export(&server, ""), "rules: []\n");
    // Those that go make room for those that come.
    let first: String = (0..64).map(|n| format!("- {{ id: old{n}, match: /x, limit: 5/m }}\n")).collect();
    assert_eq!(counts(&import(&server, "", &first))[0], 64);
    let others: String = (0..64).map(|n| format!("- {{ id: new{n}, match: /x, limit: 5/m }}\n")).collect();
    assert_eq!(import(&server, "", &others).status, 400);
    assert_eq!(counts(&import(&server, "?mode=replace", &others)), [64, 0, 64, 0]);
}

#[test]
fn a_hundred_thousand_rules_take_less_than_a_minute_and_one_bad_line_spoils_all() {
    const COUNT: usize = 100_000;
    let server = Server::start(FILE);
    let line = |n: usize| format!("- {{ id: r{n}, match: /a/{n}, key: user, limit: {}/m }}\n", 1 + n % 50);
    let text: String = (0..COUNT).map(line).collect();
    let bad = text.replacen(
        "- { id: r77777, match: /a/77777, key: user",
        "- { id: r77777, match: /a/77777, kye: user",
        1,
    );
    let refused = import(&server, "", &bad);
    assert_eq!((refused.status, &refused.json()["problems"][0]["line"]), (400, &json!(77_778)), "{refused}");
    assert!(refused.text().contains("did you mean 'key'"), "{refused}");
    assert_eq!(export(&server, ""), "rules: []\n");
    let start = Instant::now();
    assert_eq!(counts(&import(&server, "", &text)), [COUNT as u64, 0, 0, 0]);
    assert!(start.elapsed() < A_MINUTE, "{:?}", start.elapsed());
    while server.admin("GET", "/v1/rules?limit=1", "").json()["total"] != COUNT + 1 {
        assert!(start.elapsed() < 2 * A_MINUTE, "not all are in force");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.check(&json!({ "user": "ann", "path": "/a/99999" })).json()["rule"], "r99999");
    assert_eq!(export(&server, "").lines().count(), COUNT + 1);
}

#[test]
fn bans_are_imported_as_json_yaml_or_lines() {
    let server = Server::start("bans: [{ key: 'user:filed' }]");
    let ban = |text: &str| server.admin("POST", "/v1/bans/import", text);
    let json = json!({ "bans": [{ "key": "user:a", "for": "1h", "reason": "x" }, { "key": "ip:10.0.0.0/8", "until": "2126-01-01T00:00:00Z" }] });
    assert_eq!(counts(&ban(&json.to_string())), [2, 0, 0, 0]);
    assert_eq!(counts(&ban("- { key: 'user:b', for: 1d }\n- { key: 'user:c' }\n")), [2, 0, 0, 0]);
    let lines = "# attackers\nuser:d 1h password guessing\n\nuser:e 2126-01-01T00:00:00Z\nip:2001:db8::/32\nuser:f scraping all day\n";
    assert_eq!(counts(&ban(lines)), [4, 0, 0, 0]);
    eventually("all are in force", || bans(&server).len() == 9);
    let list = server.admin("GET", "/v1/bans", "").json();
    let find =
        |key: &str| list["bans"].as_array().into_iter().flatten().find(|ban| ban["key"] == key).cloned();
    assert_eq!(find("user:d").expect("banned")["reason"], "password guessing");
    assert_eq!(find("user:f").expect("banned")["reason"], "scraping all day");
    assert_eq!(find("user:f").expect("banned")["until"], Value::Null);
    assert_eq!(find("user:e").expect("banned")["until"], "2126-01-01T00:00:00Z");
    assert!(find("user:e").expect("banned")["version"].is_string());
    assert_eq!(server.check(&json!({ "ip": "10.9.8.7" })).status, 403);
    assert_eq!(counts(&ban("user:f scraping all day\n")), [0, 0, 0, 1]);
}

#[test]
fn one_bad_ban_and_nothing_is_imported() {
    for config in ["bans: [{ key: 'user:filed' }]", "rules_db: none\nbans: [{ key: 'user:filed' }]"] {
        let server = Server::start(config);
        for (bad, line) in [
            ("user:a 1h\nnonsense\n", 2),
            ("user:a 1h\nuser:b 2001-01-01T00:00:00Z\n", 2),
            ("user:a 1h\n\nuser:a 2h\n", 3),
            ("user:a\nuser:filed 1h\n", 2),
            ("user:a 0s\n", 1),
            ("- { key: 'user:a' }\n- { key: 'user:b', colour: red }\n", 2),
            ("- { key: 'user:a', for: 1h, until: 2126-01-01T00:00:00Z }\n", 1),
            ("- { for: 1h }\n", 1),
            ("{\"bans\": 7}", 1),
        ] {
            let refused = server.admin("POST", "/v1/bans/import", bad);
            let reply = refused.json();
            assert_eq!(
                (refused.status, &reply["problems"][0]["line"]),
                (400, &json!(line)),
                "{bad}: {reply}"
            );
            assert_eq!(bans(&server), ["user:filed"], "{bad}");
        }
        assert_eq!(counts(&server.admin("POST", "/v1/bans/import?dry_run=true", "user:a\n")), [1, 0, 0, 0]);
        assert_eq!(bans(&server), ["user:filed"]);
        assert_eq!(counts(&server.admin("POST", "/v1/bans/import", "user:a\n")), [1, 0, 0, 0]);
        eventually("it is in force", || bans(&server) == ["user:a", "user:filed"]);
    }
}
