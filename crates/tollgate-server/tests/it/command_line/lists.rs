//! `tollgate allow`, `tollgate override`, `tollgate enforce`.

use serde_json::json;
use tollgate_testkit::eventually;

use crate::command_line::{Shell, fails, json_of};

#[test]
fn keys_are_added_to_the_allow_list_listed_and_removed() {
    let shell = Shell::start();
    assert_eq!(shell.admin(&["allow", "ls"]).stderr, "the allow list is empty\n");
    let output = shell.done(&["allow", "add", "ip:10.0.0.0/8", "--note", "our own network"]);
    assert_eq!(output, "allowed ip:10.0.0.0/8  our own network\n");
    let allowed = shell.check(&["/x", "--ip", "10.1.2.3", "--json"]);
    assert_eq!(json_of(&allowed)["reason"], "allow_list");
    let listed = shell.done(&["allow", "ls"]);
    let lines: Vec<_> = listed.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("KEY "), "{listed}");
    assert_eq!(lines[1], "ip:10.0.0.0/8  database  our own network");
    assert_eq!(json_of(&shell.admin(&["allow", "ls", "--json"]))["allow"].as_array().map(Vec::len), Some(1));
    assert_eq!(shell.done(&["allow", "rm", "ip:10.0.0.0/8"]), "removed ip:10.0.0.0/8  our own network\n");
    fails(&shell.admin(&["allow", "rm", "ip:10.0.0.0/8"]), 1, &["ip:10.0.0.0/8"]);
    fails(&shell.admin(&["allow", "add", "shoe:42"]), 1, &["unknown attribute 'shoe'"]);
}

#[test]
fn a_key_gets_limits_of_its_own_and_loses_them() {
    let shell = Shell::start();
    shell.put(&json!({ "id": "mine", "match": "/mine", "key": "email", "limit": "5/y" }));
    let output = shell.done(&["override", "add", "mine", "email:ceo@example.com", "20/d", "50/y"]);
    assert_eq!(output, "set email:ceo@example.com of rule mine: 20/d, 50/y\n");
    let checked = json_of(&shell.check(&["/mine", "--email", "ceo@example.com", "--json"]));
    assert_eq!(checked["remaining"], 19);
    let listed = shell.done(&["override", "ls", "mine"]);
    assert!(
        listed.starts_with("RULE  KEY ") && listed.contains("mine  email:ceo@example.com  20/d, 50/y"),
        "{listed}"
    );
    let output = shell.done(&["override", "rm", "mine", "email:ceo@example.com"]);
    assert_eq!(output, "removed email:ceo@example.com of rule mine: 20/d, 50/y\n");
    assert_eq!(shell.admin(&["override", "ls", "mine"]).stderr, "no overrides\n");
    fails(&shell.admin(&["override", "rm", "mine", "email:ceo@example.com"]), 1, &["no override"]);
    fails(
        &shell.admin(&["override", "add", "login", "email:a@example.com", "9/m"]),
        1,
        &["configuration file"],
    );
    fails(&shell.admin(&["override", "add", "mine", "user:a", "9/m"]), 1, &["user"]);
    fails(&shell.admin(&["override", "add", "mine", "email:a@example.com"]), 2, &["<LIMIT>"]);
}

#[test]
fn the_panic_switch_prints_before_and_after() {
    let shell = Shell::start();
    shell.done(&["ban", "add", "user:evil"]);
    assert_eq!(shell.done(&["enforce"]), "enforce: on (the whole fleet)\n");
    assert_eq!(shell.check(&["/x", "--user", "evil"]).code, Some(1));
    assert_eq!(shell.done(&["enforce", "off"]), "enforce: on → off (the whole fleet)\n");
    eventually("nothing is enforced", || shell.check(&["/x", "--user", "evil"]).code == Some(0));
    let output = shell.done(&["enforce"]);
    assert!(
        output.starts_with("enforce: off (the whole fleet), since 20") && output.ends_with(" by local\n"),
        "{output}"
    );
    assert_eq!(json_of(&shell.admin(&["enforce", "shadow", "--json"]))["enforce"], "shadow");
    assert!(shell.done(&["audit", "--item", "setting:enforce"]).contains("~ setting enforce\n"));
    fails(&shell.admin(&["enforce", "sometimes"]), 2, &["on, shadow, off"]);
}
