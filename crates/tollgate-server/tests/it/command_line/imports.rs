//! `tollgate rules apply|diff|export`, `tollgate ban import`: from a file to the database and back.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::json;
use tollgate_testkit::{binary, run};

use crate::command_line::{Shell, fails, json_of};

const TWO: &str = "rules:\n- { id: one, match: /one, limit: 5/m }\n- { id: two, match: /two, limit: 5/m }\n";
const THREE: &str = "- { id: one, match: /one, limit: 9/m }\n- { id: three, limit: 1/s }\n";

#[test]
fn apply_prints_the_result_for_each_rule() {
    let shell = Shell::start();
    let two = shell.file("two.yaml", TWO);
    assert_eq!(
        shell.done(&["rules", "apply", &two]),
        "2 created, 0 changed, 0 deleted, 0 unchanged, version 0-2\n  + one\n  + two\n"
    );
    assert_eq!(
        shell.done(&["rules", "import", &two]),
        "0 created, 0 changed, 0 deleted, 2 unchanged, version 0-2\n"
    );
    let three = shell.file("three.yaml", THREE);
    let refused = shell.admin(&["rules", "apply", "--replace", &three]);
    fails(&refused, 1, &["this deletes 1 of 2 rules", "--yes", "nothing was written"]);
    let output = shell.done(&["rules", "apply", "--replace", "--yes", &three]);
    assert!(output.starts_with("1 created, 1 changed, 1 deleted, 0 unchanged, version 0-5\n"), "{output}");
    let mut lines: Vec<_> = output.lines().skip(1).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["  + three", "  - two", "  ~ one"]);
    let json = json_of(&shell.admin(&["rules", "apply", &two, "--json"]));
    assert_eq!((&json["created"], &json["changed"], &json["unchanged"]), (&json!(1), &json!(1), &json!(0)));
    assert_eq!(shell.check(&["/two", "--json"]).code, Some(0));
}

#[test]
fn on_a_terminal_a_replacement_that_deletes_many_rules_is_confirmed() {
    let shell = Shell::start();
    shell.done(&["rules", "apply", &shell.file("two.yaml", TWO)]);
    let three = shell.file("three.yaml", THREE);
    let program = binary();
    let program = program.get_program().to_str().expect("a plain path");
    let command = format!("{program} rules apply --replace {three} --admin http://{}", shell.0.admin);
    let answer = |line: &str| -> (Option<i32>, String) {
        // `script` gives the command a terminal, and passes its exit code on.
        let mut terminal = Command::new("script");
        terminal.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
        terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut terminal = terminal.spawn().expect("script, of the package bsdutils");
        let mut keyboard = terminal.stdin.take().expect("a pipe");
        keyboard.write_all(line.as_bytes()).expect("it reads");
        drop(keyboard);
        let done = terminal.wait_with_output().expect("it ends");
        (done.status.code(), String::from_utf8_lossy(&done.stdout).into_owned())
    };
    let is_there = |rule: &str| shell.0.admin("GET", &format!("/v1/rules/{rule}"), "").status == 200;
    for refusal in ["n\n", "\n", "no, yes\n"] {
        let (code, printed) = answer(refusal);
        assert!(printed.contains("this deletes 1 of 2 rules. Delete them? [y/N] "), "{printed}");
        assert_eq!(code, Some(1), "{refusal}: {printed}");
        assert!(printed.contains("nothing was written"), "{refusal}: {printed}");
    }
    assert!(is_there("two") && !is_there("three"));
    let (code, printed) = answer("y\n");
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("1 created, 1 changed, 1 deleted"), "{printed}");
    assert!(!is_there("two") && is_there("three"));
}

#[test]
fn one_rollback_reverts_a_whole_apply() {
    let shell = Shell::start();
    shell.done(&["rules", "apply", &shell.file("two.yaml", TWO)]);
    let before = shell.done(&["rules", "export"]);
    shell.done(&["rules", "apply", "--replace", "--yes", &shell.file("three.yaml", THREE)]);
    let history = shell.done(&["rules", "history"]);
    let heads: Vec<_> = history.lines().filter(|line| line.starts_with("version")).collect();
    assert_eq!(heads.len(), 2, "two applies: {history}");
    assert!(
        heads[0].starts_with("version 0-5, by local, ")
            && heads[0].ends_with(": 1 created, 1 changed, 1 deleted")
    );
    assert!(history.contains("  ~ rule one\n") && history.contains("  - rule two\n"), "{history}");
    let own = shell.done(&["rules", "history", "one", "--limit", "1"]);
    assert!(own.starts_with("version 0-3, part of 0-5, by local"), "{own}");

    let rehearsed = shell.done(&["rules", "rollback", "0-5", "--dry-run"]);
    assert!(rehearsed.starts_with("1 created, 1 changed, 1 deleted\n"), "{rehearsed}");
    let reverted = shell.done(&["rules", "rollback", "0-3"]);
    assert!(
        reverted.starts_with("version 0-8, reverts 0-5: 1 created, 1 changed, 1 deleted\n"),
        "{reverted}"
    );
    assert_eq!(shell.done(&["rules", "export"]), before);
    fails(&shell.admin(&["rules", "rollback", "0-5"]), 1, &["nothing is left to revert of change 0-5"]);
    shell.done(&["rules", "rollback", "0-8"]);
    let only = shell.done(&["rules", "rollback", "0-11", "--only"]);
    assert!(only.starts_with("version 0-12, reverts 0-11\n"), "{only}");
}

