//! `tollgate rules history|rollback`, `tollgate audit`.

use serde_json::json;

use crate::command_line::{Shell, fails, json_of};

fn changed() -> Shell {
    let shell = Shell::start();
    shell.put(&json!({ "id": "mine", "limit": "5/m" }));
    shell.done(&["ban", "add", "user:evil", "--reason", "no good"]);
    shell.put(&json!({ "id": "mine", "limit": "9/m", "track": true }));
    shell
}

#[test]
fn the_history_of_a_rule_says_who_when_and_what() {
    let shell = changed();
    let output = shell.done(&["rules", "history", "mine"]);
    let lines: Vec<_> = output.lines().collect();
    assert!(lines[0].starts_with("version 0-3, by local, at 20") && lines[0].ends_with('Z'), "{output}");
    assert_eq!(
        lines[1..5],
        ["  ~ rule mine", "      - limit: 5/m", "      + limit: 9/m", "      + track: true"]
    );
    assert!(lines[5].starts_with("version 0-1, "), "{output}");
    assert_eq!(lines[6..], ["  + rule mine", "      + limit: 5/m"]);
    assert_eq!(shell.done(&["rules", "history"]), output, "a ban is no rule");
    assert_eq!(shell.done(&["rules", "history", "mine", "--limit", "1"]).lines().count(), 5);
    assert_eq!(shell.done(&["rules", "history", "mine", "--before", "0-2"]).lines().count(), 3);
    let none = shell.admin(&["rules", "history", "nobody"]);
    assert_eq!((none.code, none.stdout.as_str(), none.stderr.as_str()), (Some(0), "", "no changes\n"));
}

#[test]
fn the_audit_log_has_everything() {
    let shell = changed();
    let output = shell.done(&["audit"]);
    for words in ["  + ban user:evil", "      + reason: no good", "  ~ rule mine"] {
        assert!(output.contains(words), "{words}: {output}");
    }
    let json = json_of(&shell.admin(&["audit", "--json", "--item", "ban:user:evil"]));
    assert_eq!(
        (json["changes"].as_array().map(Vec::len), &json["changes"][0]["name"]),
        (Some(1), &json!("user:evil"))
    );
    fails(&shell.admin(&["audit", "--item", "shoe:42"]), 1, &["rule:ID, ban:KEY"]);
    fails(&shell.admin(&["audit", "--limit", "0"]), 2, &["--limit"]);
}

#[test]
fn a_change_is_reverted_and_printed() {
    let shell = changed();
    let rehearsed = shell.done(&["rules", "rollback", "0-3", "--dry-run"]);
    assert!(rehearsed.contains("  ~ rule mine\n      - limit: 9/m\n      + limit: 5/m\n"), "{rehearsed}");
    assert!(shell.done(&["rules", "show", "mine"]).contains("9/m"), "nothing was written");
    let output = shell.done(&["rules", "rollback", "0-3"]);
    assert!(output.starts_with("version 0-4, reverts 0-3\n  ~ rule mine\n      - limit: 9/m\n"), "{output}");
    assert!(shell.done(&["rules", "show", "mine"]).contains("limit: 5/m"));
    assert!(shell.done(&["rules", "history", "mine", "--limit", "1"]).contains(", reverts 0-3"));
    fails(&shell.admin(&["rules", "rollback", "0-3"]), 1, &["read it again"]);
    fails(&shell.admin(&["rules", "rollback", "0-99"]), 1, &["no change 0-99"]);
    fails(&shell.admin(&["rules", "rollback", "soon"]), 1, &["'soon' is not a valid version"]);
}
