//! `tollgate rules ls|show|rm`.

use serde_json::json;

use crate::command_line::{Shell, fails, json_of};

#[test]
fn rules_of_the_file_come_before_those_of_the_database() {
    let shell = Shell::start();
    shell.put(&json!({ "id": "b", "limit": "5/m", "host": "api.example.com", "match": "GET /b/{name}", "key": ["ip", "user"] }));
    shell.put(&json!({ "id": "a", "uid": "42", "url": "/a", "time": "minute", "requests": 7 }));
    let listed = shell.done(&["rules", "ls"]);
    let lines: Vec<Vec<_>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    let ids: Vec<_> = lines.iter().map(|line| line[0]).collect();
    assert_eq!(ids, ["ID", "login", "plan", "api", "counter", "a", "b"]);
    assert_eq!(lines[5], ["a", "/a", "user:42", "7/m", "gcra", "enforce", "database"]);
    assert!(lines[6].join(" ").starts_with("b api.example.com GET /b/{name} ip+user 5/m"), "{listed}");
    assert_eq!(shell.done(&["rules", "ls", "--source", "database", "--limit", "1"]).lines().count(), 2);
    let some = shell.done(&["rules", "ls", "--prefix", "co"]);
    assert!(some.lines().count() == 2 && some.contains("counter"), "{some}");
    let none = shell.admin(&["rules", "ls", "--prefix", "nobody"]);
    assert_eq!((none.code, none.stdout.as_str(), none.stderr.as_str()), (Some(0), "", "no rules\n"));
    let json = json_of(&shell.admin(&["rules", "ls", "--json"]));
    assert_eq!((json["rules"].as_array().map(Vec::len), &json["next"]), (Some(6), &json!(null)));
    assert_eq!(
        (&json["rules"][0]["source"], &json["rules"][5]["source"]),
        (&json!("file"), &json!("database"))
    );
    let first = json_of(&shell.admin(&["rules", "ls", "--json", "--limit", "2"]));
    assert_eq!(first["rules"].as_array().map(Vec::len), Some(2));
    assert!(first["next"].is_string(), "a next page: {first}");
}

#[test]
fn more_rules_than_a_page_are_all_listed() {
    let shell = Shell::start();
    let rules: String = (0..2_345).map(|n| format!("- {{ id: r{n}, match: /r{n}, limit: 5/m }}\n")).collect();
    shell.done(&["rules", "apply", &shell.file("many.yaml", &rules)]);
    assert_eq!(shell.done(&["rules", "ls", "--source", "database"]).lines().count(), 2_346);
    let json = json_of(&shell.admin(&["rules", "ls", "--source", "database", "--json"]));
    assert_eq!(json["rules"].as_array().map(Vec::len), Some(2_345));
}

#[test]
fn a_rule_is_shown_as_it_was_written_and_says_where_it_is_from() {
    let shell = Shell::start();
    shell.put(&json!({ "id": "mine", "limits": ["5/m", "9/h"], "key": "email",
        "overrides": [{ "email": "ceo@example.com", "limits": ["50/m"] }] }));
    let shown = shell.done(&["rules", "show", "mine"]);
    let (origin, rule) = shown.split_once('\n').expect("two lines");
    assert!(origin.starts_with("# from the database, version 0-1, by local, at 20"), "{shown}");
    let expected = "- id: mine\n  limits: [5/m, 9/h]\n  key: email\n  overrides:\n    \
                    - { email: ceo@example.com, limits: [50/m] }\n";
    assert_eq!(rule, expected);
    let same = shell.admin(&["rules", "diff", &shell.file("shown.yaml", &shown)]);
    assert_eq!((same.code, same.stdout.as_str()), (Some(0), ""), "{same:?}");
    let of_file = shell.done(&["rules", "show", "plan"]);
    assert!(of_file.starts_with("# from the configuration file\n- id: plan\n  match: /plan\n"), "{of_file}");
    assert_eq!(json_of(&shell.admin(&["rules", "show", "mine", "--json"]))["version"], "0-1");
    fails(&shell.admin(&["rules", "show", "nobody"]), 1, &["no rule 'nobody'"]);
}

#[test]
fn a_deleted_rule_is_named_with_all_it_was() {
    let shell = Shell::start();
    shell.put(&json!({ "id": "mine", "limit": "5/m" }));
    let removed = shell.done(&["rules", "rm", "mine"]);
    assert!(removed.starts_with("- mine\n") && removed.contains("    - limits: [5/m]\n"), "{removed}");
    fails(&shell.admin(&["rules", "rm", "mine"]), 1, &["there is no rule mine"]);
    fails(&shell.admin(&["rules", "rm", "login"]), 1, &["in the configuration file: change it there"]);
}