#[test]
fn diff_shows_rule_by_rule_and_its_exit_code_says_whether_anything_differs() {
    let shell = Shell::start();
    let two = shell.file("two.yaml", TWO);
    let all_new = shell.admin(&["rules", "diff", &two]);
    let expected = "+ one\n    + match: /one\n    + limit: 5/m\n+ two\n    + match: /two\n    + limit: 5/m\n";
    assert_eq!((all_new.code, all_new.stdout.as_str(), all_new.stderr.as_str()), (Some(1), expected, ""));
    shell.done(&["rules", "apply", &two]);
    let same = shell.admin(&["rules", "diff", &two]);
    assert_eq!((same.code, same.stdout.as_str()), (Some(0), ""), "{same:?}");
    let three = shell.file("three.yaml", THREE);
    let merged = shell.admin(&["rules", "diff", &three]);
    assert_eq!(merged.code, Some(1));
    assert_eq!(merged.stdout, "~ one\n    - limit: 5/m\n    + limit: 9/m\n+ three\n    + limit: 1/s\n");
    let replaced = shell.admin(&["rules", "diff", &three, "--replace", "--json"]);
    assert_eq!((replaced.code, &json_of(&replaced)["deleted"]), (Some(1), &json!(1)));
    let rehearsed = shell.done(&["rules", "apply", &three, "--dry-run"]);
    assert!(
        rehearsed.starts_with("~ one\n") && rehearsed.ends_with("; nothing was written\n"),
        "{rehearsed}"
    );
    assert!(shell.done(&["rules", "show", "one"]).contains("limit: 5/m"), "nothing was written");
}

#[test]
fn what_is_exported_is_applied_again_without_a_change() {
    let shell = Shell::start();
    let written = "rules:
  - { id: short, uid: '42', url: /search, time: minute, requests: 5 }
  - id: long
    match: POST /login/{name}
    key: [email, 'header:x-a']
    limits: [5/m, 20/h]
    algorithm: sliding-log
    mode: off
    ban: { key: [ip], after: 3, within: 10m, for: 1h, max: 24h }
    overrides: [{ email: 'a+b@example.com', limits: [50/m] }]
";
    shell.done(&["rules", "apply", &shell.file("rules.yaml", written)]);
    let exported = shell.done(&["rules", "export"]);
    let file = shell.file("exported.yaml", &exported);
    let same = shell.admin(&["rules", "diff", &file, "--replace"]);
    assert_eq!((same.code, same.stdout.as_str()), (Some(0), ""), "{same:?}");
    let other = Shell::start();
    let output = other.done(&["rules", "apply", &file]);
    assert!(output.starts_with("2 created, "), "{output}");
    assert_eq!(other.done(&["rules", "export"]), exported);
    assert_eq!(
        other.done(&["rules", "show", "long"]).lines().skip(1).collect::<Vec<_>>(),
        shell.done(&["rules", "show", "long"]).lines().skip(1).collect::<Vec<_>>()
    );
    let json = json_of(&shell.admin(&["rules", "export", "--json"]));
    assert_eq!(json["rules"].as_array().map(Vec::len), Some(2));
    assert!(shell.done(&["rules", "export", "--source", "file"]).contains("counter"));
}

#[test]
fn one_bad_rule_and_nothing_is_sent_and_its_line_is_named() {
    let shell = Shell::start();
    let mut rules: String = (0..1_000).map(|n| format!("- {{ id: r{n}, limit: 5/m }}\n")).collect();
    rules += "- { id: bad, limit: five }\n- { id: worse, colour: red, limit: 5/m }\n";
    let file = shell.file("bad.yaml", &rules);
    let ran = shell.admin(&["rules", "apply", &file]);
    fails(
        &ran,
        3,
        &[&format!("{file}:1001:"), &format!("{file}:1002:"), "unknown key 'colour'", "2 problems"],
    );
    let json = shell.admin(&["rules", "diff", &file, "--json"]);
    assert_eq!((json.code, json_of(&json)["problems"].as_array().map(Vec::len)), (Some(3), Some(2)));
    // No server is needed for that.
    let alone = crate::command_line::tollgate(&["rules", "apply", &file, "--admin", "http://127.0.0.1:9"]);
    fails(&alone, 3, &["bad.yaml:1001:"]);
    assert_eq!(shell.admin(&["rules", "ls", "--source", "database"]).stderr, "no rules\n");
    fails(&shell.admin(&["rules", "apply", "nowhere.yaml"]), 3, &["nowhere.yaml: cannot be read"]);
}

#[test]
fn problems_that_only_the_server_finds_are_reported_by_line_too() {
    let shell = Shell::start();
    let file = shell.file("taken.yaml", "- { id: fine, limit: 5/m }\n- { id: login, limit: 5/m }\n");
    let ran = shell.admin(&["rules", "apply", &file]);
    fails(&ran, 3, &[&format!("{file}:2:"), "login"]);
    let json = shell.admin(&["rules", "apply", &file, "--json"]);
    assert_eq!((json.code, &json_of(&json)["problems"][0]["line"]), (Some(3), &json!(2)));
    assert_eq!(shell.admin(&["rules", "ls", "--source", "database"]).stderr, "no rules\n");
}

#[test]
fn rules_come_from_stdin_too() {
    let shell = Shell::start();
    let file = std::fs::File::open(shell.0.folder.write("two.yaml", TWO)).expect("the file");
    let url = format!("http://{}", shell.0.admin);
    let ran = run(binary().args(["rules", "apply", "-", "--admin", &url]).stdin(Stdio::from(file)));
    assert!(ran.code == Some(0) && ran.stdout.starts_with("2 created, "), "{ran:?}");
}

/// More than what fits one buffer, a connection's window and one page; nothing is drawn without a terminal.
#[test]
fn a_long_import_is_whole_and_draws_nothing_without_a_terminal() {
    let shell = Shell::start();
    let note = "x".repeat(700);
    let rule = |n| format!("- {{ id: r{n}, uid: u{n}, url: /r, time: minute, requests: 5 }} # {note}\n");
    let rules: String = (0..3_000).map(rule).collect();
    let ran = shell.admin(&["rules", "apply", &shell.file("many.yaml", &rules)]);
    assert!(ran.stdout.starts_with("3000 created, 0 changed, 0 deleted, 0 unchanged, "), "{ran:?}");
    assert_eq!(ran.stdout.matches("\n  + r").count(), 100, "the first hundred are named");
    assert!(ran.stderr.ends_with("… and 2900 more changes\n") && !ran.stderr.contains('\x1b'), "{ran:?}");
    assert_eq!(shell.done(&["rules", "export"]).lines().count(), 3_001);
}

#[test]
fn bans_are_imported_all_or_none() {
    let shell = Shell::start();
    let bans = "# those of last night\nip:203.0.113.9 7d scraping the shop\nip:198.51.100.0/24 2126-01-01T00:00:00Z\nuser:evil\n";
    let file = shell.file("bans.txt", bans);
    assert_eq!(
        shell.done(&["ban", "import", &file, "--dry-run"]),
        "3 created, 0 changed, 0 deleted, 0 unchanged; nothing was written\n"
    );
    assert_eq!(shell.admin(&["ban", "ls"]).stderr, "no bans\n");
    assert_eq!(shell.done(&["ban", "import", &file]), "3 created, 0 changed, 0 deleted, 0 unchanged\n");
    let listed = shell.done(&["ban", "ls"]);
    for words in ["scraping the shop", "2126-01-01T00:00:00Z", "further notice"] {
        assert!(listed.contains(words), "{words}: {listed}");
    }
    let bad = shell.file("bad.txt", "user:fine 1h\nshoe:42 1h\n");
    fails(&shell.admin(&["ban", "import", &bad]), 3, &[&format!("{bad}:2:"), "unknown attribute 'shoe'"]);
    assert_eq!(shell.done(&["ban", "ls"]).lines().count(), 4, "none of them");
    let yaml = shell.file("bans.yaml", "bans: [{ key: 'user:other', for: 1h, reason: 'no good' }]\n");
    assert_eq!(json_of(&shell.admin(&["ban", "import", &yaml, "--json"]))["created"], 1);
}
